package resource

import (
	"fmt"
	"strings"
)

// Watch decides whether the host of a job's servers can afford a mode, from measurements there only. It is for a job
// without a resource service: it requests nothing from other jobs. It is not safe for concurrent use.
type Watch struct {
	capacity Usage
	learner  *Learner
	others   [kinds]history // use by other processes
	servers  [kinds]history // use by its servers
}

// NewWatch watches a host. An unknown capacity is infinite.
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

// Limit changes the capacity, for example when a quota is found while the job runs.
func (w *Watch) Limit(capacity Usage) { w.capacity = capacity }

// Observe adds the use by the job's servers on the host under a load, and the use by other processes there. The medians
// of the last 15 count.
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

// unseen is the part of a capacity below the accuracy of measurements: an extra use smaller than that is not refused.
const unseen = 0.05

// Afford reports whether the remaining capacity covers the needs of the job's servers under a load, or the reason in
// one line.
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
