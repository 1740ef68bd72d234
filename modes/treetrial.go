package modes

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
)

// A tree is on trial like every change of plan (package auto), by what is seen of both sides: it is not priced, because a price would rest on the
// capacity, and that is what may be wrong.
//
//	looks under one plan ──► a tree comes, or another, or goes ──► as many looks ──► it stays
//	                                                                       │ nothing is gained
//	                                                                       └──► as it was, for a while, longer each time
const (
	treeLooks  = 5           // on each side; their median leaves out evaluations and checkpoints
	lookTime   = time.Second // of one look, at least
	lookRounds = 4           // updates in one, at least
	treeSettle = 1           // looks behind a change that do not count: connections are made
	treeShun   = time.Minute // after a change that gained nothing; doubled each time, six times at most

	// treeGain is what a tree must gain, as a part of the time: less is within what looks differ by on a busy machine, and a tree has a
	// price of its own, the load of the workers' links.
	treeGain = 0.05

	// goneLoss is what may be lost when a tree goes.
	goneLoss = 0.05
)

// treeTrial is a tree, or the end of one, that has to show what it brings.
type treeTrial struct {
	from   []star.Worker
	before float64 // samples per second
}

// treeView is what a TreeKeeper sees of a job.
type treeView struct {
	mode    string // without the tree, and who is there
	at      time.Duration
	samples int64
	version int64
	paces   []float64 // samples per second in the last looks
	skip    int
	trial   *treeTrial
	shun    time.Duration // until then there is no change
	times   int           // changes in a row that gained nothing
}

// Seen tells how far a job is at some time: the samples that it has applied, its version, and its plan and who is in it, other than the tree.
// It is called about every second. It returns what has become of the last change of the tree, when that is known, and, when the tree before
// that comes back, why.
func (k *TreeKeeper) Seen(at time.Duration, samples, version int64, mode string) (v *Verdict, why string) {
	s := &k.view
	if mode != s.mode || samples < s.samples {
		*s = treeView{mode: mode, at: at, samples: samples, version: version, trial: s.trial, shun: s.shun, times: s.times}
		if t := s.trial; t != nil {
			k.back()
			return nil, "the job has changed while the tree was on trial"
		}
		return nil, ""
	}
	if at-s.at < lookTime || version-s.version < lookRounds {
		return nil, ""
	}
	pace := float64(samples-s.samples) / (at - s.at).Seconds()
	s.at, s.samples, s.version = at, samples, version
	if s.skip > 0 {
		s.skip--
		return nil, ""
	}
	s.paces = append(s.paces[max(0, len(s.paces)-treeLooks+1):], pace)
	t := s.trial
	if t == nil || len(s.paces) < treeLooks {
		return nil, ""
	}
	s.trial = nil
	now := s.pace()
	gain := 1 - t.before/now
	v = &Verdict{Predicted: math.NaN(), Seen: gain, Reverted: gain < treeGain}
	if k.parents == nil {
		v.Reverted = gain < -goneLoss
	}
	if !v.Reverted {
		s.times = 0
		return v, ""
	}
	s.trial = t
	k.back()
	s.shun = at + treeShun<<s.times
	s.times = min(s.times+1, 6)
	return v, fmt.Sprintf("it was to gain, but %.3g samples/s are seen, %.3g before", now, t.before)
}

// pace is the median of the last looks, of which there are treeLooks.
func (s *treeView) pace() float64 { return slices.Sorted(slices.Values(s.paces))[treeLooks/2] }

// back takes the tree before the one on trial.
func (k *TreeKeeper) back() {
	k.parents, k.demand = k.view.trial.from, 0
	k.view.trial, k.view.paces, k.view.skip = nil, nil, treeSettle
}

// Ready says whether the tree may be changed: what there is has been looked at, and is not on trial.
func (k *TreeKeeper) Ready() bool {
	s := &k.view
	return s.trial == nil && len(s.paces) >= treeLooks && s.at >= s.shun
}

// try puts the present tree on trial.
func (k *TreeKeeper) try(from []star.Worker) {
	s := &k.view
	if len(s.paces) < treeLooks {
		return // nobody has looked
	}
	s.trial = &treeTrial{from: slices.Clone(from), before: s.pace()}
	s.paces, s.skip = nil, treeSettle
}

// Verdict is what became of a change of plan.
type Verdict struct {
	Plan            Plan    // that was on trial
	Predicted, Seen float64 // parts of the cost that it was to save, and did
	Reverted        bool
}
