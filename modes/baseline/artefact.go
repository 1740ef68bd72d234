package baseline

import (
	"fmt"
	"time"

	"star"
	"star/modes"
)

// The schemes of this file have names of papers, but decide as the programs that were released with the STAR paper as
// comparisons (docs/baselines.md lists the differences). So the tables of that paper can be examined. Only the
// decisions are kept, not the optimiser, and not the bugs that hang or lose gradients.

// artefactRatio is the ratio of the slowest to the fastest time above which the programs act.
const artefactRatio = 1.5

// ArtefactBatches is the released LB-BSP: from iteration 6 on, if the slowest takes more than 1.5 times as long as the
// fastest, each worker with the slowest time gives up 5 samples, unless it has 10 or fewer, and each worker with the
// fastest time gets 5 more. The sum changes.
func ArtefactBatches(times []float64, batches []int, iteration int64) []int {
	out := append([]int(nil), batches...)
	lo, hi := span(times)
	if iteration < 6 || !(hi > artefactRatio*lo) {
		return out
	}
	for w, t := range times {
		if t == hi && out[w] > 10 {
			out[w] -= 5
		}
		if t == lo {
			out[w] += 5
		}
	}
	return out
}

// ArtefactController is the released Sync-Switch: ASP while a worker takes more than 1.5 times as long as the fastest,
// decided at every poll. The version of the folder rivanna_code (Latch) never returns to BSP.
type ArtefactController struct {
	Latch bool
	asp   bool
}

// Poll takes the computing and pushing times of all workers, in one unit, and reports whether the job should run ASP.
func (c *ArtefactController) Poll(times []float64) (asp bool) {
	lo, hi := span(times)
	c.asp = hi > artefactRatio*lo || c.Latch && c.asp
	return c.asp
}

func span(ts []float64) (lo, hi float64) {
	lo, hi = ts[0], ts[0]
	for _, t := range ts[1:] {
		lo, hi = min(lo, t), max(hi, t)
	}
	return lo, hi
}

// artefactWorkers is the fixed number of workers of the released programs.
const artefactWorkers = 4

func needFour(j Job) error {
	if j.Workers != artefactWorkers {
		return fmt.Errorf("the released program supports %d workers only, the job has %d", artefactWorkers, j.Workers)
	}
	return nil
}

var artefactLBBSP = Entry{
	Name:     "artefact-lb-bsp",
	Paper:    "the program released with STAR, not Chen et al.",
	Artefact: true,
	About:    "BSP in which slow workers give up 5 samples and quick ones get 5 more, for one iteration",
	Make: func(j Job, v Values) (Made, error) {
		if err := needFour(j); err != nil {
			return Made{Plan: modes.SSGD(j.Workers)}, err
		}
		return Made{Plan: modes.SSGD(j.Workers), Resizes: true, Scheme: &artefactBalance{batch: j.Batch}}, nil
	},
}

// artefactBalance is the Scheme of artefact-lb-bsp. Like the original it reads the last four rows of a table to which
// workers append in order of arrival, adds milliseconds of computing to seconds of receiving, and keeps each decision
// for one iteration.
type artefactBalance struct {
	batch int
	rows  []artefactRow
	most  int64 // iterations of the worker that has made most
	moved bool
}

type artefactRow struct {
	worker star.Worker
	time   float64
}

// Observe implements Scheme.
func (b *artefactBalance) Observe(r star.Record) {
	b.rows = append(b.rows, artefactRow{r.Worker, r.Compute.Seconds()*1e3 + r.Pull.Seconds()})
	if over := len(b.rows) - artefactWorkers; over > 0 {
		b.rows = b.rows[over:]
	}
	b.most = max(b.most, r.Step)
}

// Leave implements Scheme.
func (b *artefactBalance) Leave(star.Worker) {}

// Fired implements Scheme.
func (b *artefactBalance) Fired(Update) (Decision, bool) {
	p := modes.SSGD(artefactWorkers)
	if b.moved {
		b.moved = false
		return Decision{p, "released LB-BSP: equal batches again after one iteration"}, true
	}
	if len(b.rows) < artefactWorkers {
		return Decision{}, false
	}
	var times []float64
	var batches []int
	for _, r := range b.rows {
		times, batches = append(times, r.time), append(batches, b.batch)
	}
	got := ArtefactBatches(times, batches, b.most)
	p.Shares = make([]int, artefactWorkers)
	for w := range p.Shares {
		p.Shares[w] = b.batch
	}
	for i, r := range b.rows {
		if got[i] != b.batch {
			p.Shares[r.worker], b.moved = max(1, got[i]), true
		}
	}
	return Decision{p, "released LB-BSP: the slowest of the last four rows takes more than 1.5 times as long as the quickest"}, b.moved
}

var artefactSyncSwitch = Entry{
	Name:     "artefact-sync-switch",
	Paper:    "the program released with STAR, not Li et al.",
	Artefact: true,
	About:    "SSGD, and ASGD while a worker takes more than 1.5 times as long as the quickest, looked at now and then",
	Settings: []Setting{
		{Name: "version", Default: "manual", Source: "paper", Kind: Choice, Of: []string{"manual", "rivanna"}, About: "of the released programs; rivanna stays with ASGD"},
		{Name: "wait", Default: "17s", Source: "paper", Kind: Span, Max: 3600, About: "before the first look (rivanna: 25 s)"},
		{Name: "every", Default: "200s", Source: "paper", Kind: Span, Min: 0.001, Max: 1e6, About: "time between looks"},
	},
	Make: func(j Job, v Values) (Made, error) {
		if err := needFour(j); err != nil {
			return Made{Plan: modes.SSGD(j.Workers)}, err
		}
		return Made{Plan: modes.SSGD(j.Workers), Scheme: &artefactSwitcher{control: ArtefactController{Latch: v["version"] == "rivanna"},
			next: v.Span("wait"), every: v.Span("every"), times: make([]float64, artefactWorkers)}}, nil
	},
}

// artefactSwitcher is the Scheme of artefact-sync-switch.
type artefactSwitcher struct {
	control     ArtefactController
	next, every time.Duration
	times       []float64 // of each worker's last iteration, in ms; 0: none yet
	asp         bool
}

// Observe implements Scheme.
func (s *artefactSwitcher) Observe(r star.Record) {
	s.times[r.Worker] = (r.Compute + r.Push).Seconds() * 1e3
}

// Leave implements Scheme.
func (s *artefactSwitcher) Leave(star.Worker) {}

// Fired implements Scheme.
func (s *artefactSwitcher) Fired(u Update) (Decision, bool) {
	if lo, _ := span(s.times); u.At < s.next || lo == 0 {
		return Decision{}, false
	}
	s.next = u.At + s.every
	asp := s.control.Poll(s.times)
	if asp == s.asp {
		return Decision{}, false
	}
	if s.asp = asp; asp {
		return Decision{modes.ASGD(artefactWorkers), "released Sync-Switch: a worker takes more than 1.5 times as long as the quickest"}, true
	}
	return Decision{modes.SSGD(artefactWorkers), "released Sync-Switch: no worker takes more than 1.5 times as long as the quickest"}, true
}
