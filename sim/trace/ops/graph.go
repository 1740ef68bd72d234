package ops

import (
	"errors"
	"fmt"
	"slices"
)

// step is the graph of one step.
type step struct {
	ops      []Op      // by data rank, stage, start
	transfer []float64 // of each: what it took from when the last of its team was there
	after    [][]int32 // operations that each waits for
	teams    [][]int32 // operations that start together, ordered by dependency
	recorded float64   // from the first start to the last end
}

// newStep makes the graph of a step of its operations, which are sorted by worker and start.
func newStep(m Meta, all []Op) (step, error) {
	s := step{ops: all, transfer: make([]float64, len(all)), after: make([][]int32, len(all))}
	first, last := all[0].Start, all[0].Start
	for _, o := range all {
		first, last = min(first, o.Start), max(last, o.Start+o.Took)
	}
	s.recorded = last - first
	if n := m.Data * m.Stages; len(all) < 2*n {
		return s, fmt.Errorf("%d operations of %d workers: each computes forward and backward at least", len(all), n)
	}

	// The k-th operation of each type, by worker.
	kth := make([][numTypes][]int32, m.Data*m.Stages)
	for i, o := range all {
		w := o.Data*m.Stages + o.Stage
		kth[w][o.Type] = append(kth[w][o.Type], int32(i))
	}
	for w := range kth {
		for _, t := range []Type{Forward, Backward} {
			if len(kth[w][t]) == 0 {
				return s, fmt.Errorf("dp_rank %d, stage %d has no %s", w/m.Stages, w%m.Stages, t)
			}
		}
		if err := s.worker(m, w%m.Stages, &kth[w], s.recorded*1e-5); err != nil {
			return s, fmt.Errorf("dp_rank %d, stage %d: %w", w/m.Stages, w%m.Stages, err)
		}
	}
	team, err := s.join(m, kth)
	if err != nil {
		return s, err
	}
	for _, t := range s.teams {
		there := all[t[0]].Start
		for _, i := range t {
			there = max(there, all[i].Start)
		}
		for _, i := range t {
			// Clocks differ a little: an end before the last start is an end at it.
			s.transfer[i] = max(0, all[i].Start+all[i].Took-there)
		}
	}
	return s, s.order(team)
}

// worker says what the operations of one worker wait for. slack is by how much an operation may have ended after
// one that waited for it, since traces are rounded.
func (s *step) worker(m Meta, stage int, of *[numTypes][]int32, slack float64) error {
	wait := func(i, for_ int32) { s.after[i] = append(s.after[i], for_) }

	// Three kinds of streams: the computation, the collectives among data ranks, and transfers by type and direction.
	var compute, data []int32
	lo, hi := int32(len(s.ops)), int32(0)
	for t := range numTypes {
		for k, i := range of[t] {
			lo, hi = min(lo, i), max(hi, i+1)
			if k > 0 && t.pipe() {
				wait(i, of[t][k-1])
			}
		}
	}
	for i := lo; i < hi; i++ { // by start
		switch t := s.ops[i].Type; {
		case t.pipe():
		case t.data():
			if len(data) > 0 {
				wait(i, data[len(data)-1])
			}
			data = append(data, i)
		default:
			if len(compute) > 0 {
				wait(i, compute[len(compute)-1])
			}
			compute = append(compute, i)
		}
	}

	// A collective among data ranks waits for what the worker had computed before it. What comes behind the passes
	// waits for the collectives that had ended, and a forward pass for the parameters of its chunk.
	ended := func(in []int32, i int32) int32 { // the last one of a stream before i began
		for k := len(in) - 1; k >= 0; k-- {
			if o := s.ops[in[k]]; o.Start < s.ops[i].Start && o.Start+o.Took <= s.ops[i].Start+slack {
				return in[k]
			}
		}
		return -1
	}
	for _, i := range data {
		if c := ended(compute, i); c >= 0 {
			wait(i, c)
		}
	}
	for _, i := range compute {
		switch s.ops[i].Type {
		case Backward, GC:
		case Forward:
			for _, g := range of[ParamsGather] {
				if c := s.ops[g].Chunk; (c < 0 || c == s.ops[i].Chunk) && s.ops[g].Start < s.ops[i].Start {
					wait(i, g)
				}
			}
		default:
			if d := ended(data, i); d >= 0 {
				wait(i, d)
			}
		}
	}

	// The k-th transfer belongs to the k-th pass that needs one: the first chunk's input comes from the data, the
	// last one's output goes to the loss.
	final := m.Stages*m.Chunks - 1
	for _, x := range []struct {
		transfer, pass Type
		without        int // the chunk that has none
		in             bool
	}{{ForwardRecv, Forward, 0, true}, {ForwardSend, Forward, final, false}, {BackwardRecv, Backward, final, true}, {BackwardSend, Backward, 0, false}} {
		k := 0
		for _, p := range of[x.pass] {
			if s.chunk(m, stage, p) == x.without {
				continue
			}
			if k < len(of[x.transfer]) {
				if t := of[x.transfer][k]; x.in {
					wait(p, t)
				} else {
					wait(t, p)
				}
			}
			k++
		}
		if k != len(of[x.transfer]) {
			return fmt.Errorf("%d × %s, want %d, one for each %s", len(of[x.transfer]), x.transfer, k, x.pass)
		}
	}
	return nil
}

// chunk is that of a pass: where the trace does not say and a stage has only one, that one.
func (s *step) chunk(m Meta, stage int, i int32) int {
	if c := s.ops[i].Chunk; c >= 0 && m.Chunks > 1 {
		return c
	}
	return stage
}

// join finds out which operations begin together, and returns the team of each.
func (s *step) join(m Meta, kth [][numTypes][]int32) ([]int32, error) {
	team := make([]int32, len(s.ops))
	for i := range team {
		team[i] = -1
	}
	form := func(members []int32) {
		for _, i := range members {
			team[i] = int32(len(s.teams))
		}
		s.teams = append(s.teams, members)
	}
	n := m.Data * m.Stages
	for w := range n {
		d, at := w/m.Stages, w%m.Stages
		next := d*m.Stages + (at+1)%m.Stages
		for _, x := range []struct {
			send, recv Type
			from, to   int
		}{{ForwardSend, ForwardRecv, w, next}, {BackwardSend, BackwardRecv, next, w}} {
			a, b := kth[x.from][x.send], kth[x.to][x.recv]
			if len(a) != len(b) {
				return nil, fmt.Errorf("dp_rank %d: stage %d has %d × %s, but stage %d %d × %s", d, x.from%m.Stages, len(a), x.send, x.to%m.Stages, len(b), x.recv)
			}
			for k := range a {
				form([]int32{a[k], b[k]})
			}
		}
	}
	for _, x := range []struct {
		t     Type
		group func(w int) int // workers of one group meet
		whole bool            // all of them, or none
	}{
		{ParamsGather, func(w int) int { return w % m.Stages }, true}, {GradsScatter, func(w int) int { return w % m.Stages }, true},
		{SeparateReduce, func(w int) int { return w % m.Stages }, true}, {EmbeddingReduce, func(w int) int { return w / m.Stages }, false},
		{ClipGrads, func(int) int { return 0 }, true}, {LayernormReduce, func(w int) int { return w }, true},
		{Forward, func(w int) int { return w }, true}, {Backward, func(w int) int { return w }, true},
		{Optimizer, func(w int) int { return w }, true}, {GC, func(w int) int { return w }, true},
	} {
		groups := make([][]int, n)
		for w := range n {
			g := x.group(w)
			groups[g] = append(groups[g], w)
		}
		for _, g := range groups {
			most := 0
			for _, w := range g {
				most = max(most, len(kth[w][x.t]))
			}
			for _, w := range g {
				if have := len(kth[w][x.t]); have != most && (x.whole || have > 0) {
					return nil, fmt.Errorf("dp_rank %d, stage %d has %d × %s, want %d as others that it meets there", w/m.Stages, w%m.Stages, have, x.t, most)
				}
			}
			for k := range most {
				var members []int32
				for _, w := range g {
					if len(kth[w][x.t]) > 0 {
						members = append(members, kth[w][x.t][k])
					}
				}
				form(members)
			}
		}
	}
	return team, nil
}

var errCircle = errors.New("operations wait for each other in a circle: are the clocks of the workers far apart?")

// order sorts the teams so that each comes behind all that its members wait for.
func (s *step) order(team []int32) error {
	missing := make([]int32, len(s.teams))
	next := make([][]int32, len(s.teams))
	for i, after := range s.after {
		for _, a := range after {
			missing[team[i]]++
			next[team[a]] = append(next[team[a]], team[i])
		}
	}
	sorted := make([][]int32, 0, len(s.teams))
	var ready []int32
	for t := range s.teams {
		if missing[t] == 0 {
			ready = append(ready, int32(t))
		}
	}
	for len(ready) > 0 {
		t := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		sorted = append(sorted, s.teams[t])
		for _, u := range next[t] {
			if missing[u]--; missing[u] == 0 {
				ready = append(ready, u)
			}
		}
	}
	if len(sorted) < len(s.teams) {
		return errCircle
	}
	s.teams = sorted
	return nil
}

// time goes through the step and says how long it takes. ideal says which operations take the ideal time of their
// type; end is room for as many numbers as there are operations.
func (s *step) time(ideal *[numTypes]float64, repaired func(Op) bool, end []float64) float64 {
	last := 0.0
	for _, t := range s.teams {
		there := 0.0
		for _, i := range t {
			for _, a := range s.after[i] {
				there = max(there, end[a])
			}
		}
		for _, i := range t {
			took := s.transfer[i]
			if repaired(s.ops[i]) {
				took = ideal[s.ops[i].Type]
			}
			end[i] = there + took
			last = max(last, end[i])
		}
	}
	return last
}

// slowest are the indices of the k largest numbers, largest first.
func slowest(of []float64, k int) []int {
	at := make([]int, len(of))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int {
		switch {
		case of[a] > of[b]:
			return -1
		case of[a] < of[b]:
			return 1
		}
		return 0
	})
	return at[:min(k, len(at))]
}
