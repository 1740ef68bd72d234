package sched

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rhythm writes a trace of the ten minutes from one to another: one job of 2 GPUs in each, nine in those of the
// afternoon, and none on Sundays; day 4 is a Sunday.
func rhythm(t *testing.T, from, to int, more string) string {
	var b strings.Builder
	b.WriteString("job_id,submit,gpus,duration\n")
	for i := from; i < to; i++ {
		n := 1
		if i%144 >= 72 && i%144 < 108 {
			n = 9
		}
		if i/144%7 == 4 {
			n = 0
		}
		for k := range n {
			fmt.Fprintf(&b, "%d-%d,%d,2,100\n", i, k, 600*i+60*k)
		}
	}
	b.WriteString(more)
	name := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(name, []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

// A rhythm of hours and days is learned: half of what the day before, or the last hour that is known, would be off by
// is not left.
func TestSubmissionsRhythm(t *testing.T) {
	if testing.Short() {
		t.Skip("arithmetic of one goroutine")
	}
	var says bytes.Buffer
	if err := predictSubmissions(io.Discard, &says, rhythm(t, 0, 28*144, ""), rhythm(t, 28*144, 35*144, "")); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(says.String()), "\n") {
		var what string
		var off, n, day, hour float64
		if _, err := fmt.Sscanf(line, "ebm: %s submitted in ten minutes, off by %f on average of %f (%f if as many as a day before were said, %f as", &what, &off, &n, &day, &hour); err != nil {
			t.Fatalf("line %d, %q: %v", i+1, line, err)
		}
		// of two days of the week all ten minutes are other than the day before
		if want := float64(i+1) * 2 * (108 + 36*9) / (7 * 144); math.Abs(day-want) > .01 {
			t.Errorf("%s: the day before is off by %v, want %v", what, day, want)
		}
		if !(off < day/2 && off < hour/2) {
			t.Errorf("%s: off by %v, want less than half of %v and %v", what, off, day, hour)
		}
	}
}

// What comes in ten minutes changes no forecast of any until an hour later: there it does.
func TestSubmissionsLookBack(t *testing.T) {
	if testing.Short() {
		t.Skip("arithmetic of one goroutine")
	}
	train := rhythm(t, 0, 10*144, "")
	forecasts := func(more string) (lines []string) {
		var out bytes.Buffer
		if err := predictSubmissions(&out, io.Discard, train, rhythm(t, 10*144, 11*144, more)); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
			cells := strings.Split(line, ",")
			lines = append(lines, cells[0]+" "+cells[3]+" "+cells[4])
		}
		return lines
	}
	const changed = 50
	var more strings.Builder
	for k := range 40 {
		fmt.Fprintf(&more, "x%d,%d,8,100\n", k, 600*(10*144+changed))
	}
	before, after := forecasts(""), forecasts(more.String())
	first := -1
	for i := range before {
		if before[i] != after[i] && first < 0 {
			first = i
		}
	}
	if len(before) != 144 || len(after) != 144 || first != changed+6 {
		t.Errorf("%d and %d forecasts, of which number %d is the first that 40 jobs in number %d change: want 144, and number %d", len(before), len(after), first, changed, changed+6)
	}
}
