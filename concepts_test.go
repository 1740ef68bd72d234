package star_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"star"
	"star/modes"
)

var writeTimelines = flag.Bool("write-timelines", false, "write the timelines of docs/concepts.md")

// TestConcepts plays the timelines of docs/concepts.md with the Barrier.
// After a change run go test . -run TestConcepts -write-timelines.
func TestConcepts(t *testing.T) {
	const page = "docs/concepts.md"
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	// A timeline's first line has its mode and the times of an iteration.
	pictures := regexp.MustCompile("(?m)^```\n(\\S+) +times ([0-9 ]+)\n(?:worker .*\n)+updates.*\n```")
	played := 0
	text := pictures.ReplaceAllStringFunc(string(old), func(picture string) string {
		played++
		m := pictures.FindStringSubmatch(picture)
		var took []int
		for _, f := range strings.Fields(m[2]) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			took = append(took, n)
		}
		return "```\n" + m[1] + strings.Repeat(" ", max(1, 10-len(m[1]))) + "times " + m[2] + "\n" + timeline(t, m[1], took, 37) + "```"
	})
	if played < 6 {
		t.Errorf("%s has %d timelines", page, played)
	}
	switch {
	case text == string(old):
	case *writeTimelines:
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("timelines of %s are out of date: run go test . -run TestConcepts -write-timelines", page)
	}
}

// timeline plays a mode: = computes, > pushes a gradient that is applied, x one that is dropped, a dot waits, ^ marks
// updates.
func timeline(t *testing.T, mode string, took []int, until int) string {
	plan, err := modes.Parse(mode, len(took))
	if err != nil {
		t.Fatal(err)
	}
	barrier := modes.NewBarrier(plan, len(took), 0)
	begun, rows := make([]int, len(took)), make([][]byte, len(took))
	var updates []byte
	for now := range until {
		mark := byte(' ')
		for w, length := range took {
			if begun[w]+length != now {
				continue
			}
			for _, f := range barrier.Arrive(star.Worker(w)) {
				if len(f.Workers) > 0 {
					mark = '^'
				}
				for _, r := range slices.Collect(f.Released()) {
					begun[r] = now
				}
				for _, d := range f.Dropped {
					rows[d][now-1] = 'x'
				}
			}
		}
		updates = append(updates, mark)
		for w, length := range took {
			switch at := now - begun[w]; {
			case at < length-1:
				rows[w] = append(rows[w], '=')
			case at == length-1:
				rows[w] = append(rows[w], '>')
			default:
				rows[w] = append(rows[w], '.')
			}
		}
	}
	var b strings.Builder
	for w, row := range rows {
		b.WriteString("worker " + strconv.Itoa(w) + "  " + string(row) + "\n")
	}
	b.WriteString(strings.TrimRight("updates   "+string(updates), " ") + "\n")
	return b.String()
}
