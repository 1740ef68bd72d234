package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"star/cmd/internal/console"
)

// The traceback of one mistake in a script that all workers run is shown once, and as a whole.
func TestTracebackOnce(t *testing.T) {
	traceback := func(line string) string {
		return "Traceback (most recent call last):\n  File \"train.py\", line " + line + ", in <module>\n    step()\n\nValueError: bad sample\n"
	}
	for _, c := range []struct{ name, worker0, worker1, want string }{
		{"lines", "a\n\n b\nc", "", "worker 0 | a\nworker 0 |  b\nworker 0 | c\n"},
		{"one", traceback("3") + "star: the program failed\n", "", `worker 0 | Traceback (most recent call last):
worker 0 |   File "train.py", line 3, in <module>
worker 0 |     step()
worker 0 | ValueError: bad sample
worker 0 | star: the program failed
`},
		{"the same", traceback("3"), "x\n" + traceback("3"), `worker 0 | Traceback (most recent call last):
worker 0 |   File "train.py", line 3, in <module>
worker 0 |     step()
worker 0 | ValueError: bad sample
worker 1 | x
worker 1 | ValueError: bad sample (the traceback is that of worker 0)
`},
		{"another", traceback("3"), traceback("4"), `worker 0 | Traceback (most recent call last):
worker 0 |   File "train.py", line 3, in <module>
worker 0 |     step()
worker 0 | ValueError: bad sample
worker 1 | Traceback (most recent call last):
worker 1 |   File "train.py", line 4, in <module>
worker 1 |     step()
worker 1 | ValueError: bad sample
`},
		{"cut short", "Traceback (most recent call last):\n  File", "", "worker 0 | Traceback (most recent call last):\nworker 0 |   File\n"},
		{"two", "Traceback (most recent call last):\n  a\nTraceback (most recent call last):\n  b\nE\n", "",
			"worker 0 | Traceback (most recent call last):\nworker 0 |   a\nworker 0 | Traceback (most recent call last):\nworker 0 |   b\nworker 0 | E\n"},
	} {
		var out bytes.Buffer
		s := console.NewScreenOn(&out, "run", 0)
		for i, text := range []string{c.worker0, c.worker1} {
			new(speech).read(strings.NewReader(text), func(block []string) { s.Relay(fmt.Sprint("worker ", i), block) })
		}
		if out.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", c.name, out.String(), c.want)
		}
	}
}

// A traceback is shown after a while if its rest does not come, and what follows is shown, too.
func TestTracebackStalls(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	blocks, over := make(chan string, 10), make(chan bool)
	go func() {
		new(speech).read(r, func(b []string) { blocks <- strings.Join(b, "\n") })
		close(over)
	}()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-blocks:
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing, want %q", want)
		}
	}
	io.WriteString(w, "Traceback (most recent call last):\n  File \"a\", li")
	next("Traceback (most recent call last):")
	io.WriteString(w, "ne 3\n")
	next("  File \"a\", line 3")
	io.WriteString(w, "E\n")
	next("E")
	w.Close()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("it goes on when all is read")
	}
}

// The last words of a child are the reason that star run ends with.
func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"a\nValueError: b\n":             "ValueError: b",
		"star: --lr: wrong\n\n":          "--lr: wrong",
		"star-chaos: --lr: wrong\n":      "--lr: wrong",
		`{"msg":"star: wrong","exit":2}`: "wrong",
		"{no JSON}\n":                    "{no JSON}",
	} {
		var s speech
		s.read(strings.NewReader(text), func([]string) {})
		if got := s.words(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
