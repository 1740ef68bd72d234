package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The logs of a job of one worker with batches of 10: what the first coordinator wrote, and what the second one did.
const (
	firstTerm = `{"type":"start","format":1}
{"type":"train","t":1,"workers":1,"shards":1,"version":0,"limit":50}
{"type":"record","t":2,"worker":0,"step":0,"start":0,"samples":10,"loss":1}
{"type":"fire","t":2,"seq":1,"version":1,"workers":[0],"staleness":[0],"samples":10}
{"type":"record","t":3,"worker":0,"step":1,"start":10,"samples":10,"loss":1}
{"type":"fire","t":3,"seq":2,"version":2,"workers":[0],"staleness":[0],"samples":20}
{"type":"record","t":4,"worker":0,"step":2,"basis":2,"start":20,"samples":10,"loss":1}
`
	heard   = `{"type":"recall","t":6,"seq":1,"version":2,"workers":[0],"samples":20}` + "\n"
	unheard = `{"type":"fire","t":4,"seq":3,"version":3,"workers":[0],"staleness":[0],"samples":30}` + "\n"
	third   = `{"type":"recall","t":6,"seq":1,"version":3,"workers":[0],"samples":30}` + "\n"

	begin      = `{"type":"start","format":1}` + "\n" + `{"type":"train","t":6,"workers":1,"shards":1,"version":2,"limit":50}` + "\n"
	secondTerm = `{"type":"record","t":7,"worker":0,"step":4,"start":20,"samples":10,"loss":1}
{"type":"fire","t":7,"seq":3,"version":3,"workers":[0],"staleness":[0],"samples":30}
`
	rest = `{"type":"record","t":8,"worker":0,"step":5,"start":30,"samples":20,"loss":1}
{"type":"fire","t":8,"seq":4,"version":4,"workers":[0],"staleness":[0],"samples":50}
{"type":"summary","samples":50,"updates":1,"wall_s":1}
`
)

func term(version string) string {
	return `{"type":"term","t":6,"term":2,"version":` + version + `,"waited":0}` + "\n"
}

func TestReigns(t *testing.T) {
	for _, c := range []struct {
		name   string
		logs   []string
		broken []string // words of what is broken; nil: nothing is
		pauses []time.Duration
	}{
		{"what was not fired is done again", []string{firstTerm, begin + heard + term("2") + secondTerm + rest}, nil, []time.Duration{4 * time.Second}},
		{"an update that nobody heard of does not count", []string{firstTerm + unheard, begin + heard + term("2") + secondTerm + rest}, nil, []time.Duration{4 * time.Second}},
		{"one that only shards tell of does", []string{firstTerm, begin + heard + third + term("3") + rest}, nil, []time.Duration{5 * time.Second}},
		{"one that was heard of is made again", []string{firstTerm + unheard, begin + heard + third + term("3") + secondTerm + rest}, []string{"version 3 follows version 3"}, nil},
		{"an update is lost", []string{firstTerm, begin + term("1") + secondTerm + rest}, []string{"computed with version 2, but the next coordinator takes over at version 1"}, nil},
		{"samples are done twice", []string{firstTerm + unheard, begin + third + term("3") + strings.ReplaceAll(rest, `"start":30`, `"start":20`)}, []string{"applied twice"}, nil},
		{"a leadership that came to nothing", []string{firstTerm, begin, begin + term("2") + secondTerm + rest}, nil, []time.Duration{4 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var logs [][]byte
			var names []string
			for i, l := range c.logs {
				logs, names = append(logs, []byte(l)), append(names, []string{"run", "two", "three"}[i])
			}
			l := ReadTerms(logs, names)
			var bad []string
			for _, v := range Judge([]*Attempt{l}, []int64{4}, nil, 0, time.Minute) {
				if !v.OK {
					bad = append(bad, v.Detail)
				}
			}
			all := strings.Join(bad, "\n")
			if (len(bad) > 0) != (c.broken != nil) {
				t.Errorf("broken: %q", all)
			}
			for _, word := range c.broken {
				if !strings.Contains(all+strings.Join(l.problems, "\n"), word) {
					t.Errorf("%q does not speak of %q", all, word)
				}
			}
			if c.pauses != nil && !slices.Equal(l.Pauses, c.pauses) {
				t.Errorf("pauses %v, want %v", l.Pauses, c.pauses)
			}
		})
	}
}
