package transport

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/vectors.txt anew")

const vectorsHead = `# Frames of protocol version 1, byte by byte, for whoever writes another peer.
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
type asMessage struct{ Message }

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
	padded := sample{Push{Shard: 0, Worker: 1, Step: 2, Basis: 2, Samples: 1}, make([]byte, small+4)}
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

// docs/protocol.md has a section for each kind, with its number and with a row
// for each of its fields, in order.
func TestProtocolIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for k := KindHello; k <= lastKind; k++ {
		title := fmt.Sprintf("### %d %v\n", k, k)
		_, section, ok := strings.Cut(doc, title)
		if !ok {
			t.Errorf("docs/protocol.md has no section %q", strings.TrimSpace(title))
			continue
		}
		section, _, _ = strings.Cut(section, "\n### ")
		section, _, _ = strings.Cut(section, "\n## ")
		var rows []string
		for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| ([a-z0-9_]+) \|`).FindAllStringSubmatch(section, -1) {
			if m[1] != fmt.Sprint(len(rows)) {
				t.Errorf("%v: row %s is in place %d", k, m[1], len(rows))
			}
			rows = append(rows, m[2])
		}
		if want := fields(t, k); strings.Join(rows, " ") != strings.Join(want, " ") {
			t.Errorf("%v: documented fields %v, want %v", k, rows, want)
		}
	}
}

// fields finds the names of a kind's fields from the errors of headers that
// have a field of no acceptable type in each place.
func fields(t *testing.T, k Kind) []string {
	t.Helper()
	var good []byte
	for _, s := range samples {
		if s.m.Kind() == k {
			good = s.m.AppendTo(nil)
			break
		}
	}
	n := int(good[0] & 0x0f)
	rest := good[1:]
	if good[0] == 0xdc {
		n, rest = int(good[1])<<8|int(good[2]), good[3:]
	}
	var names []string
	for i := range n {
		at := len(good) - len(rest)
		bad := append(append(good[:at:at], 0xc0), make([]byte, 64)...)
		_, err := parseAny(k, bad)
		e, ok := err.(*ParseError)
		if !ok {
			t.Fatalf("%v: nil in place %d: %v", k, i, err)
		}
		names = append(names, e.Field)
		p := parser{rest: rest, kind: k}
		p.skip(1)
		if p.err != nil {
			t.Fatal(p.err)
		}
		rest = p.rest
	}
	return names
}
