package parts

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star"
	"star/runlog"
)

type keep struct{ bytes.Buffer }

func (*keep) Close() error { return nil }

// logLines are lines of a long job.
func logLines(tb testing.TB, n int) (lines []string) {
	tb.Helper()
	var text keep
	w := runlog.NewWriter(&text)
	line := func(t time.Duration, e runlog.Entry) {
		text.Reset()
		w.Write(t, e)
		if err := w.Flush(); err != nil {
			tb.Fatal(err)
		}
		lines = append(lines, text.String())
	}
	line(0, runlog.Start{Format: 1, Program: "star", Config: []byte("{}")})
	line(0, runlog.Train{Workers: 4, Shards: 1, Limit: 1})
	for i := range int64(n) {
		t := time.Duration(i) * time.Millisecond
		r := star.Record{Worker: star.Worker(i % 4), Step: i, Basis: i, At: t, Loss: 1 / float64(i+1), Norm2: float64(i)}
		line(t, runlog.Record{Record: r, Start: i})
		line(t, runlog.Fire{Seq: i + 1, Version: i + 1, Workers: []star.Worker{r.Worker}, Staleness: []int64{0}, Samples: 8 * (i + 1)})
		if i%50 == 0 {
			line(t, runlog.Eval{Eval: i, Loss: 1})
		}
	}
	return lines
}

func create(tb testing.TB, path string) *os.File {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// stream is what Open reads.
func stream(tb testing.TB, path string) string {
	tb.Helper()
	f, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// A rotated log that has room for everything is the plain log to the byte, whatever is written at once, also for a
// reader that follows it.
func TestRotatedIsPlain(t *testing.T) {
	lines := logLines(t, 6000)
	want := strings.Join(lines, "")
	path := filepath.Join(t.TempDir(), "run.jsonl")
	r := NewRotating(create(t, path), path, 64<<20)
	r.part = 100 << 10
	rng := rand.New(rand.NewPCG(1, 2))
	follow, err := Follow(path)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	var followed bytes.Buffer
	for rest := want; rest != ""; {
		n := min(1+rng.IntN(30<<10), len(rest))
		if _, err := io.WriteString(r, rest[:n]); err != nil {
			t.Fatal(err)
		}
		if rest = rest[n:]; rng.IntN(8) == 0 {
			if _, err := io.Copy(&followed, follow); err != nil {
				t.Fatal(err)
			}
			if r.busy != nil { // a part grows while the one before is compressed, for as long as a busy disk takes
				err := <-r.busy
				r.busy <- err
			}
		}
		if rng.IntN(20) == 0 && !strings.HasPrefix(want, stream(t, path)) {
			t.Fatal("what is read in the middle is not the beginning of the log")
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&followed, follow); err != nil {
		t.Fatal(err)
	}
	if r.next < 4 {
		t.Errorf("%d parts", r.next)
	}
	if got := stream(t, path); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if followed.String() != want {
		t.Errorf("followed: %d bytes, want %d", followed.Len(), len(want))
	}
	to := filepath.Join(filepath.Dir(path), "run.1.jsonl")
	if n, err := RenameParts(path, to); err != nil || n != r.next-1 || os.Rename(path, to) != nil {
		t.Fatal(n, err)
	}
	if got := stream(t, to); got != want {
		t.Error("another name")
	}
}

// Beyond its bound a log has every line but the records, firings and noise of its oldest parts, and says how many
// and of when these are.
func TestThinned(t *testing.T) {
	lines := logLines(t, 40000)
	path := filepath.Join(t.TempDir(), "run.jsonl")
	const most = LeastMax
	r := NewRotating(create(t, path), path, most)
	for i, line := range lines {
		if _, err := io.WriteString(r, line); err != nil {
			t.Fatal(err)
		}
		if r.size >= r.part { // without haste: the bound is of a compressor that keeps up
			for !r.ready() {
				time.Sleep(time.Millisecond)
			}
		}
		if i%5000 == 0 {
			if n := size(t, path); n > most {
				t.Errorf("%d bytes after %d lines, at most %d", n, i, most)
			}
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if n := size(t, path); n > most || n < most/8 {
		t.Errorf("%d bytes, at most %d", n, most)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var records, evals int64
	first := time.Duration(-1)
	c, err := runlog.Read(f, path, func(l runlog.Line) error {
		switch l.Entry.(type) {
		case runlog.Record:
			if records++; first < 0 {
				first = l.T
			}
		case runlog.Eval:
			evals++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m := c.Missing
	if m.Records == 0 || m.Records+records != 40000 || m.From != 0 || m.To.Duration() >= first || first-m.To.Duration() > 2*time.Millisecond || evals != 800 {
		t.Errorf("%d records from %v on, %d evaluations, missing %+v", records, first, evals, m)
	}
}

// size is what all files of a log take.
func size(tb testing.TB, path string) (n int64) {
	tb.Helper()
	names, _ := filepath.Glob(path + "*")
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			n += info.Size()
		}
	}
	return n
}

// A process may end between any two steps of a rotation: the log is whole then, and the parts of one that goes on
// are the same.
func TestRotationStopsAnywhere(t *testing.T) {
	lines := logLines(t, 300)
	text := func(from, to int) string { return strings.Join(lines[from:to], "") }
	n := len(lines) / 4
	want := strings.Join(lines, "")
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	zip := func(dir, name string, from, to int, thinned ...int) {
		t.Helper()
		var ps []part
		for i := from; i <= to; i++ {
			p := filepath.Join(dir, fmt.Sprintf("tmp%d", i))
			write(dir, filepath.Base(p), text((i-1)*n, i*n))
			ps = append(ps, part{path: p})
		}
		var with func(io.Writer, io.Reader) error
		if len(thinned) > 0 {
			with = runlog.Thin
		}
		if err := replace(filepath.Join(dir, name), ps, with); err != nil {
			t.Fatal(err)
		}
	}
	full := func(dir string) { // three parts, the last of them plain, and the part being written now
		zip(dir, "run.jsonl.000001.gz", 1, 1)
		zip(dir, "run.jsonl.000002.gz", 2, 2)
		write(dir, "run.jsonl.000003", text(2*n, 3*n))
		write(dir, "run.jsonl", text(3*n, len(lines)))
	}
	for name, c := range map[string]struct {
		make  func(dir string)
		whole bool
	}{
		"full": {full, true},
		"renamed, and nothing new": {func(dir string) {
			full(dir)
			os.Rename(filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "run.jsonl.000004"))
		}, true},
		"a part is being compressed":  {func(dir string) { full(dir); write(dir, ".star-1", "half") }, true},
		"compressed, and still there": {func(dir string) { full(dir); zip(dir, "run.jsonl.000003.gz", 3, 3) }, true},
		"thinned, and still there":    {func(dir string) { full(dir); zip(dir, "run.jsonl.000001-000001.gz", 1, 1, 1) }, false},
		"thinned twice, and still there": {func(dir string) {
			full(dir)
			zip(dir, "run.jsonl.000001-000001.gz", 1, 1, 1)
			zip(dir, "run.jsonl.000001-000002.gz", 1, 2, 1)
		}, false},
		"another log's": {func(dir string) {
			full(dir)
			write(dir, "run.jsonl.bak", "x")
			write(dir, "run.jsonl.7", "x")
			write(dir, "run.1.jsonl.000001", "x")
		}, true},
	} {
		dir := t.TempDir()
		c.make(dir)
		path := filepath.Join(dir, "run.jsonl")
		got := stream(t, path)
		if (got == want) != c.whole || !strings.HasPrefix(got, lines[0]) || !strings.HasSuffix(got, text(3*n, len(lines))) {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(want))
		}
		if _, err := runlog.Read(strings.NewReader(got), name, func(runlog.Line) error { return nil }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := shrink(path, 1<<30); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if _, err := os.Stat(path); err == nil && stream(t, path) != got {
			t.Errorf("%s: another log once it goes on", name)
		}
		if _, old, err := partsOf(path); err != nil || len(old) > 0 {
			t.Errorf("%s: %v, %v are left", name, old, err)
		}
	}
}
