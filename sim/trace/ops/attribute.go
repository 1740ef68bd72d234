package ops

import (
	"maps"
	"math"
	"slices"
)

// Result is the cost of a job's stragglers, and their attribution. Times are means over the steps,
// in the unit of the trace; slowdowns are multiples of Ideal.
type Result struct {
	Meta  Meta
	Steps []Times // of each step

	Recorded float64 // as recorded
	Launched float64 // the same operations without the gaps between them
	Ideal    float64 // and with the usual durations

	Slowdown float64 // S: Launched / Ideal
	Launch   float64 // Recorded / Launched

	// What the step would take as a multiple of Ideal if only these had their recorded durations.
	Types   map[string]float64 // S_t by type; forward-pp-comm and backward-pp-comm are both halves of transfers
	Data    []float64          // by data rank
	Stages  []float64          // by stage
	Workers []float64          // S_w, at Data rank × stages + stage
	Bounded bool               // Workers are not simulated one by one, but the lesser of the data rank's and the stage's

	Worst Part // M_W: the slowest 3 % of the workers, at least one
	Last  Part // M_S: the last stage
}

// Times are those of one step.
type Times struct {
	Step                      int64
	Recorded, Launched, Ideal float64
}

// Part is what a part of the workers has done. Means over the steps.
type Part struct {
	Workers  []int   // Data rank × stages + stage
	Repaired float64 // time with their operations ideal and all others as recorded
	Alone    float64 // time with their operations as recorded and all others ideal
	Removed  float64 // M: part of the damage that goes away with them; NaN where there is no damage
	Added    float64 // part of it that remains with them alone
}

// maxVisits bounds how many operations are gone through to simulate workers one by one: some minutes.
const maxVisits = 2_000_000_000

// Attribute says what the stragglers cost.
func (j *Job) Attribute() Result {
	m := j.Meta
	n := m.Data * m.Stages
	r := Result{Meta: m, Types: map[string]float64{}, Data: make([]float64, m.Data), Stages: make([]float64, m.Stages), Workers: make([]float64, n)}
	all := func(Op) bool { return true }
	none := func(Op) bool { return false }
	launched, ideal := j.times(none), j.times(all)
	total := 0
	for i, s := range j.steps {
		r.Steps = append(r.Steps, Times{Step: j.Steps[i], Recorded: s.recorded, Launched: launched[i], Ideal: ideal[i]})
		r.Recorded += s.recorded / float64(len(j.steps))
		total += len(s.ops)
	}
	r.Launched, r.Ideal = mean(launched), mean(ideal)
	r.Slowdown, r.Launch = r.Launched/r.Ideal, r.Recorded/r.Launched

	but := func(kept func(Op) bool) float64 {
		return mean(j.times(func(o Op) bool { return !kept(o) })) / r.Ideal
	}
	categories := map[string]bool{}
	for _, s := range j.steps {
		for _, o := range s.ops {
			categories[o.Type.category()] = true
		}
	}
	for _, c := range slices.Sorted(maps.Keys(categories)) {
		r.Types[c] = but(func(o Op) bool { return o.Type.category() == c })
	}
	for d := range r.Data {
		r.Data[d] = but(func(o Op) bool { return o.Data == d })
	}
	for s := range r.Stages {
		r.Stages[s] = but(func(o Op) bool { return o.Stage == s })
	}
	r.Bounded = n*total > maxVisits
	for w := range r.Workers {
		d, s := w/m.Stages, w%m.Stages
		if r.Bounded {
			r.Workers[w] = min(r.Data[d], r.Stages[s])
		} else {
			r.Workers[w] = but(func(o Op) bool { return o.Data == d && o.Stage == s })
		}
	}
	part := func(ws []int) Part {
		in := make([]bool, n)
		for _, w := range ws {
			in[w] = true
		}
		among := func(o Op) bool { return in[o.Data*m.Stages+o.Stage] }
		p := Part{Workers: ws, Repaired: mean(j.times(among)), Alone: mean(j.times(func(o Op) bool { return !among(o) }))}
		damage := r.Launched - r.Ideal
		if damage == 0 {
			damage = math.NaN()
		}
		p.Removed, p.Added = (r.Launched-p.Repaired)/damage, (p.Alone-r.Ideal)/damage
		return p
	}
	r.Worst = part(slowest(r.Workers, max(1, (3*n+50)/100)))
	var last []int
	for d := range m.Data {
		last = append(last, d*m.Stages+m.Stages-1)
	}
	r.Last = part(last)
	return r
}

// times are those of all steps.
func (j *Job) times(repaired func(Op) bool) []float64 {
	out := make([]float64, len(j.steps))
	var end []float64
	for i := range j.steps {
		s := &j.steps[i]
		if cap(end) < len(s.ops) {
			end = make([]float64, len(s.ops))
		}
		out[i] = s.time(&j.ideal, repaired, end[:len(s.ops)])
	}
	return out
}

func mean(of []float64) float64 {
	sum := 0.0
	for _, x := range of {
		sum += x
	}
	return sum / float64(len(of))
}

// Compute is how long each worker of a step computed forward and backward, at Data rank × stages + stage.
func (j *Job) Compute(step int) []float64 {
	took := make([]float64, j.Meta.Data*j.Meta.Stages)
	for _, o := range j.steps[step].ops {
		if o.Type == Forward || o.Type == Backward {
			took[o.Data*j.Meta.Stages+o.Stage] += o.Took
		}
	}
	return took
}
