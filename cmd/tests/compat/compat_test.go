//go:build linux

// Package compat_test reads with today's code what earlier releases wrote (docs/versions.md): run logs, checkpoints,
// the link and settings files. The wire is in transport/wire. A folder of testdata is a release. Its files never
// change: the test has their hashes, and no flag writes them. A release that adds to a format adds a folder, by hand.
package compat_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"star/internal/settings"
	"star/runlog"
	"star/train"
	"star/train/checkpoint"
	"star/train/data"
	"star/worker/foreign"
)

// golden has the SHA-256 of each file. A hash in this table is never replaced.
var golden = map[string]string{
	"0.1.0/checkpoint/manifest.json":            "b47c89d97d12327b9dbe7f7146ea4d1917b7b8033f47ab93040ca0892e25e208",
	"0.1.0/checkpoint/predictor.jsonl":          "471d6364859d7b12b28f4fa4a6021a11a491af8aa0f57241786b418d8777bc63",
	"0.1.0/checkpoint/shard-00000.safetensors":  "7b831c169106c29e0ba09fa5685c7f56503e51871f20399f9a119703a3251bc5",
	"0.1.0/checkpoint/shard-00001.safetensors":  "1e594f62b0b1b798d097cb7bcba199995570832f63159bd8d531fc26d423df16",
	"0.1.0/checkpoint2/buffers.safetensors":     "93f1ce9d422084a743ce69da4b8bd56306e880728f35a1efef56a5bcb4a9b3b0",
	"0.1.0/checkpoint2/manifest.json":           "de4824c0a96622eb84683afdf432287ae3159820b3f8935a35bcdaba1b23550c",
	"0.1.0/checkpoint2/shard-00000.safetensors": "8dbbd5256c0b9e0b3cc85ebbb9acedc1a8ddd815f0ad9d6fbadee44439347d78",
	"0.1.0/job.json":                            "70f4889d8fe22ab199276fe3b45c4de44a22da4f394b5c5994bde7270cf7a7b0",
	"0.1.0/job.yaml":                            "b9d218693a6077ddacdf27a0d33b68e13016af7e4e5f70657fe95f7b8d5a7a03",
	"0.1.0/lines.jsonl":                         "b154323728e4282ad962e7d7d60d36bb9f802ea9e7e3a64b8060c2c4eff679d2",
	"0.1.0/link.txt":                            "3bdeaf8bf964e450ec35cf918eaebe7e21cf7bd2e586e4b7785ba536420bd204",
	"0.1.0/run.jsonl":                           "4e7878e9cdccaa48b5465ec70ea3b571f507cd036f29f3c3fb433cf10fdbec76",
	"0.1.0/wire.txt":                            "6d650cbd0237ce8b95b667385946c4865731af39d42c47b104c89fb53babfd89",
}

func TestGoldenFilesAreUnchanged(t *testing.T) {
	found := map[string]string{}
	err := fs.WalkDir(os.DirFS("testdata"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join("testdata", path))
		found[path] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, sum := range golden {
		if found[path] != sum {
			t.Errorf("testdata/%s has changed: restore it; a format that changes gets a new folder", path)
		}
		delete(found, path)
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		t.Errorf("testdata/%s has no hash here: %q: %q", path, path, found[path])
	}
}

// TestRunLogs reads logs: all lines are known, and encoded again they have all fields and values of the golden file.
func TestRunLogs(t *testing.T) {
	for name, want := range map[string]int{"run.jsonl": 39, "lines.jsonl": 42} {
		text, err := os.ReadFile("testdata/0.1.0/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var again buffer
		w := runlog.NewWriter(&again)
		read, err := runlog.Read(bytes.NewReader(text), name, func(l runlog.Line) error {
			if r, ok := l.Entry.(*runlog.Record); ok {
				w.Record(l.T, r)
			} else {
				w.Write(l.T, l.Entry)
			}
			return nil
		})
		if err != nil || len(read.Unknown) != 0 || read.Cut {
			t.Errorf("%s: %+v, %v", name, read, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		old, now := bytes.Split(text, []byte("\n")), bytes.Split(again.Bytes(), []byte("\n"))
		if len(old) != want+1 || len(now) != want+1 {
			t.Errorf("%s: %d lines become %d, want %d", name, len(old)-1, len(now)-1, want)
			continue
		}
		for i := range want {
			var was, is map[string]any
			if err := errors.Join(json.Unmarshal(old[i], &was), json.Unmarshal(now[i], &is)); err != nil {
				t.Fatal(err)
			}
			for field, value := range was {
				if !reflect.DeepEqual(is[field], value) {
					t.Errorf("%s:%d: %s is %v, want %v", name, i+1, field, is[field], value)
				}
			}
		}
	}
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

// TestCheckpoints opens checkpoints of both formats and reads every vector.
func TestCheckpoints(t *testing.T) {
	for _, c := range []struct {
		name    string
		format  int
		version int64
		slots   []string
		buffers []uint32
		sums    []string
	}{
		{"checkpoint", 1, 8, []string{"exp_avg", "exp_avg_sq"}, nil, []string{"117f5b37f6042df5", "a690b7fe9f660bc7", "0c6f4ba68063746a"}},
		{"checkpoint2", 2, 8, []string{"momentum_buffer"}, []uint32{0x3f800000, 0, 7, 0}, []string{"8e628779e6a74ee0", "50c42327e0962468"}},
	} {
		ck, err := checkpoint.Open("testdata/0.1.0/" + c.name)
		if err != nil {
			t.Error(err)
			continue
		}
		m := ck.Manifest()
		if m.Format != c.format || m.Version != c.version || m.Program != "star 0.1.0" || !slices.Equal(ck.Slots(), c.slots) {
			t.Errorf("%s: format %d, version %d, program %q, slots %v", c.name, m.Format, m.Version, m.Program, ck.Slots())
		}
		params := make([]float32, m.Params)
		sums := []string{sum(params, ck.Params(params))}
		for _, s := range c.slots {
			sums = append(sums, sum(params, ck.SlotRange(s, 0, m.Params, params)))
		}
		if !slices.Equal(sums, c.sums) {
			t.Errorf("%s: parameters and slots are %q, want %q", c.name, sums, c.sums)
		}
		buffers := make([]float32, ck.BufferLen())
		if err := ck.Buffers(buffers); err != nil {
			t.Error(err)
		}
		for i, word := range c.buffers {
			if math.Float32bits(buffers[i]) != word {
				t.Errorf("%s: word %d of the buffers is %#x, want %#x", c.name, i, math.Float32bits(buffers[i]), word)
			}
		}
		for _, f := range m.More {
			if _, err := ck.More(f.Name); err != nil {
				t.Error(err)
			}
		}
	}
}

// sum is the start of the hash of a vector, or the error with which it was read.
func sum(v []float32, err error) string {
	if err != nil {
		return err.Error()
	}
	b, _ := binary.Append(nil, binary.LittleEndian, v)
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16]
}

// TestSettings loads a file with all settings: each has the value that the earlier release gave it.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile("testdata/0.1.0/job.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, role := range []settings.Role{settings.ForRun, settings.ForServer, settings.ForWorker} {
		var j settings.Job
		cmd := &cobra.Command{Use: "star", RunE: func(*cobra.Command, []string) error { return nil }}
		j.Bind(cmd, role)
		cmd.SetArgs([]string{"--config", "testdata/0.1.0/job.yaml"})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		warnings, err := j.Load(nil)
		if err != nil || len(warnings) != 0 {
			t.Fatalf("role %d: %v, warnings %q", role, err, warnings)
		}
		var out bytes.Buffer
		j.JSON = true
		if err := j.Print(&out); err != nil {
			t.Fatal(err)
		}
		var got map[string]struct{ Value any }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if name != "json" && !reflect.DeepEqual(got[name].Value, value) {
				t.Errorf("role %d: %s is %v, want %v", role, name, got[name].Value, value)
			}
		}
	}
}

// TestLink plays the program's side of a recorded link (">") against today's agent, which must send the recorded frames
// ("<"). Frames of a program that ends in other ways ("=") are parsed.
func TestLink(t *testing.T) {
	text, err := os.ReadFile("testdata/0.1.0/link.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := foreign.Pair()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	played := make(chan error, 1)
	go func() {
		defer nc.Close()
		played <- playProgram(nc, string(text))
	}()
	if err := agent(t.Context(), ours); err != nil {
		t.Error(err)
	}
	if err := <-played; err != nil {
		t.Error(err)
	}
}

// playProgram is the program's side.
func playProgram(c net.Conn, transcript string) error {
	n := 0
	for line := range strings.Lines(transcript) {
		n++
		words := strings.Fields(line)
		if len(words) != 3 || line[0] == '#' {
			continue
		}
		b, err := hex.DecodeString(words[2])
		if err != nil {
			return err
		}
		f, rest, err := foreign.Parse(b)
		if err != nil || len(rest) != 0 || f.Kind.String() != words[1] || !bytes.Equal(f.AppendTo(nil), b) {
			return fmt.Errorf("link.txt:%d: %v, %v", n, f.Kind, err)
		}
		switch words[0] {
		case ">":
			if _, err := c.Write(b); err != nil {
				return err
			}
		case "<":
			got, err := foreign.ReadFrame(c)
			if err != nil || !bytes.Equal(got.AppendTo(nil), b) {
				return fmt.Errorf("link.txt:%d: the agent sends %v %x (%v)", n, got.Kind, got.AppendTo(nil), err)
			}
		}
	}
	return nil
}

// agent calls the model as a worker does.
func agent(ctx context.Context, c *net.UnixConn) error {
	m, err := foreign.Open(ctx, c, foreign.Config{Begin: 30 * time.Second, Hang: 30 * time.Second, Stream: data.Stream{Seed: 1}})
	if err != nil {
		return err
	}
	defer m.Close()
	if n := len(m.Params()); n != 5 {
		return fmt.Errorf("%d parameters, want 5", n)
	}
	if n := len(m.Buffers()); n != 4 {
		return fmt.Errorf("%d words of buffers, want 4", n)
	}
	m.Joined(1, 4)
	m.Asks(func(context.Context) (*train.Experience, error) {
		return &train.Experience{Rule: "sgd", Steps: 1, Slots: map[string][]float32{"momentum_buffer": {1, 2, 3, 4, 5}}}, nil
	})
	for i := range 3 {
		var parts [][2]int
		batch := train.Batch{Samples: 2, Tokens: []int32{7, 3}, Start: int64(40 + 2*i)}
		loss, err := m.GradStream(ctx, m.Gradient(), batch, func(from, to int) { parts = append(parts, [2]int{from, to}) })
		want := [][2]int{{0, 5}}
		if i == 0 {
			want = [][2]int{{3, 5}, {0, 3}}
		}
		if err != nil || loss != 0.5 || !reflect.DeepEqual(parts, want) {
			return fmt.Errorf("gradient %d: loss %v, parts %v, %w", i, loss, parts, err)
		}
	}
	if err := m.Update(ctx, 42); err != nil {
		return err
	}
	if s, err := m.State(ctx); err != nil || string(s) != "state" {
		return fmt.Errorf("state %q, %w", s, err)
	}
	if err := m.SetState(ctx, []byte("other state")); err != nil {
		return err
	}
	r, err := m.Eval(ctx, train.Batch{Samples: 2, Tokens: []int32{0, 1}})
	if err != nil || r != (train.Result{LossSum: 1.5, Correct: 1, Count: 2}) {
		return fmt.Errorf("evaluation %+v, %w", r, err)
	}
	select {
	case why := <-m.Halts():
		if why != "enough" {
			return fmt.Errorf("halt: %q", why)
		}
	case <-time.After(30 * time.Second):
		return fmt.Errorf("no halt")
	}
	m.Stop(0, "the job is over")
	return nil
}
