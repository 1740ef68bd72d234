package transport

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star/transport/wire"
)

var update = flag.Bool("update", false, "write testdata/vectors.txt")

const vectorsHead = `# Frames of protocol version 1, byte by byte, for authors of other peers.
# Generated: go test ./transport -run Vectors -update. docs/protocol.md explains.
# Each: the message as Go prints it, then prefix, header, padding, payload and
# sum in hexadecimal. Parts that are absent have no line.
`

// frame is the whole frame of s, as a Conn writes it.
func frame(t *testing.T, s sample) []byte {
	t.Helper()
	var out recorder
	c := NewConn(&out, Limits{})
	if err := Send(c, asMessage{s.m}, s.payload); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// asMessage lets an interface value be sent.
type asMessage struct{ wire.Message }

// recorder is a stream that keeps what is written, and reads it.
type recorder struct{ bytes.Buffer }

func (*recorder) Close() error                     { return nil }
func (*recorder) LocalAddr() net.Addr              { return pipeAddr("here") }
func (*recorder) RemoteAddr() net.Addr             { return pipeAddr("recorder") }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

func vectors(t *testing.T) string {
	var b strings.Builder
	b.WriteString(vectorsHead)
	// One with a padded payload besides.
	padded := sample{wire.Push{Shard: 0, Worker: 1, Step: 2, Basis: 2, Samples: 1}, make([]byte, small+4)}
	for _, s := range append(samples[:len(samples):len(samples)], padded) {
		f := frame(t, s)
		fmt.Fprintf(&b, "\n%v %+v\n", s.m.Kind(), s.m)
		for _, part := range []struct {
			name string
			n    int
		}{
			{"prefix", prefixSize}, {"header", len(s.m.AppendTo(nil))}, {"padding", int(f[7])}, {"payload", len(s.payload)}, {"sum", sumSize},
		} {
			if len(f) == 0 || part.n == 0 {
				continue
			}
			text := hex.EncodeToString(f[:part.n])
			if part.n > small {
				text = fmt.Sprintf("%d bytes of zero", part.n)
			}
			fmt.Fprintf(&b, "  %-7s  %s\n", part.name, text)
			f = f[part.n:]
		}
		if len(f) != 0 {
			t.Errorf("%v: %d bytes behind the sum", s.m.Kind(), len(f))
		}
	}
	return b.String()
}

// The bytes on the wire are a promise. A change of this file is a change of the
// protocol.
func TestVectors(t *testing.T) {
	got := vectors(t)
	const file = "testdata/vectors.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("%s:%d:\n got %s\nwant %s", file, i+1, g[i], w[i])
			}
		}
		t.Fatalf("%s has %d lines, want %d", file, len(w), len(g))
	}
}

// What a peer reads is what was sent, of every kind.
func TestSamplesComeBack(t *testing.T) {
	seen := map[wire.Kind]bool{}
	for _, s := range samples {
		seen[s.m.Kind()] = true
		got, err := parseAny(s.m.Kind(), s.m.AppendTo(nil))
		if d := cmp.Diff(s.m, got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v: %v (-want +got):\n%s", s.m.Kind(), err, d)
		}
	}
	for k := wire.Kind(1); k <= wire.LastKind; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
}
