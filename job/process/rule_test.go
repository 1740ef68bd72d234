package process

import (
	"slices"
	"testing"

	"star/internal/settings"
	"star/job"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// A given value is what is trained with, also a zero; and what the settings allow the wire can say.
func TestZeroIsARate(t *testing.T) {
	for _, name := range []string{"sgd", "momentum", "nesterov", "adam", "adamw", "muon"} {
		_, rate, err := UpdateRule(&job.Job{Rule: job.Rule{Optimizer: name, LR: 0, Momentum: 0.9, Schedule: "constant"}})
		if err != nil || rate.At(0) != 0 {
			t.Errorf("%s with a learning rate of 0: %v, %v", name, rate.At(0), err)
		}
	}
	for _, o := range []baseline.Outer{{Rate: 0}, {Rate: 0, Momentum: 0.9}} {
		if rate, err := Outer(o).Rate(); err != nil || rate.At(0) != 0 {
			t.Errorf("outer %+v: %v, %v", o, rate.At(0), err)
		}
	}
	if settings.MaxMembers != wire.MaxWorkers {
		t.Errorf("settings allow %d workers, the wire %d", settings.MaxMembers, wire.MaxWorkers)
	}
}

// The state of outer steps is copied with that of the optimiser into a new rule, as a checkpoint or a copy brings it,
// also where the optimiser is another form of the same. A script gets only what its optimiser knows.
func TestStateOfOuterSteps(t *testing.T) {
	const n = 5
	made := func(name string) (rule.Rule, *optim.Optimizer) {
		o, err := optim.New(optim.Config{Name: name, LR: 0.1, Momentum: 0.9, Given: true}, n)
		if err != nil {
			t.Fatal(err)
		}
		return OwnRule(&job.Job{Workers: 2, MaxWorkers: 2}, o, optim.Schedule{}), o
	}
	step := func(r rule.Rule, params []float32) {
		gs := []rule.Gradient{{Worker: 0, Weight: 0.25, Vec: slices.Repeat([]float32{1}, n)}, {Worker: 1, Weight: 0.25, Vec: slices.Repeat([]float32{2}, n)}}
		rule.Inner(r).Outward(params, 0, gs, rule.Outer{Kind: rule.OuterDelayed, Momentum: 0.5, Rate: 0.5})
	}
	for _, to := range []string{"dana", "nesterov"} {
		was, o := made("dana")
		a := make([]float32, n)
		step(was, a)
		st := Copied(RuleState(was, func(r rule.Stateful) []rule.Slot { return r.Lasting(o.Len()) }))
		now, _ := made(to)
		if err := SetRuleState(now, st); err != nil {
			t.Fatal(err)
		}
		b := slices.Clone(a)
		for range 3 {
			step(was, a)
			step(now, b)
		}
		if !slices.Equal(a, b) {
			t.Errorf("%s goes on to %v, want %v", to, b, a)
		}
		if st, err := Recalled(was); err != nil || len(st.Slots) != 1 {
			t.Errorf("a script gets %d vectors, %v; want its velocity", len(st.Slots), err)
		}
		for _, bad := range []string{"outer.velocity sideways(1,2)", "outer.velocity nesterov(0.5,0.5)"} {
			wrong := st
			wrong.Slots = append(slices.Clone(st.Slots), optim.Slot{Name: bad, Data: make([]float32, n)})
			if err := SetRuleState(now, wrong); err == nil {
				t.Errorf("a state with %s is taken", bad)
			}
		}
	}
}
