package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestProgram has ElasticFlow's program by hand: a start on 4 GPUs costs 8 s, on 2 6 s, a round 2 s where the GPUs stay the same; without admission there is a round at 180 s, from where b, which has run, was to go on by its plan of 60 s: a is done then, and late, so that it ends with what new GPUs cost; ends are those of slots, of a late job that of its work; all that come together are
// declined with one that would be late.
func TestProgram(t *testing.T) {
	job := func(id string, submit, deadline, iterations float64) *Job {
		return &Job{ID: id, Submit: submit, Deadline: deadline, Iterations: iterations, Rates: []float64{1, 1, 2}, Batch: 4, GPUs: 1, Duration: iterations}
	}
	for _, c := range []struct {
		name, policy string
		jobs         []*Job
		ends         []float64 // NaN: declined
	}{
		{"ends with its slot, after its start", "ef-admission", []*Job{job("a", 0, 900, 100)}, []float64{60 + 8}},
		{"a late one ends with its work", "ef", []*Job{job("a", 0, 10, 100)}, []float64{50}},
		{"one that would be late is declined, and what comes with it", "ef-admission", []*Job{job("a", 0, 900, 100), job("b", 10, 20, 100), job("c", 20, 900, 10)}, []float64{60 + 60 + 2, math.NaN(), math.NaN()}},
		{"without admission there is a round where a job was to go on", "ef", []*Job{job("a", 0, 160, 150), job("b", 0, 900, 150), job("c", 60, 9000, 1000)}, []float64{180 + 8, 302, 724}},
		{"with it there is none", "ef-admission", []*Job{job("a", 0, 160, 150), job("b", 0, 900, 150), job("c", 60, 9000, 1000)}, []float64{60 + 120 + 2, 182 + 60 + 2, 672}},
		{"best effort is not", "ef-admission", []*Job{{ID: "b", Deadline: never, BestEffort: true, Iterations: 10, Rates: []float64{1}, Batch: 4, GPUs: 1}, job("c", 0, 5, 100)},
			[]float64{60 + 4, math.NaN()}},
	} {
		out, err := Run(c.jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 4}}, Options{Policy: c.policy, Slot: 60, Compat: ElasticFlow})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if o.Declined() != math.IsNaN(c.ends[i]) || !o.Declined() && o.End != c.ends[i] {
				t.Errorf("%s: job %s ended at %v, declined %v; want %v", c.name, o.ID, o.End, o.Declined(), c.ends[i])
			}
		}
	}
	if _, err := Run([]*Job{job("a", 0, 900, 0)}, map[string]Cluster{"": {Nodes: 1, GPUs: 4}}, Options{Policy: "ef", Slot: 60, Compat: ElasticFlow}); err == nil {
		t.Error("a job without iterations, whose plan has no slot, was simulated")
	}
	for _, c := range []struct {
		model string
		batch int
		t4    bool
		want  int
	}{{"deepspeech2", 64, false, 64}, {"deepspeech2", 320, true, 32}, {"bert", 64, false, 8}, {"bert", 64, true, 16}, {"resnet50", 128, false, 64}, {"resnet50_cifar10", 16, false, 16}, {"imagenet", 256, true, 64}} {
		if got := programMost(&Job{Model: c.model, Batch: c.batch}, c.t4); got != c.want {
			t.Errorf("%s, %d samples: %d GPUs at most, want %d", c.model, c.batch, got, c.want)
		}
	}
}

// TestUntil compares two plans of a job, of which the first span ends at 10 s: up to when they leave as much free, but in that span.
func TestUntil(t *testing.T) {
	spans := []span{{0, 8}, {10, 7}, {20, 8}}
	pieces := func(x ...piece) plan { return plan{pieces: x} }
	for _, c := range []struct {
		name string
		a, b plan
		want float64
	}{
		{"they differ in the first span", pieces(piece{0, 10, 1}, piece{10, 30, 2}), pieces(piece{0, 10, 4}, piece{10, 30, 2}), never},
		{"one ends before", pieces(piece{0, 10, 1}, piece{10, 30, 2}), pieces(piece{0, 10, 4}, piece{10, 20, 2}), 20},
		{"one has less from the second span on", pieces(piece{0, 30, 2}), pieces(piece{0, 10, 4}, piece{10, 30, 1}), 10},
		{"one ends with the first span", pieces(piece{0, 30, 2}), pieces(piece{0, 10, 4}), 10},
		{"one cuts the first span", pieces(piece{0, 10, 2}), pieces(piece{0, 5, 4}), 0},
	} {
		if got := c.a.until(c.b, spans); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := pieces(piece{0, 10, 2}).until(pieces(piece{0, 5, 4}), spans[:1]); got != 0 {
		t.Errorf("one span: %v, want 0", got)
	}
}

// spreadNaively is spread, with what a doubling would bring computed anew for all jobs before each.
func (p *program) spreadNaively(spans []span) {
	free := p.gpus
	for _, f := range p.runnable {
		f.plan.merge()
		f.n = f.plan.pieces[0].n
		free -= f.n
	}
	for {
		var best *flex
		var to plan
		most := math.Inf(-1)
		for _, f := range p.runnable {
			next := max(f.least(), 2*f.n)
			if next > f.most() || next-f.n > free {
				continue
			}
			own := book(slices.Clone(spans), f.plan, -1)
			x := p.share(f, &own, next, nil)
			x.merge()
			grows := never
			if f.n > 0 {
				grows = (x.gpuTime() - f.plan.gpuTime()) / float64(next-f.n)
			}
			if best == nil || grows > most {
				best, to, most = f, x, grows
			}
		}
		if best == nil {
			return
		}
		spans = book(book(spans, best.plan, -1), to, 1)
		free -= to.pieces[0].n - best.n
		best.plan, best.n = to, to.pieces[0].n
	}
}

// TestSpread has what is left over go to the same jobs as if nothing that is known were used again.
func TestSpread(t *testing.T) {
	raised := 0
	for seed := range uint64(300) {
		made := func() (*program, []span) {
			r := rand.New(rand.NewPCG(seed, 5))
			p := &program{elastic: &elastic{now: 60 * float64(r.IntN(10)), slot: 60, gpus: 16}}
			for i := range 2 + r.IntN(12) {
				rates := []float64{1, 1 + r.Float64(), 2 + r.Float64(), 3 + 2*r.Float64()}
				f := &flex{Outcome: begins(&Job{ID: fmt.Sprint(i), Deadline: p.now + 2000*r.Float64() - 100, Rates: rates, Batch: 64}), left: 1 + 1500*r.Float64(), levels: 1 + r.IntN(4)}
				p.runnable = append(p.runnable, f)
			}
			return p, slices.Clone(p.plan())
		}
		p, spans := made()
		naive, same := made()
		had := 0
		for _, f := range p.runnable {
			had += f.plan.pieces[0].n
		}
		p.spread(spans)
		naive.spreadNaively(same)
		for i, f := range p.runnable {
			raised += f.n
			if g := naive.runnable[i]; f.n != g.n || fmt.Sprint(f.plan) != fmt.Sprint(g.plan) {
				t.Fatalf("seed %d: job %d has %d GPUs and the plan %v, want %d and %v", seed, i, f.n, f.plan, g.n, g.plan)
			}
		}
		raised -= had
	}
	if raised < 1000 {
		t.Errorf("only %d GPUs were left over", raised)
	}
}
