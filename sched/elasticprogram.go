package sched

import (
	"cmp"
	"math"
	"slices"
)

// programMost is the most GPUs that ElasticFlow's program gives to a job of a model with a batch size, 0: any, where that is not what its throughputs say. T4 is the one of its two kinds of GPUs.
func programMost(j *Job, t4 bool) int {
	for _, m := range []struct {
		model string
		batch int // 0: all others
		t4    bool
		most  int
	}{
		{"gpt2", 128, false, 16}, {"gpt2", 256, false, 32}, {"bert", 64, false, 8}, {"bert", 128, false, 16}, {"inception3", 64, false, 16}, {"inception3", 128, false, 32},
		{"resnet50", 64, false, 32}, {"vgg16", 64, false, 32}, {"deepspeech2", 0, false, j.Batch},
		{"bert", 0, true, 16}, {"cifar10", 0, true, 16}, {"deepspeech2", 320, true, 32}, {"yolov3", 0, true, 4}, {"ncf", 0, true, 1},
	} {
		if m.t4 == t4 && m.model == j.Model && (m.batch == 0 || m.batch == j.Batch) {
			return m.most
		}
	}
	if t4 {
		return 64
	}
	return min(j.Batch, 64)
}

// program is a cluster under ef and ef-admission as ElasticFlow's program has them. Rounds are when jobs come, at least a slot apart, when they end, and, without admission, when one that
// had run before was to go on by any plan. A job ends with the last slot of its work, counted from the last round, and after what that round has cost it (groups), and has a slot more where a round comes after it is done and before its deadline;
// of a job that is late without admission the end is when its work was done. If any job would be late, all that come with it are declined, but those of best
// effort. What is left over goes, a doubling at a time, to who has none, then where a GPU more makes the GPU-seconds of a job's plan grow most.
type program struct {
	*elastic
	admission bool
	starts    []float64 // when jobs were to go on by plans that have been made without admission: those to come, in order
}

// elasticProgram simulates jobs under it.
func elasticProgram(jobs []*Job, c Cluster, o Options) []Outcome {
	p := &program{elastic: &elastic{now: -o.Slot, slot: o.Slot, gpus: c.Nodes * c.GPUs, compat: ElasticFlow}, admission: o.Policy == "ef-admission"}
	g := &groups{nodes: c.Nodes, gpus: c.GPUs, used: map[string]bool{}}
	t4 := slices.ContainsFunc(jobs, func(j *Job) bool { return slices.Contains([]string{"yolov3", "ncf", "imagenet", "cifar10"}, j.Model) })
	all := make([]*flex, len(jobs))
	for i, j := range jobs {
		f := &flex{Outcome: begins(j), left: j.Iterations}
		for l, r := range j.Rates {
			if r > 0 && 1<<l <= programMost(j, t4) {
				f.levels = l + 1
			}
		}
		all[i] = f
	}
	due := bySubmission(all)
	for event, ended := 1, 0; ; event++ {
		if event%reporting == 0 && o.Progress != nil {
			o.Progress(ended, len(jobs))
		}
		at, late := never, never
		for _, f := range p.runnable {
			if f.n > 0 && p.late(f) {
				late = min(late, p.end(f))
			} else if f.n > 0 {
				at = min(at, p.end(f))
			}
		}
		if len(due) > 0 {
			at = min(at, due[0].Submit)
		}
		if math.IsInf(at, 1) {
			at = late
		}
		if math.IsInf(at, 1) {
			break
		}
		if len(p.starts) > 0 {
			at = min(at, p.starts[0])
		}
		at = max(at, p.now+p.slot)
		for len(p.starts) > 0 && p.starts[0] <= at {
			p.starts = p.starts[1:]
		}
		ended += len(p.runnable)
		p.progress(at)
		ended -= len(p.runnable)
		p.now = at
		var new []*flex
		for len(due) > 0 && due[0].Submit <= at {
			f := due[0]
			due = due[1:]
			if f.level(p.gpus) == 0 {
				f.Why = fits(f.least(), p.gpus)
				continue
			}
			f.last = at
			new = append(new, f)
		}
		p.admit(new)
		p.allot(g)
	}
	out := make([]Outcome, len(all))
	for i, f := range all {
		out[i] = f.Outcome
		if !f.Declined() {
			out[i].Queue = f.Start - f.Submit
		}
	}
	return out
}

// nearly is how many iterations a job has left that is done and waits for the end of its slot: a round makes it wait for another one, until its deadline.
const nearly = 1e-6

// end is when a job that runs ends, if nothing changes.
func (p *program) end(f *flex) float64 {
	return p.aligned(p.done(f)) + f.lost
}

// done is when the work of a job that runs is done if it keeps its GPUs, though its plan may have others later.
func (p *program) done(f *flex) float64 {
	if f.left <= nearly && (f.Deadline <= p.now || !p.admission && math.IsInf(f.Deadline, 1)) { // without a deadline it could be made to wait for ever
		return p.now
	}
	return p.now + math.Ceil(f.left/f.rate(f.n))
}

// late is whether a job that was not asked whether it is in time runs past a deadline that is still to come. It ends with its work, which is no event: it goes with the next one.
func (p *program) late(f *flex) bool { return !p.admission && f.plan.missed && f.Deadline > p.now }

// progress brings all jobs up to a time, and ends those that are done.
func (p *program) progress(at float64) {
	p.runnable = slices.DeleteFunc(p.runnable, func(f *flex) bool {
		f.last = at
		if f.n == 0 {
			return false
		}
		end := p.end(f)
		done := p.done(f)
		if p.late(f) {
			end = min(end, done)
		}
		if end <= at {
			f.End = end
			f.has(f.End, 0)
			return true
		}
		worked := min(at, done+base(p.gpus)) - p.now - f.lost // a job is thought to be done when it would be on GPUs that it had before
		f.left = max(nearly, f.left-max(0, worked)*f.rate(f.n))
		return false
	})
}

// admit lets in those that have come, or none of them.
func (p *program) admit(new []*flex) {
	old := p.runnable
	p.runnable = slices.Concat(old, new)
	if len(new) == 0 || !p.admission {
		return
	}
	p.plan()
	if i := slices.IndexFunc(p.runnable, func(f *flex) bool { return f.plan.missed }); i >= 0 {
		late := p.runnable[i]
		p.runnable = old
		for _, f := range new {
			if f.BestEffort {
				p.runnable = append(p.runnable, f)
			} else {
				f.decline(p.elastic, late)
			}
		}
	}
}

// plan plans all jobs in order of their deadlines, and says what is left.
func (p *program) plan() []span { return elasticFlow{admission: true}.plan(p.elastic, p.runnable) }

// allot gives all jobs what is planned, and what is left over.
func (p *program) allot(g *groups) {
	for _, f := range p.runnable {
		f.was = f.n
	}
	spans := p.plan()
	if !p.admission {
		p.begins()
	}
	p.spread(spans)
	run := slices.DeleteFunc(slices.Clone(p.runnable), func(f *flex) bool { return f.n == 0 })
	if p.admission { // else those that came first get their GPUs first
		slices.SortStableFunc(run, func(a, b *flex) int { return cmp.Compare(b.n, a.n) })
	}
	g.charge(run, p.slot)
	for _, f := range p.runnable {
		if f.has(p.now, float64(f.n)); f.n > 0 && math.IsNaN(f.Start) {
			f.Start = p.now
		}
	}
}

// begins notes when jobs that have run before are to go on, if that is not within a slot: there is a round then, even if the job runs before, or has ended.
func (p *program) begins() {
	for _, f := range p.runnable {
		if math.IsNaN(f.Start) {
			continue
		}
		for _, x := range f.plan.pieces {
			if x.n == 0 {
				continue
			}
			if i, known := slices.BinarySearch(p.starts, x.from); !known && x.from > p.now+p.slot {
				p.starts = slices.Insert(p.starts, i, x.from)
			}
			break
		}
	}
}

// spread gives what is left over.
func (p *program) spread(spans []span) {
	free := p.gpus
	for _, f := range p.runnable {
		f.plan.merge() // all its bounds are bounds of spans
		f.n = f.plan.pieces[0].n
		free -= f.n
	}
	until := make([]float64, len(p.runnable)) // what is free is looked at until then for what is known of a job's next GPUs; 0: nothing is known
	grows := make([]float64, len(p.runnable))
	could := func(f *flex) bool { return f.next() <= f.most() && f.next()-f.n <= free }
	look := func(i int) {
		f := p.runnable[i]
		if until[i] > 0 {
			return
		}
		p.own = book(append(p.own[:0], spans...), f.plan, -1)
		f.to = p.share(f, &p.own, f.next(), f.to.pieces)
		f.to.merge()
		grows[i] = (f.to.gpuTime() - f.plan.gpuTime()) / float64(f.next()-f.n)
		until[i] = max(p.aligned(f.Deadline), f.to.pieces[len(f.to.pieces)-1].to)
	}
	for {
		best := slices.IndexFunc(p.runnable, func(f *flex) bool { return f.n == 0 && could(f) }) // whatever more brings to others
		if best >= 0 {
			look(best)
		} else {
			for i, f := range p.runnable {
				if !could(f) {
					continue
				}
				if look(i); best < 0 || grows[i] > grows[best] {
					best = i
				}
			}
		}
		if best < 0 {
			return
		}
		f := p.runnable[best]
		same := f.plan.until(f.to, spans)
		for i := range until {
			if until[i] > same || i == best {
				until[i] = 0
			}
		}
		spans = book(book(spans, f.plan, -1), f.to, 1)
		f.plan, f.to = f.to, f.plan
		free -= f.plan.pieces[0].n - f.n
		f.n = f.plan.pieces[0].n
	}
}

// next is how many GPUs a job has after the next doubling.
func (f *flex) next() int { return max(f.least(), 2*f.n) }

// until is up to when another plan leaves as much free as this one, but in the first span: what is free there does not matter to what more GPUs bring, but how long it is.
func (p plan) until(o plan, spans []span) float64 {
	if len(spans) < 2 {
		return 0
	}
	at, i, k := spans[1].from, 0, 0
	for {
		for i < len(p.pieces) && p.pieces[i].to <= at {
			i++
		}
		for k < len(o.pieces) && o.pieces[k].to <= at {
			k++
		}
		switch a, b := i < len(p.pieces), k < len(o.pieces); {
		case o.pieces[len(o.pieces)-1].to < spans[1].from:
			return 0
		case !a && !b:
			return never
		case !a || !b || p.pieces[i].n != o.pieces[k].n:
			return at
		default:
			at = min(p.pieces[i].to, o.pieces[k].to)
		}
	}
}
