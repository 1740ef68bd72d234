package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lines of an attempt of two workers with batches of 4 that ends well, 16 samples long.
var good = []string{
	`{"type":"start","format":1}`, `{"type":"join","t":0,"worker":0}`, `{"type":"join","t":0,"worker":1}`,
	`{"type":"train","t":1,"workers":2,"shards":1,"limit":16,"version":0}`,
	`{"type":"record","t":1.1,"worker":0,"step":0,"basis":0,"start":0,"samples":4,"loss":2}`,
	`{"type":"record","t":1.2,"worker":1,"step":0,"basis":0,"start":4,"samples":4,"loss":2}`,
	`{"type":"fire","t":1.2,"seq":1,"version":1,"workers":[0,1],"staleness":[0,0],"samples":8}`,
	`{"type":"record","t":1.3,"worker":1,"step":1,"basis":0,"start":12,"samples":4,"loss":2}`,
	`{"type":"leave","t":1.4,"worker":1,"start":12,"count":4}`,
	`{"type":"record","t":1.5,"worker":0,"step":1,"basis":0,"start":8,"samples":4,"loss":2}`,
	`{"type":"fire","t":1.5,"seq":2,"version":2,"workers":[0],"staleness":[0],"samples":12}`,
	`{"type":"join","t":1.6,"worker":1}`,
	`{"type":"record","t":1.7,"worker":1,"step":2,"basis":0,"start":12,"samples":4,"loss":2}`,
	`{"type":"fire","t":2.7,"seq":3,"version":3,"workers":[1],"staleness":[0],"samples":16}`,
	`{"type":"summary","samples":16,"wasted_samples":0,"updates":1,"wall_s":1}`,
}

// dropped is one in which a gradient is thrown away, and no update comes of it.
var dropped = []string{
	`{"type":"start","format":1}`, `{"type":"train","t":1,"workers":1,"shards":1,"limit":8,"version":0}`,
	`{"type":"record","t":1.1,"worker":0,"step":0,"basis":0,"start":0,"samples":4,"loss":2}`,
	`{"type":"fire","t":1.2,"seq":1,"version":0,"workers":null,"staleness":null,"dropped":[0],"samples":0}`,
	`{"type":"record","t":1.3,"worker":0,"step":1,"basis":0,"start":4,"samples":4,"loss":2}`,
	`{"type":"fire","t":1.4,"seq":2,"version":1,"workers":[0],"staleness":[0],"samples":4}`,
	`{"type":"summary","samples":4,"wasted_samples":4,"updates":1,"wall_s":1}`,
}

// What a log shows that must not be is found, and nothing else.
func TestJudge(t *testing.T) {
	change := func(pairs ...string) []string {
		text := strings.Join(good, "\n")
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(text, pairs[i]) {
				t.Fatalf("no %q in the log", pairs[i])
			}
			text = strings.Replace(text, pairs[i], pairs[i+1], 1)
		}
		return strings.Split(text, "\n")
	}
	second := []string{`{"type":"start","format":1}`, `{"type":"train","t":1,"workers":2,"shards":1,"limit":16,"version":2}`,
		`{"type":"record","t":1.1,"worker":0,"step":0,"basis":0,"start":12,"samples":4,"loss":2}`,
		`{"type":"fire","t":1.2,"seq":1,"version":3,"workers":[0],"staleness":[0],"samples":16}`, `{"type":"summary","samples":4,"wasted_samples":0,"updates":1,"wall_s":1}`}
	for _, c := range []struct {
		name     string
		attempts [][]string
		saved    []int64
		bad      []string
		exit     int
		want     string // "invariant: detail" of the one that is broken; empty: none
	}{
		{"nothing", [][]string{good}, []int64{3}, nil, 0, ""},
		{"two lives", [][]string{good[:11], second}, []int64{2, 3}, nil, 0, ""},
		{"a life that never began between them", [][]string{good[:11], good[:1], second}, []int64{2, 3}, nil, 0, ""},
		{"a line cut off", [][]string{append(append([]string{}, good[:11]...), `{"type":"rec`), second}, []int64{2, 3}, nil, 0, ""},
		{"a version too many", [][]string{change(`"seq":2,"version":2`, `"seq":2,"version":3`)}, []int64{3}, nil, 0, "one lineage of versions: 0:11: version 3 follows version 1 (and 1 more)"},
		{"a version twice", [][]string{change(`"seq":2,"version":2`, `"seq":2,"version":1`)}, []int64{3}, nil, 0, "one lineage of versions: 0:11: version 1 follows version 1 (and 1 more)"},
		{"a life that begins too high", [][]string{good[:7], second}, []int64{3}, nil, 0, "one lineage of versions: 1 begins with version 2, and the lives before came only to 1"},
		{"samples not counted", [][]string{change(`"workers":[0],"staleness":[0],"samples":12`, `"workers":[0],"staleness":[0],"samples":8`)}, []int64{3}, nil, 0, "one lineage of versions: 0:11: 8 samples are applied after the update, its gradients make it 12 (and 1 more)"},
		{"a gradient from nowhere", [][]string{change(`"workers":[0],"staleness":[0],"samples":12`, `"workers":[0,1],"staleness":[0,0],"samples":12`)}, []int64{3}, nil, 0, "one lineage of versions: 0:11: the update uses a gradient of worker 1 without a record"},
		{"a step before its time", [][]string{change(`"leave","t":1.4,"worker":1`, `"leave","t":1.4,"worker":0`)}, []int64{3}, nil, 0, "one lineage of versions: 0:13: worker 1 sent step 2 while its step 1 was not used or dropped"},
		{"samples twice", [][]string{change(`"step":2,"basis":0,"start":12`, `"step":2,"basis":0,"start":8`)}, []int64{3}, nil, 0, "every sample once: 0: samples 8 to 11 were applied twice (and 1 more)"},
		{"a stall", [][]string{change(`"t":2.7`, `"t":42.7`)}, []int64{3}, nil, 0, "no stall: 0: no update for 41.2s from 1.5s on"},
		{"a loss", [][]string{change(`"start":8,"samples":4,"loss":2`, `"start":8,"samples":4,"loss":null`)}, []int64{3}, nil, 0, "finite losses: 1 losses are not finite"},
		{"an exit code", [][]string{good}, []int64{3}, nil, 69, "ended: exit code 69"},
		{"no end", [][]string{good[:14]}, []int64{3}, nil, 0, "ended: exit code 0, and the run log does not come to its end"},
		{"a summary that is wrong", [][]string{change(`"samples":16,"wasted`, `"samples":12,"wasted`)}, []int64{3}, nil, 0, "one lineage of versions: 0:15: the summary says 12 samples, the updates 16"},
		{"an end too early", [][]string{append(append([]string{}, good[:11]...), `{"type":"summary","samples":12,"wasted_samples":0,"updates":1,"wall_s":1}`)}, []int64{2}, nil, 0, "ended: 12 samples applied and 0 dropped, of 16"},
		{"no checkpoint", [][]string{good}, nil, nil, 0, "checkpoints load: none can be loaded"},
		{"an old checkpoint", [][]string{good}, []int64{2}, nil, 0, "checkpoints load: the last one is of version 2, the job ended at 3"},
		{"a broken checkpoint", [][]string{good}, []int64{3}, []string{"ckpt: checksum"}, 0, "checkpoints load: ckpt: checksum"},
		{"no run log", [][]string{{"hello"}}, []int64{3}, nil, 69, "ended: exit code 69\none lineage of versions: 0:1: not a line of a run log: invalid character 'h' looking for beginning of value"},
		{"a log that is damaged", [][]string{change(`"seq":3`, `"seq":2`)}, []int64{2}, nil, 0,
			"ended: exit code 0, and the run log does not come to its end\none lineage of versions: 0:14: fire: seq is 2, after 2 in line 11: want each firing once, in order"},
		{"no log", nil, nil, nil, 0, "ended: no run log"},
		{"a gradient is dropped", [][]string{dropped}, []int64{1}, nil, 0, ""},
		{"a log with a gap", [][]string{change(`{"type":"fire","t":1.5,`, `{"type":"gap","t":0.2,"until":1.4,"records":3,"fires":1,"noises":0,"version":1,"samples":8}`+"\n"+`{"type":"fire","t":1.5,`)}, []int64{3}, nil, 0,
			"a whole run log: 0: The log lacks 3 records and 1 updates, from 0.2 s to 1.4 s, which --log-max dropped: what became of their samples cannot be judged."},
		{"a checkpoint of what never was", [][]string{good}, []int64{4}, nil, 0, "checkpoints load: the last one is of version 4, the job ended at 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var names []string
			for i := range c.attempts {
				names = append(names, string(rune('0'+i)))
			}
			attempts, err := ReadAll(names, func(name string) ([]byte, error) {
				text := strings.Join(c.attempts[name[0]-'0'], "\n")
				if !strings.HasSuffix(text, "rec") {
					text += "\n"
				}
				return []byte(text), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range Judge(attempts, c.saved, c.bad, c.exit, 30*time.Second) {
				if !v.OK {
					got = append(got, v.Name+": "+v.Detail)
				}
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("broken: %q, want %q", got, c.want)
			}
		})
	}
}

// The times of updates are those that have passed: none is before the one before it, and an attempt of the job is no
// longer than all of it.
func TestJudgeClocks(t *testing.T) {
	log := func(times ...float64) string {
		text := `{"type":"start","format":1}` + "\n" + `{"type":"train","t":1,"workers":1,"shards":1,"version":0,"limit":100}` + "\n"
		for i, at := range times {
			text += fmt.Sprintf(`{"type":"record","t":%g,"worker":0,"step":%d,"basis":0,"start":%d,"samples":1,"loss":1}`+"\n", at, i, i)
			text += fmt.Sprintf(`{"type":"fire","t":%g,"seq":%d,"version":%d,"workers":[0],"staleness":[0],"samples":%d}`+"\n", at, i+1, i+1, i+1)
		}
		return text
	}
	for _, c := range []struct {
		name string
		logs []string
		want string
	}{
		{"one life", []string{log(2, 3, 5)}, "true 5s of 10s"},
		{"two lives", []string{log(2, 5), log(2, 4.5)}, "true 9.5s of 10s"},
		{"a clock that is behind a little", []string{log(2, 1.5, 3)}, "true 3s of 10s"},
		{"a clock that is behind", []string{log(5, 3.5, 4, 2)}, "false 0:6: the update is of 3.500 s, the one before of 5.000 s (and 1 more)"},
		{"a clock that is ahead", []string{log(2, 12)}, "false by the run logs it went on for 12s, and 10s have passed"},
		{"two lives too long", []string{log(2, 6), log(6)}, "false by the run logs it went on for 12s, and 10s have passed"},
	} {
		var attempts []*Attempt
		for i, text := range c.logs {
			attempts = append(attempts, Read([]byte(text), fmt.Sprint(i)))
		}
		v := JudgeClocks(attempts, 10*time.Second)
		if got := fmt.Sprint(v.OK, " ", v.Detail); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The reader gets from a log what each update consists of: the live workers, the gradients, and the parameters.
func TestUpdates(t *testing.T) {
	lines := []string{
		`{"type":"start","format":1}`, `{"type":"train","t":1,"workers":3,"shards":1,"limit":64,"version":5,"plan":"ssgd","absent":[2]}`,
		`{"type":"record","t":1.1,"worker":0,"step":3,"basis":5,"start":0,"samples":4,"loss":2,"norm2":0.5}`,
		`{"type":"record","t":1.2,"worker":1,"step":7,"basis":4,"start":4,"samples":4,"loss":3,"norm2":0.25}`,
		`{"type":"fire","t":1.2,"seq":1,"version":6,"workers":[0,1],"staleness":[0,1],"samples":8}`,
		`{"type":"poison","t":1.2,"worker":1,"step":7,"cause":"exploding","policy":"skip"}`,
		`{"type":"join","t":1.3,"worker":2}`, `{"type":"leave","t":1.3,"worker":1}`, `{"type":"plan","t":1.3,"from":"ssgd","plan":"asgd"}`,
		`{"type":"fire","t":1.4,"seq":2,"version":7,"workers":[0,1],"staleness":[1,2],"reports":[0],"pieces":[8,4,12,4],"samples":16}`,
		`{"type":"summary","samples":16,"updates":2,"wall_s":2,"staleness":{"mean":1}}`,
	}
	l := Read([]byte(strings.Join(lines, "\n")+"\n"), "log")
	if len(l.problems) > 0 {
		t.Fatal(l.problems)
	}
	want := []Update{
		{Version: 6, Before: 0, Plan: "ssgd", Live: []int{0, 1}, Members: []Member{
			{Worker: 0, Step: 3, Basis: 5, Start: 0, Samples: 4, Said: true, Loss: 2, Norm2: 0.5},
			{Worker: 1, Step: 7, Basis: 4, Start: 4, Samples: 4, Said: true, Loss: 3, Norm2: 0.25, Out: true},
		}},
		// a worker with a gradient in it counts in the round
		{Version: 7, Before: 8, Plan: "asgd", Live: []int{0, 1, 2}, Summed: true, Members: []Member{
			{Worker: 0, Basis: 5, Start: 8, Samples: 4}, {Worker: 1, Basis: 4, Start: 12, Samples: 4},
		}},
	}
	if diff := cmp.Diff(want, l.Updates); diff != "" {
		t.Errorf("(-, +):\n%s", diff)
	}
}
