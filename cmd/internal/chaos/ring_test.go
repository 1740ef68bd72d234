package chaos

import (
	"strings"
	"testing"
	"time"
)

// The log of an all-reduce of three workers with batches of 4. Worker 2 is lost with the second round: worker 0 has
// made it, so it counts, and worker 1 has no record of it.
const ringLog = `{"type":"start","format":1}
{"type":"train","t":1,"workers":3,"shards":0,"limit":28,"version":0}
{"type":"record","t":1.1,"worker":0,"step":0,"samples":4,"loss":2}
{"type":"record","t":1.1,"worker":1,"step":0,"samples":4,"loss":2}
{"type":"record","t":1.1,"worker":2,"step":0,"samples":4,"loss":2}
{"type":"fire","t":1.2,"seq":1,"version":1,"workers":[0,1,2],"staleness":[0,0,0],"pieces":[0,4,4,4,8,4],"samples":12}
{"type":"record","t":1.3,"worker":0,"step":1,"samples":4,"loss":2}
{"type":"leave","t":1.4,"worker":2}
{"type":"fire","t":1.5,"seq":2,"version":2,"workers":[0,1],"staleness":[0,0],"pieces":[12,4,16,4],"samples":20}
{"type":"record","t":1.6,"worker":0,"step":2,"samples":4,"loss":2}
{"type":"record","t":1.6,"worker":1,"step":1,"samples":4,"loss":2}
{"type":"fire","t":1.7,"seq":3,"version":3,"workers":[0,1],"staleness":[0,0],"pieces":[20,4,24,4],"samples":28}
{"type":"eval","t":1.8,"samples":28,"final":true,"alike":2}
{"type":"summary","samples":28,"wasted_samples":0,"updates":1,"wall_s":1}
`

// The next coordinator of a ring begins with what its members remember, and learns of later versions when they form a
// ring.
func TestReignsOfARing(t *testing.T) {
	const first = `{"type":"start","format":1}
{"type":"train","t":1,"workers":2,"shards":0,"limit":24,"version":0}
{"type":"record","t":1.1,"worker":0,"step":0,"basis":0,"samples":4,"loss":2}
{"type":"record","t":1.1,"worker":1,"step":0,"basis":0,"samples":4,"loss":2}
{"type":"fire","t":1.2,"seq":1,"version":1,"workers":[0,1],"staleness":[0,0],"pieces":[0,4,4,4],"samples":8}
{"type":"record","t":1.3,"worker":0,"step":1,"basis":1,"samples":4,"loss":2}
{"type":"record","t":1.3,"worker":1,"step":1,"basis":1,"samples":4,"loss":2}
{"type":"fire","t":1.4,"seq":2,"version":2,"workers":[0,1],"staleness":[0,0],"pieces":[8,4,12,4],"samples":16}
{"type":"record","t":1.5,"worker":0,"step":2,"basis":2,"samples":4,"loss":2}
`
	const second = `{"type":"start","format":1}
{"type":"train","t":4,"workers":2,"shards":0,"limit":24,"version":1}
{"type":"term","t":4,"term":2,"version":1,"seq":1,"samples":8,"waited":0}
{"type":"fire","t":4.1,"seq":2,"version":2,"workers":[0,1],"staleness":[0,0],"pieces":[8,4,12,4],"samples":16}
{"type":"record","t":4.2,"worker":0,"step":3,"basis":2,"samples":4,"loss":2}
{"type":"record","t":4.2,"worker":1,"step":3,"basis":2,"samples":4,"loss":2}
{"type":"fire","t":4.3,"seq":3,"version":3,"workers":[0,1],"staleness":[0,0],"pieces":[16,4,20,4],"samples":24}
{"type":"eval","t":4.4,"samples":28,"final":true,"alike":2}
{"type":"summary","samples":24,"wasted_samples":0,"updates":1,"wall_s":1}
`
	l := ReadTerms([][]byte{[]byte(first), []byte(second)}, []string{"run", "two"})
	for _, v := range Judge([]*Attempt{l}, []int64{3}, nil, 0, time.Minute) {
		if !v.OK {
			t.Errorf("%s: %s", v.Name, v.Detail)
		}
	}
}

// A program that makes several updates of each batch (session.Enrolment.Turns) has the samples of a batch counted in
// the first: the pieces of the others begin where its own do, and are empty.
func TestJudgeTurns(t *testing.T) {
	const last = `{"type":"fire","t":1.7,"seq":3,"version":3,"workers":[0,1],"staleness":[0,0],"pieces":[20,4,24,4],"samples":28}`
	again := strings.NewReplacer(`"seq":3,"version":3`, `"seq":4,"version":4`, "[20,4,24,4]", "[20,0,24,0]").Replace(last)
	l := Read([]byte(strings.Replace(ringLog, last, last+"\n"+again, 1)), "run")
	if len(l.Updates) != 4 {
		t.Fatalf("%d updates", len(l.Updates))
	}
	for _, v := range Judge([]*Attempt{l}, []int64{4}, nil, 0, time.Minute) {
		if !v.OK {
			t.Errorf("%s: %s", v.Name, v.Detail)
		}
	}
}

func TestJudgeRing(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"all is well", "", "", ""},
		{"a piece twice", `[20,4,24,4]`, `[20,4,20,4]`, "every sample once: run: samples 20 to 23 were applied twice (and 1 more)"},
		{"a piece too few", `"pieces":[12,4,16,4],`, `"pieces":[12,4],`, "one lineage of versions: run:9: the update of 2 workers has 2 numbers of where their samples are (and 1 more)"},
		{"no pieces", `"pieces":[12,4,16,4],`, ``, "one lineage of versions: run:9: the update of 2 workers has 0 numbers of where their samples are (and 1 more)"},
		{"a version too many", `"seq":2,"version":2`, `"seq":2,"version":3`, "one lineage of versions: run:9: version 3 follows version 1 (and 1 more)"},
		{"nobody compared", `{"type":"eval","t":1.8,"samples":28,"final":true,"alike":2}` + "\n", "", "the same parameters, to the last bit, on all ranks: they were not compared at the end"},
		{"an evaluation before", `"final":true,`, "", "the same parameters, to the last bit, on all ranks: they were not compared at the end"},
		{"one compared", `"alike":2`, `"alike":1`, "the same parameters, to the last bit, on all ranks: at the end only 1 of 2 were compared"},
		{"a loss", `"step":2,"samples":4,"loss":2`, `"step":2,"samples":4,"loss":null`, "finite losses: 1 losses are not finite"},
		{"a ring of one at last", `"workers":[0,1],"staleness":[0,0],"pieces":[20,4,24,4],"samples":28}` + "\n" + `{"type":"eval","t":1.8,"samples":28,"final":true,"alike":2}`,
			`"workers":[0],"staleness":[0],"pieces":[20,8],"samples":28}` + "\n" + `{"type":"eval","t":1.8,"samples":28,"final":true,"alike":1}`, ""},
		{"one was left, and gone before the end", `{"type":"eval","t":1.8,"samples":28,"final":true,"alike":2}`, `{"type":"leave","t":1.8,"worker":1}` + "\n" + `{"type":"eval","t":1.8,"samples":28,"final":true,"alike":1}`, ""},
	} {
		text := strings.Replace(ringLog, c.old, c.new, 1)
		if c.old != "" && text == ringLog {
			t.Fatalf("no %q in the log", c.old)
		}
		l := Read([]byte(text), "run")
		var got []string
		all := Judge([]*Attempt{l}, []int64{3}, nil, 0, time.Minute)
		for _, v := range all {
			if !v.OK {
				got = append(got, v.Name+": "+v.Detail)
			}
		}
		if first := strings.Join(got, "\n"); len(all) != 7 || !strings.HasPrefix(first, c.want) || c.want == "" && first != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
