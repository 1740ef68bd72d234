package baseline

import (
	"fmt"

	"star"
	"star/modes"
	"star/ps/rule"
)

// lgc makes updates of the first K gradients, and of what the others had computed in the round before.
//
// J. Xu, S.-L. Huang, L. Song, T. Lan: Live Gradient Compensation for Evading Stragglers in Distributed Learning.
// INFOCOM 2021.
var lgc = Entry{
	Name:  "lgc",
	Paper: "Xu, Huang, Song, Lan, INFOCOM 2021",
	About: "each update is of the first K gradients, and of the others' partial gradients of the round before",
	Ring:  true,
	Settings: []Setting{
		{Name: "k", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "workers that are waited for (K); three quarters of them if unset"},
		{Name: "blocks", Default: "8", Source: "ours", Kind: Whole, Min: 1, Max: 4096, About: "parts of a mini-batch (P); a straggler can stop after each"},
		{Name: "warmup", Default: "0", Source: "ours", Kind: Whole, Min: 0, Max: 1 << 20, About: "rounds at the beginning that wait for all workers"},
		{Name: "weight", Default: "workers", Source: "paper", Kind: Choice, Of: []string{"workers", "samples"}, About: "whether the stragglers' part is (N−K)/N, or their fraction of the samples"},
		{Name: "partial", Default: "processed", Source: "ours", Kind: Choice, Of: []string{"processed", "planned"}, About: "what the sum over the finished blocks is divided by"},
	},
	Make: func(j Job, v Values) (Made, error) {
		k, err := most(j, v)
		if blocks := v.Whole("blocks", 8); err == nil && blocks > j.Batch {
			err = fmt.Errorf("blocks=%d: a mini-batch has %d samples", blocks, j.Batch)
		}
		p := modes.Backup(j.Workers, j.Workers-k)
		p.Micro, p.ComputeDeadline = v.Whole("blocks", 8), modes.NoDeadline
		m := Made{Plan: p, Rule: rule.LiveSpec{Sizes: v["weight"] == "samples", Planned: v["partial"] == "planned"}, Cancel: true}
		if warm := v.Whole("warmup", 0); warm > 0 && k < j.Workers {
			m.Plan = modes.Backup(j.Workers, 0)
			m.Plan.Micro, m.Plan.ComputeDeadline = p.Micro, p.ComputeDeadline
			m.Scheme = &warmUp{rounds: warm, then: p}
		}
		return m, err
	},
}

// warmUp is a scheme that changes the plan once, after a number of updates.
type warmUp struct {
	rounds int
	then   modes.Plan
}

func (*warmUp) Observe(star.Record) {}
func (*warmUp) Leave(star.Worker)   {}

func (s *warmUp) Fired(Update) (Decision, bool) {
	if s.rounds--; s.rounds != 0 {
		return Decision{}, false
	}
	return Decision{Plan: s.then, Why: "lgc: the rounds that wait for all workers are over"}, true
}
