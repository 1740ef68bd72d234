package compare

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"star/observe/explain"
	"star/runlog"
)

// Run is what a log says of a run.
type Run struct {
	Name    string        `json:"name"`
	Program string        `json:"program"`
	Job     string        `json:"job"`
	Arch    string        `json:"arch"` // ps or allreduce
	Model   string        `json:"model"`
	Workers int           `json:"workers"`
	Updates int64         `json:"updates"`
	Samples int64         `json:"samples"`
	Wall    float64       `json:"wall_s"`
	Ended   string        `json:"ended"` // ended, failed, or open: the log has no summary
	Error   string        `json:"error,omitempty"`
	Lacks   string        `json:"lacks,omitempty"` // what the log's size limit dropped
	Lost    int           `json:"lost_workers"`
	Slow    []Slow        `json:"slow"`
	Modes   []Mode        `json:"modes"` // by their time
	Changes int           `json:"mode_changes"`
	Waited  runlog.Number `json:"waited"` // share of the workers' time
}

// Slow is the times in which one worker, or all together (Worker -1), were slow for one cause.
type Slow struct {
	Worker   int           `json:"worker"`
	Cause    string        `json:"cause"`
	Times    int           `json:"times"`
	Share    float64       `json:"share"` // of the run's time
	Slowdown runlog.Number `json:"slowdown"`
}

// Mode is a mode, and its share of the run's time.
type Mode struct {
	Plan  string  `json:"plan"`
	Share float64 `json:"share"`
}

// Estimate is a mean over a run.
type Estimate struct {
	Mean  float64 // NaN: unknown
	Error float64 // standard error; NaN: unknown
	Count float64 // of independent observations
}

var unknown = Estimate{Mean: math.NaN(), Error: math.NaN()}

// Difference is a quantity of both runs. Times are in seconds.
type Difference struct {
	Name    string        `json:"name"`
	Unit    string        `json:"unit"`
	At      float64       `json:"at_samples,omitempty"` // samples after which it is compared
	A       runlog.Number `json:"a"`
	B       runlog.Number `json:"b"`
	Change  runlog.Number `json:"change"` // B − A
	Noise   runlog.Number `json:"noise"`  // half the 99 % interval of the change; null: unknown
	Differs bool          `json:"differs"`
}

// Setting is a setting with different values.
type Setting struct {
	Name string `json:"name"`
	A    any    `json:"a"` // nil: it is not there
	B    any    `json:"b"`
}

// Comparison is what differs between two runs.
type Comparison struct {
	A          Run          `json:"a"`
	B          Run          `json:"b"`
	Settings   []Setting    `json:"settings"`
	Quantities []Difference `json:"quantities"`
	Loss       []Difference `json:"loss"`     // in training, after equal samples
	Accuracy   []Difference `json:"accuracy"` // on the test set, after equal samples
	Reached    []Difference `json:"reached"`  // seconds until the best accuracy that both have reached
	Curves     [2]Curve     `json:"curves"`
}

// Curve is the loss in training over samples.
type Curve struct {
	Samples []float64       `json:"samples"`
	Loss    []runlog.Number `json:"loss"`
}

// apart are settings that differ between any two runs, or say nothing of what they do.
var apart = []string{"job", "listen", "advertise", "coordinator", "coordinators", "http", "hosts", "token", "out", "resume", "progress", "print-placement"}

// Of compares two runs. read is what runlog.Read returned for each.
func Of(a, b *Reader, names [2]string, read [2]runlog.Contents) Comparison {
	c := Comparison{Settings: []Setting{}, Loss: []Difference{}, Accuracy: []Difference{}, Reached: []Difference{}}
	c.A, c.B = a.run(names[0], read[0]), b.run(names[1], read[1])
	keys := maps.Clone(a.config)
	if keys == nil {
		keys = map[string]any{}
	}
	maps.Copy(keys, b.config)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if x, y := a.config[k], b.config[k]; !slices.Contains(apart, k) && fmt.Sprint(x) != fmt.Sprint(y) {
			c.Settings = append(c.Settings, Setting{k, x, y})
		}
	}
	for _, q := range []struct {
		name, unit string
		of         func(r *Reader) *bins
	}{
		{"pace", "samples/s", func(r *Reader) *bins { return &r.pace }},
		{"own time of a sample", "s", func(r *Reader) *bins { return &r.sample }},
		{"load", "s", func(r *Reader) *bins { return &r.load }},
		{"compute", "s", func(r *Reader) *bins { return &r.compute }},
		{"push", "s", func(r *Reader) *bins { return &r.exchange }},
		{"pull", "s", func(r *Reader) *bins { return &r.pull }},
		{"wait", "s", func(r *Reader) *bins { return &r.wait }},
		{"bytes of a step", "B", func(r *Reader) *bins { return &r.bytes }},
		{"staleness", "updates", func(r *Reader) *bins { return &r.stale }},
	} {
		x, y := q.of(a).estimate(), q.of(b).estimate()
		if x.Mean == 0 && y.Mean == 0 || math.IsNaN(x.Mean) && math.IsNaN(y.Mean) {
			continue
		}
		c.Quantities = append(c.Quantities, difference(q.name, q.unit, x, y))
	}
	c.learning(a, b)
	c.Curves = [2]Curve{a.curve(), b.curve()}
	return c
}

func difference(name, unit string, x, y Estimate) Difference {
	delta, half, differs := between(x, y)
	return Difference{Name: name, Unit: unit, A: runlog.Number(x.Mean), B: runlog.Number(y.Mean), Change: runlog.Number(delta), Noise: runlog.Number(half), Differs: differs}
}

// learning compares losses and accuracies after equal samples.
func (c *Comparison) learning(a, b *Reader) {
	if len(a.losses) > 0 && len(b.losses) > 0 {
		from := max(a.losses[0].samples, b.losses[0].samples)
		to := min(a.losses[len(a.losses)-1].samples, b.losses[len(b.losses)-1].samples)
		for _, share := range []float64{0.25, 0.5, 0.75, 1} {
			width := 0.05 * (to - from)
			at := from + share*(to-from) - width
			if x, y := a.near(at, width), b.near(at, width); width > 0 && x.Count > 0 && y.Count > 0 {
				d := difference("loss", "", x, y)
				d.At = math.Round(at)
				c.Loss = append(c.Loss, d)
			}
		}
	}
	// the last pair of evaluations after about the same samples, and one in the middle
	var pairs [][2]int
	for i, x := range a.evals {
		for j, y := range b.evals {
			if d := math.Abs(float64(x.Samples - y.Samples)); d <= 0.02*float64(max(x.Samples, y.Samples)) && x.Samples > 0 && finite(x.Accuracy) && finite(y.Accuracy) {
				pairs = append(pairs, [2]int{i, j})
				break
			}
		}
	}
	if n := len(pairs); n > 2 {
		pairs = [][2]int{pairs[n/2], pairs[n-1]}
	}
	best := math.Inf(1)
	for _, p := range pairs {
		d := difference("accuracy", "", proportion(a.evals[p[0]]), proportion(b.evals[p[1]]))
		d.At = float64(a.evals[p[0]].Samples)
		c.Accuracy = append(c.Accuracy, d)
	}
	for _, r := range []*Reader{a, b} {
		top := math.Inf(-1)
		for _, e := range r.evals {
			if finite(e.Accuracy) {
				top = max(top, float64(e.Accuracy))
			}
		}
		best = min(best, top)
	}
	if !math.IsInf(best, 0) {
		x, y := a.reached(best), b.reached(best)
		c.Reached = append(c.Reached, Difference{Name: fmt.Sprintf("accuracy %.2f %%", 100*best), Unit: "s", A: runlog.Number(x), B: runlog.Number(y), Change: runlog.Number(y - x), Noise: runlog.Number(math.NaN())})
	}
}

func finite(n runlog.Number) bool { return float64(n)-float64(n) == 0 }

// proportion is the accuracy of an evaluation, as of independent predictions.
func proportion(e runlog.Eval) Estimate {
	p, n := float64(e.Accuracy), float64(max(e.Count, 1))
	q := (p*n + 1) / (n + 2) // never 0 or 1
	return Estimate{Mean: p, Error: math.Sqrt(q * (1 - q) / n), Count: n}
}

// reached is the time of the first evaluation with an accuracy.
func (r *Reader) reached(accuracy float64) float64 {
	for i, e := range r.evals {
		if float64(e.Accuracy) >= accuracy {
			return r.times[i].Seconds()
		}
	}
	return math.NaN()
}

// curve is the loss over samples in 100 stretches.
func (r *Reader) curve() Curve {
	c := Curve{Samples: []float64{}, Loss: []runlog.Number{}}
	const points = 100
	for i, n := 0, len(r.losses); i < n; {
		k := min(i+max(n/points, 1), n)
		var samples, loss float64
		for _, p := range r.losses[i:k] {
			samples, loss = samples+p.samples/float64(k-i), loss+p.loss/float64(k-i)
		}
		c.Samples, c.Loss, i = append(c.Samples, math.Round(samples)), append(c.Loss, runlog.Number(loss)), k
	}
	return c
}

// run describes one run.
func (r *Reader) run(name string, read runlog.Contents) Run {
	s := r.teller.Story(read)
	x := Run{Name: name, Program: s.Start.Program, Job: s.Start.Job, Arch: s.Arch, Updates: s.Updates, Samples: s.Samples, Ended: "open", Lacks: s.Lacks(), Lost: len(s.Gone), Slow: []Slow{}, Modes: []Mode{}, Changes: len(s.Changes), Waited: runlog.Number(math.NaN())}
	if s.End != nil {
		if x.Ended, x.Error = "ended", s.End.Error; x.Error != "" {
			x.Ended = "failed"
		}
	}
	if r.train == nil {
		return x
	}
	x.Model, x.Workers = r.train.Model, r.train.Workers-len(r.train.Absent)
	wall := s.Ended - s.Began
	if s.End != nil {
		wall = s.End.Wall.Duration()
	}
	x.Wall = wall.Seconds()
	r.plans[r.plan] += r.last - r.since
	share := func(d time.Duration) float64 {
		return math.Round(1e3*d.Seconds()/max((s.Ended-s.Began).Seconds(), 1e-9)) / 1e3
	}
	for _, plan := range slices.Sorted(maps.Keys(r.plans)) {
		x.Modes = append(x.Modes, Mode{plan, share(r.plans[plan])})
	}
	slices.SortStableFunc(x.Modes, func(a, b Mode) int { return cmp.Compare(b.Share, a.Share) })
	x.Slow = slow(s, share)
	var busy, wait time.Duration
	for i := range s.Workers {
		for _, it := range s.Workers[i].Iterations {
			busy, wait = busy+it.Busy, wait+it.Wait
		}
	}
	if busy+wait > 0 {
		x.Waited = runlog.Number(math.Round(1e3*float64(wait)/float64(busy+wait)) / 1e3)
	}
	return x
}

// slow are the times of slow workers, and of all together, the longest first.
func slow(s *explain.Story, share func(time.Duration) float64) []Slow {
	type key struct {
		worker int
		cause  string
	}
	long, times, factors := map[key]time.Duration{}, map[key]int{}, map[key]*runlog.Factor{}
	add := func(k key, d time.Duration, factor float64) {
		if factors[k] == nil {
			factors[k] = new(runlog.Factor)
		}
		factors[k].Add(factor)
		long[k] += d
		times[k]++
	}
	for _, e := range s.Episodes {
		add(key{int(e.Worker), e.Cause}, e.Until-e.Since, e.Slowdown)
	}
	for _, e := range s.Together {
		add(key{-1, e.Cause}, e.Until-e.Since, float64(e.Slowdown.Slowdown))
	}
	all := []Slow{}
	for k, d := range long {
		all = append(all, Slow{k.worker, k.cause, times[k], share(d), runlog.Number(factors[k].Value())})
	}
	slices.SortFunc(all, func(a, b Slow) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Cause, b.Cause))
	})
	return all
}
