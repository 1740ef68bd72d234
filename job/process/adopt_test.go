package process

import (
	"errors"
	"strings"
	"testing"

	"star/job"
)

func TestAdopt(t *testing.T) {
	const adam = `{"name":"adamw","lr":0.003,"beta1":0.8,"beta2":0.99,"epsilon":1e-6,"weight_decay":0.1,"groups":[{"from":0,"to":5,"factor":2,"weight_decay":0}]}`
	fresh := func() *job.Job { j := new(job.Job); j.Defaults(); return j }
	j := fresh()
	if err := Adopt(j, []byte(adam)); err != nil {
		t.Fatal(err)
	}
	c, _, err := UpdateRule(j)
	if err != nil || c.Name != "adamw" || c.Beta1 != 0.8 || len(c.Groups) != 1 || j.Optimizer != "adamw" || j.LR != 0.003 || !strings.Contains(RuleText(j), `"factor":2`) || MayStride(j) == nil {
		t.Errorf("%+v, %+v, %q, %v", c, j.Rule, RuleText(j), err)
	}
	// Nesterov's momentum becomes the form that bears stale gradients, unless groups differ.
	if j = fresh(); Adopt(j, []byte(`{"name":"nesterov","lr":0.1,"momentum":0.5}`)) != nil || j.Optimizer != "dana" || Optimizer(j).Momentum != 0.5 {
		t.Errorf("%+v", j.Rule)
	}
	if j = fresh(); Adopt(j, []byte(`{"name":"nesterov","lr":0.1,"momentum":0.5,"groups":[{"from":0,"to":5,"factor":2}]}`)) != nil || j.Optimizer != "nesterov" {
		t.Errorf("%+v", j.Rule)
	}
	// Given settings are kept.
	for _, name := range []string{"optimizer", "lr", "momentum", "weight-decay", "schedule"} {
		j := fresh()
		j.Given[name] = "--" + name
		if err := Adopt(j, []byte(adam)); err != nil || j.Optimizer != "dana" || len(j.Whole) > 0 {
			t.Errorf("--%s was given: %+v, %v", name, j.Rule, err)
		}
	}
	if j = fresh(); Adopt(j, nil) != nil || Adopt(j, []byte("null")) != nil || j.Optimizer != "dana" {
		t.Errorf("nothing was asked for: %+v", j.Rule)
	}
	// An optimiser of the program makes the updates itself: in a ring, and unless the settings ask for others.
	const own = `{"name":"own","lr":0.1}`
	j = fresh()
	j.Arch = job.AllReduce
	if err := Adopt(j, []byte(own)); err != nil || j.Optimizer != "own" || MayStride(j) == nil {
		t.Errorf("%+v, %v", j.Rule, err)
	}
	if c, _, err := UpdateRule(j); err != nil || c.Name != "own" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, _, err := UpdateRule(&job.Job{Rule: job.Rule{Optimizer: "own"}}); err == nil {
		t.Error("--optimizer own, and no program that has one")
	}
	for name, change := range map[string]func(*job.Job){
		"--arch": func(j *job.Job) { j.Arch = job.PS }, "--lr": func(j *job.Job) { j.Given["lr"] = "--lr" }, "--baseline": func(j *job.Job) { j.Baseline = "ssp" },
	} {
		var e *job.DisagreeError
		j := fresh()
		j.Arch = job.AllReduce
		if change(j); !errors.As(Adopt(j, []byte(own)), &e) || !strings.Contains(e.Error(), name) {
			t.Errorf("%s: %v", name, e)
		}
	}
	for _, bad := range []string{`{`, `{"name":"lion"}`, `{"name":"sgd","lr":-1}`, `{"name":"sgd","lr":0.1,"groups":[{"from":3,"to":1}]}`, `{"name":"sgd","lr":0.1,"schedule":"moon"}`} {
		var e *job.DisagreeError
		if err := Adopt(fresh(), []byte(bad)); !errors.As(err, &e) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
