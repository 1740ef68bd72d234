package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"star/coord/engine"
	"star/internal/compress"
	"star/internal/kernel"
	"star/job"
	"star/job/combinations"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train"
	"star/train/checkpoint"
	"star/train/optim"
)

// Optimizer is the optimiser of the job. It looks at Optimizer, LR, Momentum, WeightDecay and Schedule.
func Optimizer(job *job.Job) optim.Config {
	if len(job.Whole) > 0 {
		if c, err := parseOptimizer(job.Whole); err == nil { // Adopt has read it
			return c
		}
	}
	opt := optim.Config{Name: job.Optimizer, LR: job.LR, WeightDecay: job.WeightDecay, Schedule: job.Schedule, Given: true}
	if job.HasMomentum() {
		opt.Momentum = job.Momentum
	}
	return opt
}

// LocalSteps is how the workers of a job make local steps. Parameter servers tell them, as JSON.
type LocalSteps struct {
	optim.Config

	// Clip is the largest norm of the gradient of a step before an outer step. 0: no clipping.
	Clip float64 `json:"clip,omitempty"`
}

// parseOptimizer parses the optimiser of a worker's program.
func parseOptimizer(text []byte) (c optim.Config, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("the optimiser that the workers want cannot be read: %w", err)
	}
	c.Given = true
	if c.Name == optim.Own {
		return optim.Config{Name: c.Name, LR: c.LR, Given: true}, nil
	}
	if c.Name == optim.Nesterov && len(c.Groups) == 0 {
		c.Name = optim.DANA // the same if all workers wait for each other; elsewhere it tolerates stale gradients
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("the optimiser that the workers want: %w", err)
	}
	return c, nil
}

// Adopt sets the workers' update rule in job, if their program has one, unless job or its baseline
// determines it. text is an optimizer as JSON, or empty.
func Adopt(j *job.Job, text []byte) error {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	c, err := parseOptimizer(text)
	own := err == nil && c.Name == optim.Own
	if own && j.Arch != job.AllReduce {
		return &job.DisagreeError{Err: errors.New("the program of the workers makes the updates itself (own=True), which needs --arch allreduce: parameter servers have optimisers of their own")}
	}
	for _, name := range []string{"baseline", "optimizer", "lr", "momentum", "weight-decay", "schedule"} {
		switch given := j.IsSet(name) || name == "baseline" && j.Baseline != ""; {
		case given && own:
			return &job.DisagreeError{Err: fmt.Errorf("the program of the workers makes the updates itself (own=True), so --%s would do nothing: leave one of them away", name)}
		case given:
			return nil
		}
	}
	if err != nil {
		return &job.DisagreeError{Err: err}
	}
	var whole bytes.Buffer // the same on both sides of an enrolment, which has it without spaces
	if err := json.Compact(&whole, text); err != nil {
		return &job.DisagreeError{Err: err}
	}
	r := &j.Rule
	r.Optimizer, r.LR, r.Momentum, r.WeightDecay, r.Schedule, r.Whole = c.Name, c.LR, c.Momentum, c.WeightDecay, c.Schedule, whole.Bytes()
	return nil
}

// UpdateRule is the optimiser of the job, checked, with its learning rate.
func UpdateRule(job *job.Job) (optim.Config, optim.Schedule, error) {
	opt := Optimizer(job)
	if _, err := optim.ParseSchedule(job.Schedule, 1); err != nil {
		return opt, optim.Schedule{}, job.Invalid("schedule", err)
	}
	if opt.Name == optim.Own && len(job.Whole) > 0 {
		return opt, optim.Schedule{}, nil
	}
	if err := opt.Validate(); err != nil {
		return opt, optim.Schedule{}, job.Invalid("optimizer", err)
	}
	rate, err := opt.Rate()
	if err != nil {
		return opt, rate, job.Invalid("schedule", err)
	}
	return opt, rate, nil
}

// Shaped is c for the parameters of a model with that layout ([optim.Config.Shaped]).
func Shaped(c optim.Config, layout []train.TensorSpec) optim.Config {
	tensors := make([]optim.Tensor, len(layout))
	for i, t := range layout {
		tensors[i] = optim.Tensor{Name: t.Name, Shape: t.Shape, Offset: t.Offset}
	}
	return c.Shaped(tensors)
}

// OptimizerOf is the optimiser of a shard's rule, as NewRule has made it.
func OptimizerOf(r rule.Rule) *optim.Optimizer { return rule.Inner(r).Optimizer.(*optim.Optimizer) }

// Lossy reports whether a codec changes gradients by more than the rounding of half
// precision, so that their norms are not those that workers report.
func Lossy(codec string) bool {
	s, err := compress.ParseSpec(codec)
	return err != nil || s.Loss > compress.Half // auto may choose any
}

// OwnRule is the rule of a job's optimiser alone.
func OwnRule(job *job.Job, o *optim.Optimizer, rate optim.Schedule) rule.Rule {
	descent := &rule.Descent{Optimizer: o, Schedule: rate, Clip: job.Clip, Unit: o.Config().Unit()}
	if c := o.Config(); c.Name == optim.DANA {
		r := rule.NewWorkerMomentum(descent, job.Ranks(), c.Momentum, c.WeightDecay)
		r.Apart = job.UpdateScale == string(engine.ScaleFiring) || job.UpdateScale == string(engine.ScaleWorkers)
		return r
	}
	return descent
}

// RuleState is what a rule remembers: its optimiser's part first, that of outer steps last; with lasting what a
// checkpoint keeps of it.
func RuleState(r rule.Rule, slots func(rule.Stateful) []rule.Slot) optim.State {
	st := OptimizerOf(r).State()
	if more, ok := r.(rule.Stateful); ok {
		st.Slots = st.Slots[:len(st.Slots):len(st.Slots)]
		for _, slot := range slots(more) {
			st.Slots = append(st.Slots, optim.Slot(slot))
		}
	}
	if outer := rule.Inner(r).OuterSlots(OptimizerOf(r).Len()); len(outer) > 0 {
		st.Slots = st.Slots[:len(st.Slots):len(st.Slots)]
		for _, slot := range outer {
			st.Slots = append(st.Slots, optim.Slot(slot))
		}
	}
	return st
}

// cutOuter divides a state into that of the job's rule and that of outer steps. An error: a vector of outer steps has
// no valid name.
func cutOuter(st optim.State) (own optim.State, outer []rule.Slot, err error) {
	own = st
	own.Slots = nil
	for _, slot := range st.Slots {
		switch _, ok, err := rule.OuterSlot(slot.Name); {
		case err != nil:
			return own, nil, err
		case ok:
			outer = append(outer, rule.Slot(slot))
		default:
			own.Slots = append(own.Slots, slot)
		}
	}
	return own, outer, nil
}

// fitted is st for an optimiser of n parameters: what nesterov remembers is the one velocity of dana, and the mean
// of several takes as far.
func fitted(st optim.State, name string, n int) optim.State {
	switch {
	case name == optim.DANA && st.Name == optim.Nesterov && len(st.Slots) == 1:
		st.Name, st.Slots = name, []optim.Slot{{Name: rule.CommonVelocity, Data: st.Slots[0].Data}}
	case name == optim.Nesterov && st.Name == optim.DANA:
		mean := make([]float32, n)
		for _, v := range st.Slots {
			if len(v.Data) == n {
				kernel.Axpy(1/float32(len(st.Slots)), v.Data, mean)
			}
		}
		st.Name, st.Slots = name, []optim.Slot{{Name: optim.Config{Name: name}.SlotNames()[0], Data: mean}}
	}
	return st
}

// KeepOptimizer has a job that resumes use the optimizer of its checkpoint, unless one was set.
func KeepOptimizer(job *job.Job, m checkpoint.Manifest) {
	if job.Baseline != "" || job.IsSet("optimizer") {
		return
	}
	var was struct{ Optimizer string }
	if json.Unmarshal(m.Config, &was) != nil || was.Optimizer == "" {
		was.Optimizer = m.Optimizer
	}
	if (optim.Config{Name: was.Optimizer}).Validate() == nil && was.Optimizer != "" {
		job.Optimizer = was.Optimizer
	}
}

// BeginState is the optimiser state of a worker's program, for a rule of the job that continues from it: by the names
// of the rule's own state. An optimiser with other vectors is an error.
func BeginState(e *train.Experience, c optim.Config) (st optim.State, err error) {
	shared := c.Shared()
	names := shared.SlotNames()
	fits := len(names) == len(e.Slots)
	st = optim.State{Name: shared.Name, Steps: e.Steps}
	for _, name := range names {
		v, ok := e.Slots[name]
		fits = fits && ok
		st.Slots = append(st.Slots, optim.Slot{Name: name, Data: v})
	}
	if !fits {
		return st, fmt.Errorf("the script's %s has made %d steps, and what it remembers is of no use to %s, by which the job updates: leave --optimizer away, or attach an optimiser that is new", e.Rule, e.Steps, c.Name)
	}
	return st, nil
}

// Recalled is what a script's optimiser would remember after the updates that a rule has made, in vectors of its
// own: of velocities of several workers the mean. An error: the job's updates are not those of an optimiser that a
// script has.
func Recalled(r rule.Rule) (optim.State, error) {
	o := OptimizerOf(r)
	shared := o.Config().Shared()
	st, _, err := cutOuter(RuleState(r, func(r rule.Stateful) []rule.Slot { return r.Slots(o.Len()) }))
	if err != nil {
		return st, err
	}
	st = fitted(st, shared.Name, o.Len())
	own := len(shared.SlotNames())
	if len(st.Slots) < own {
		return st, fmt.Errorf("%s remembers %d vectors, not %d", st.Name, len(st.Slots), own)
	}
	st.Slots = st.Slots[:own] // what a baseline remembers besides is its own
	return Copied(st), nil
}

// SetRuleState makes a rule remember a state that RuleState returned.
func SetRuleState(r rule.Rule, st optim.State) error {
	o := OptimizerOf(r)
	st, outer, err := cutOuter(st)
	if err != nil {
		return err
	}
	st = fitted(st, o.Config().Name, o.Len())
	own := len(o.State().Slots)
	var more []rule.Slot
	for i, slot := range st.Slots {
		if i >= own {
			more = append(more, rule.Slot(slot))
		}
	}
	st.Slots = st.Slots[:min(own, len(st.Slots))]
	if err := o.SetState(st); err != nil {
		return err
	}
	if err := rule.Inner(r).SetOuterSlots(outer); err != nil {
		return err
	}
	switch r, ok := r.(rule.Stateful); {
	case ok:
		return r.SetSlots(more)
	case len(more) > 0:
		return fmt.Errorf("the state has %q, which belongs to a baseline: give the same --baseline, or start without the state", more[0].Name)
	}
	return nil
}

// Features are what of a job does not go together with everything, as far as it follows from settings alone.
func Features(j *job.Job) combinations.Set {
	return combinations.Set(0).
		With(combinations.AllReduce, j.Arch == job.AllReduce).
		With(combinations.Copies, j.Replicas > 1).
		With(combinations.Coordinators, len(j.Coordinators) > 0).
		With(combinations.Codec, j.Compress != "none").
		With(combinations.Lossy, Lossy(j.Compress)).
		With(combinations.Baseline, j.Baseline != "").
		With(combinations.Clip, j.Clip > 0).
		With(combinations.Scale, j.UpdateScale != string(engine.ScaleRound)).
		With(combinations.NotFiring, j.IsSet("update-scale") && j.UpdateScale != string(engine.ScaleFiring)).
		With(combinations.ByWorkers, j.UpdateScale == string(engine.ScaleWorkers)).
		With(combinations.NotSGD, j.Optimizer != optim.SGD).
		With(combinations.Adaptive, !Optimizer(j).WithDefaults().Strides()).
		With(combinations.Cluster, j.Cluster != "")
}

// MayStride returns why workers of a job without a baseline cannot make their own steps; nil: they can.
func MayStride(job *job.Job) error {
	if r := combinations.Against(combinations.Strides, Features(job)); r != nil {
		return r
	}
	return nil
}

// MayOuter returns why workers of a job cannot make local steps for an outer step ([rule.Outer]); nil: they can.
func MayOuter(job *job.Job) error {
	if job.Baseline != "" {
		return errors.New("a baseline defines what workers do between two releases; remove outer, or --baseline")
	}
	if r := combinations.Against(combinations.Outward, Features(job)); r != nil {
		return r
	}
	return nil
}

// RuleText is the update rule in words: what all members of a ring must agree on.
func RuleText(j *job.Job) string {
	momentum := ""
	if j.HasMomentum() {
		momentum = fmt.Sprintf(" momentum=%v", j.Momentum)
	}
	algorithm := ""
	if j.Algorithm != "auto" {
		algorithm = " allreduce-algorithm=" + j.Algorithm
	}
	if j.Transport != job.Auto {
		algorithm += " allreduce-transport=" + j.Transport
	}
	if j.Checksum != job.Auto {
		algorithm += " allreduce-checksum=" + j.Checksum
	}
	baseline := ""
	if j.Baseline != "" {
		baseline = " baseline=" + j.Baseline
	}
	if len(j.Whole) > 0 {
		algorithm += " whole=" + string(j.Whole)
	}
	return fmt.Sprintf("%s lr=%v%s weight-decay=%v clip=%v schedule=%s bucket=%v compress=%s%s%s",
		j.Optimizer, j.LR, momentum, j.WeightDecay, j.Clip, j.Schedule, j.Bucket, j.Compress, algorithm, baseline)
}

// Outer is the optimiser of the shards where workers train by themselves.
func Outer(o baseline.Outer) optim.Config {
	c := optim.Config{Name: optim.SGD, LR: o.Rate, Given: true}
	if o.Momentum > 0 {
		c.Name, c.Momentum = optim.Nesterov, o.Momentum
	}
	return c
}

// MakeBaseline makes what the job's baseline names; zero without one. It looks at Baseline, Arch, Workers and Batch.
func MakeBaseline(j *job.Job) (m baseline.Made, err error) {
	if j.Baseline == "" {
		return m, nil
	}
	spec, err := baseline.Parse(j.Baseline)
	if err != nil {
		return m, j.Invalid("baseline", err)
	}
	if r := combinations.Check(combinations.Set(0).With(combinations.AllReduce, j.Arch == job.AllReduce).With(combinations.ServersOnly, !spec.Entry.Ring)); r != nil {
		return m, j.Invalid(r.Setting, r)
	}
	if m, err = spec.Make(baseline.Job{Workers: j.Workers, Batch: j.Batch, Ring: j.Arch == job.AllReduce}); err != nil {
		return m, j.Invalid("baseline", err)
	}
	return m, nil
}
