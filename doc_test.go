package star_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"star"
	"star/modes"
)

// TestTimeline plays the timelines of doc.go with the Barrier.
func TestTimeline(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	pictures := regexp.MustCompile(`(?s)\n// Mode (\S+):[^\n]*\n//\n//\ttime [^\n]*\n((?://\t[^\n]*\n)+)`).FindAllStringSubmatch(string(page), -1)
	if len(pictures) != 2 {
		t.Fatalf("doc.go has %d timelines, want 2", len(pictures))
	}
	iteration := []int{5, 6, 10}
	for _, p := range pictures {
		plan, err := modes.Parse(p[1], len(iteration))
		if err != nil {
			t.Fatal(err)
		}
		barrier := modes.NewBarrier(plan, len(iteration), 0)
		begun, rows, updates := make([]int, len(iteration)), make([]string, len(iteration)), ""
		for now := range 21 {
			released := map[star.Worker]bool{}
			mark := " "
			for w, took := range iteration {
				if begun[w]+took != now {
					continue
				}
				for _, f := range barrier.Arrive(star.Worker(w)) {
					for _, r := range slices.Collect(f.Released()) {
						released[r] = true
					}
					mark = fmt.Sprint(f.Version)
				}
			}
			updates += mark
			for w, took := range iteration {
				if released[star.Worker(w)] {
					begun[w] = now
				}
				switch at := now - begun[w]; {
				case at == 0:
					rows[w] += "C"
				case at < took-1:
					rows[w] += "c"
				case at == took-1:
					rows[w] += ">"
				default:
					rows[w] += "."
				}
			}
		}
		want := ""
		for w, row := range rows {
			want += fmt.Sprintf("//\tworker %d  %s\n", w, row)
		}
		want += strings.TrimRight("//\tupdates   "+updates, " ") + "\n"
		if p[2] != want {
			t.Errorf("mode %s: doc.go has\n%swant\n%s", p[1], p[2], want)
		}
	}
}
