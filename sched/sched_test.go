package sched

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestConsolidate has the node where least is left over, the first of these, and whole nodes before parts of one.
func TestConsolidate(t *testing.T) {
	for _, c := range []struct {
		free []uint64 // of nodes of 4 GPUs
		want int
		at   string
	}{
		{[]uint64{0xf, 0x3, 0xf}, 2, "[{1 3}]"},
		{[]uint64{0xf, 0xc, 0x3}, 2, "[{1 12}]"},
		{[]uint64{0xf, 0x9, 0x7}, 3, "[{2 7}]"},
		{[]uint64{0xe, 0xe}, 1, "[{0 2}]"},
		{[]uint64{0x1, 0x1}, 2, "[]"},
		{[]uint64{0x7, 0xf, 0xf}, 6, "[{1 15} {2 3}]"},
		{[]uint64{0x3, 0x7, 0xf}, 7, "[{2 15} {1 7}]"},
		{[]uint64{0x7, 0x7, 0x7}, 5, "[]"},
		{[]uint64{0xf, 0xf}, 9, "[]"},
	} {
		n := &nodes{free: c.free, size: 4}
		for i := range c.free {
			n.total += n.count(i)
		}
		if at := fmt.Sprint(n.consolidate(c.want)); at != c.at {
			t.Errorf("%d GPUs of %x: %s, want %s", c.want, c.free, at, c.at)
		}
	}
}

// TestSharing checks which jobs share GPUs: not jobs with another number of GPUs, not with too little memory or too
// high a score, not before their turn.
func TestSharing(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *Job)
		shares bool
	}{
		{"as it is", func(*Job) {}, true},
		{"GPUs", func(j *Job) { j.GPUs = 1 }, false},
		{"memory", func(j *Job) { j.Memory = 14576 }, false},
		{"just enough memory", func(j *Job) { j.Memory = 14575 }, true},
		{"score", func(j *Job) { j.Score = 2 }, false},
		{"twice as late", func(j *Job) { j.Estimate = 2000 }, true},
		{"later", func(j *Job) { j.Estimate = 2001 }, false},
		{"unknown", func(j *Job) { j.Model = "x" }, false},
	} {
		k := Kind{Model: "m"}
		p := &Profile{Pairs: map[[2]Kind][2]float64{{k, k}: {0.5, 0.8}}, Jobs: []float64{9, 9}}
		first := &Job{ID: "first", Deadline: never, GPUs: 2, Duration: 1000, Estimate: 1000, Model: "m", Memory: 10000, Score: 1}
		other := &Job{ID: "other", Submit: 10, Deadline: never, GPUs: 2, Duration: 100, Estimate: 1000, Model: "m", Memory: 10000, Score: 1}
		c.change(other)
		out := Simulate([]*Job{first, other}, Cluster{Nodes: 1, GPUs: 4}, &colocation{Profile: p})
		if shares := slices.ContainsFunc(out[0].Steps, func(s Step) bool { return s.GPUs == 1 }); shares != c.shares {
			t.Errorf("%s: shares: %v", c.name, shares)
		}
		// 100 s at 0.5 are 200 s, in which the first one makes 160 s.
		if c.shares && (out[1].End != 210 || math.Abs(out[0].End-(210+1000-10-160)) > 1e-9) {
			t.Errorf("%s: ended at %v and %v", c.name, out[1].End, out[0].End)
		}
	}
	// While two jobs in ten minutes are forecast no job shares, and a job that does not fit holds up those behind it.
	p := &Profile{Pairs: map[[2]Kind][2]float64{{{}, {}}: {1, 1}}, Jobs: []float64{2, 2, 2}}
	jobs := []*Job{{ID: "a", GPUs: 3, Duration: 50, Estimate: 1, Deadline: never}, {ID: "b", GPUs: 3, Duration: 50, Estimate: 2, Deadline: never}, {ID: "c", GPUs: 1, Duration: 50, Estimate: 30, Deadline: never}}
	out := Simulate(jobs, Cluster{Nodes: 1, GPUs: 4}, &colocation{Profile: p})
	if out[1].Start != 50 || out[2].Start != 50 {
		t.Errorf("without sharing: %v and %v, want 50", out[1].Start, out[2].Start)
	}
}

// TestLate plans around what others have.
func TestLate(t *testing.T) {
	flexible := func(id string, iterations, deadline float64) *flex {
		return &flex{Outcome: Outcome{Job: &Job{ID: id, Deadline: deadline, Rates: []float64{1, 1.5, 2}}}, left: iterations, levels: 3}
	}
	// b has nothing until 60, where the slot of a ends, and then 4 GPUs, or else 2 beside c's.
	e := &elastic{now: 0, slot: 60, gpus: 4}
	for _, c := range []struct {
		deadline float64
		late     int
	}{{110, 0}, {109, 1}} {
		if late := e.late([]*flex{flexible("b", 100, c.deadline), flexible("a", 100, 50)}); len(late) != c.late {
			t.Errorf("by %v: %d late", c.deadline, len(late))
		}
	}
	e.gpus = 6
	// a has 4 until 60; b 2 of 6 until then, 90 iterations, and the last ten on 4.
	if late := e.late([]*flex{flexible("b", 100, 65), flexible("a", 100, 50)}); len(late) != 0 {
		t.Errorf("on what a leaves: %v", late[0].ID)
	}
	if late := e.late([]*flex{flexible("b", 101, 65), flexible("a", 100, 50)}); len(late) != 1 {
		t.Error("on what a leaves: not late")
	}
}

func TestSummary(t *testing.T) {
	var out []Outcome
	for i := range 200 {
		out = append(out, Outcome{Job: &Job{Deadline: 150}, End: float64(i + 1)})
	}
	out = append(out, Outcome{Job: &Job{}, End: math.NaN(), Why: "no"})
	if s := Summarize(out); s.P99 != 198 || s.Met != 150 || s.Declined != 1 || s.Ended != 200 || s.JCT != 100.5 || s.Makespan != 200 {
		t.Errorf("%+v", s)
	}
}

// No virtual cluster is special by its name, and none lends what its largest job needs.
func TestLenders(t *testing.T) {
	of := func(nodes map[string]int) map[string]Cluster {
		out := map[string]Cluster{}
		for vc, n := range nodes {
			out[vc] = Cluster{Nodes: n, GPUs: 8}
		}
		return out
	}
	named := map[string]int{"vc8Gr": 3, "vcefl": 4, "vcYVn": 6, "vcbig": 9}
	large := func(vc string, gpus int) []*Job { return []*Job{{VC: vc, GPUs: 1}, {VC: vc, GPUs: gpus}} }
	for _, c := range []struct {
		nodes map[string]int
		jobs  []*Job
		lent  string
		more  string
	}{
		{named, nil, "map[vcbig:2]", "vcbig"},
		{map[string]int{"a": 2, "b": 3}, nil, "map[]", ""},
		{named, large("vcbig", 56), "map[vcbig:2]", "vcbig"},
		{named, large("vcbig", 57), "map[vcYVn:2]", "vcYVn"},
		{map[string]int{"": 5}, large("", 24), "map[:2]", ""},
		{map[string]int{"": 5}, large("", 25), "map[]", ""},
		{named, large("vcbig", 80), "map[vcbig:2]", "vcbig"}, // it fits nowhere
	} {
		if lent, more := lenders(c.jobs, of(c.nodes)); fmt.Sprint(lent) != c.lent || more != c.more {
			t.Errorf("%v: %v and %q, want %s and %q", c.nodes, lent, more, c.lent, c.more)
		}
	}
}

// TestStartsAreCompared has two jobs that take nearly as long: what the start of the first one takes does not put it
// behind the other one, which would have to start, too.
func TestStartsAreCompared(t *testing.T) {
	jobs := []*Job{{ID: "a", GPUs: 1, Duration: 100, Deadline: never}, {ID: "b", GPUs: 1, Duration: 105, Deadline: never}, {ID: "c", Submit: 30, GPUs: 1, Duration: 60, Deadline: never}}
	for _, policy := range []string{"srtf", "srsf"} {
		out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: policy, Start: 20})
		if err != nil {
			t.Fatal(err)
		}
		// At 30 a has 90 s left, and c 80 with its start. From then on a has 40 s of work and a start to do again, more than
		// b has.
		if a, b, c := out[0], out[1], out[2]; c.End != 110 || b.End != 110+20+105 || a.End != b.End+20+90+40 || a.Preemptions != 1 || b.Preemptions != 0 {
			t.Errorf("%s: %v, %v and %v, %d and %d preemptions", policy, a.End, b.End, c.End, a.Preemptions, b.Preemptions)
		}
	}
}
