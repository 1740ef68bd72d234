package modes

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
)

// A change of tree is on trial, like every change of plan (package auto): the speed before and after is
// compared. It is not priced, because a price would rest on the capacity, which may be wrong.
//
//	looks under one plan ──► the tree is added, changed or removed ──► as many looks ──► it stays
//	                                                                       │ nothing is gained
//	                                                                       └──► undone, for a while, longer each time
const (
	treeLooks  = 5           // on each side; their median leaves out evaluations and checkpoints
	lookTime   = time.Second // of one look, at least
	lookRounds = 4           // updates in one, at least
	treeSettle = 1           // looks after a change that do not count: connections are made
	treeShun   = time.Minute // after a change that gained nothing; doubled each time, at most six times

	// treeGain is the fraction of the time that a tree must gain. Less is within the noise of looks on a busy
	// machine, and a tree has its own cost, the load on the workers' links.
	treeGain = 0.05

	// goneLoss is the loss that is accepted when a tree is removed.
	goneLoss = 0.05
)

// treeTrial is a change of tree that is being measured.
type treeTrial struct {
	from   []star.Worker
	before float64 // samples per second
}

// treeView is a TreeKeeper's measurements of a job.
type treeView struct {
	mode    string // plan without the tree, and members
	at      time.Duration
	samples int64
	version int64
	paces   []float64 // samples per second in the last looks
	skip    int
	trial   *treeTrial
	shun    time.Duration // no change before this time
	times   int           // changes in a row that gained nothing
}

// Seen records the progress of a job at a time: its applied samples, its version, and mode, which is its plan
// and members without the tree. It is called about every second. It returns the verdict on the last change of
// the tree, once it is known, and a reason if the previous tree comes back.
func (k *TreeKeeper) Seen(at time.Duration, samples, version int64, mode string) (v *Verdict, why string) {
	s := &k.view
	// After another change the speeds on both sides are not comparable: a trial ends without a verdict.
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
	// A tree must gain treeGain. Its removal may lose up to goneLoss, because no tree is simpler.
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
	return v, fmt.Sprintf("no gain: %.3g samples/s, %.3g before", now, t.before)
}

// pace is the median of the last looks. There must be treeLooks of them.
func (s *treeView) pace() float64 { return slices.Sorted(slices.Values(s.paces))[treeLooks/2] }

// back restores the tree before the one on trial.
func (k *TreeKeeper) back() {
	k.parents, k.demand = k.view.trial.from, 0
	k.view.trial, k.view.paces, k.view.skip = nil, nil, treeSettle
}

// Ready reports whether the tree may be changed: the present one has been measured, and is not on trial.
func (k *TreeKeeper) Ready() bool {
	s := &k.view
	return s.trial == nil && len(s.paces) >= treeLooks && s.at >= s.shun
}

// try begins the trial of a change from another tree.
func (k *TreeKeeper) try(from []star.Worker) {
	s := &k.view
	if len(s.paces) < treeLooks {
		return // no measurements to compare with
	}
	s.trial = &treeTrial{from: slices.Clone(from), before: s.pace()}
	s.paces, s.skip = nil, treeSettle
}

// Verdict is the outcome of a change of plan.
type Verdict struct {
	Plan            Plan    // that was on trial
	Predicted, Seen float64 // relative savings of cost
	Reverted        bool
}
