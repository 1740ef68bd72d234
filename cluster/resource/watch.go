package resource

import (
	"fmt"
	"strings"
)

// Watch says whether the host of a job's servers can afford a mode, from what is measured there and nothing else. It
// is for a job without a resource service: it asks nobody to give anything. It is used by one goroutine.
type Watch struct {
	capacity Usage
	learner  *Learner
	others   [kinds]history // use by who is not this job
	servers  [kinds]history // by its servers
}

// NewWatch watches a host. Where its capacity is not known it is infinite.
func NewWatch(prior Demand, workers int, capacity Usage) (*Watch, error) {
	if err := capacity.check("capacity of the host", true); err != nil {
		return nil, err
	}
	l, err := NewLearner(prior, workers)
	if err != nil {
		return nil, err
	}
	return &Watch{capacity: capacity, learner: l}, nil
}

// Limit lowers the capacity, or raises it, as a quota does that was found while the job runs.
func (w *Watch) Limit(capacity Usage) { w.capacity = capacity }

// Observe takes in what the job's servers on the host used under a load, and what was used there by who is not this
// job. The medians of the last 15 count.
func (w *Watch) Observe(load Load, servers, others Usage) {
	if servers.check("", false) != nil || others.check("", false) != nil {
		return
	}
	for k := range kinds {
		w.others[k].add(others.of(k))
		w.servers[k].add(servers.of(k))
	}
	w.learner.Observe(load, servers)
}

// unseen is the part of a capacity that measurements do not tell: who would take less more is not refused.
const unseen = 0.05

// Afford says whether what the job's servers need under a load is left by others, and in one line why not.
func (w *Watch) Afford(load Load) (ok bool, why string) {
	need := w.learner.Demand().At(load)
	var lacks []string
	has := "their host has"
	for k := range kinds {
		free := max(w.capacity.of(k)-w.others[k].middle(), 0)
		now := w.servers[k].middle()
		switch {
		case need.of(k) <= free:
		case need.of(k)-now <= unseen*w.capacity.of(k):
			has = "is no more than they take now"
		default:
			lacks = append(lacks, fmt.Sprintf("%s of %s, now %s, and others leave %s of %s", amount(k, need.of(k)), kindNames[k], amount(k, now), amount(k, free), amount(k, w.capacity.of(k))))
		}
	}
	if len(lacks) > 0 {
		return false, "the servers would need " + strings.Join(lacks, "; ")
	}
	return true, fmt.Sprintf("the servers will need %v, which %s", need, has)
}
