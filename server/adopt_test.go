package server

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"star/coord"
	"star/coord/session"
	"star/internal/exitcode"
	"star/job"
)

// TestWholeBatches: a program with batches that must stay whole has the job begin without a queue, and refuses what
// cannot do without cutting or resizing.
func TestWholeBatches(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy Policy
		named  string // of the baseline
		whole  bool   // as the program says
		plan   string
		says   string
	}{
		{name: "as it is", policy: Policy{Mode: "ssgd queue=8"}, plan: "ssgd queue=8"},
		{name: "queue", policy: Policy{Mode: "ssgd queue=8"}, whole: true, plan: "ssgd"},
		{name: "static order", policy: Policy{Mode: "x=2"}, whole: true, plan: "x=2"},
		{name: "given shares", policy: Policy{Mode: "ssgd", Shares: []int{8, 4, 4}}, whole: true, plan: "ssgd shares=8,4,4"},
		{name: "by setting", policy: Policy{Mode: "ssgd queue=8", Whole: true}, plan: "ssgd"},
		{name: "parts", policy: Policy{Mode: "x=2 micro=4 cap=1s"}, whole: true, says: "micro=4 cuts mini-batches"},
		{name: "baseline of shares", named: "lb-bsp", whole: true, says: "lb-bsp resizes batches"},
		{name: "baseline of parts", named: "dropcompute", whole: true, says: "cuts mini-batches"},
		{name: "auto", policy: Policy{Mode: job.Auto}, whole: true, plan: "ssgd"},
	} {
		job := &Config{Policy: c.policy}
		job.Workers, job.Batch, job.Baseline, job.Optimizer, job.LR, job.Compress = 3, 16, c.named, "sgd", 0.1, "none"
		s := &server{job: job, log: slog.New(slog.DiscardHandler)}
		err := s.prepare()
		if err == nil {
			var a coord.Adopted
			a, err = s.adopt(session.Enrolment{Whole: c.whole})
			if err == nil && a.Whole != (c.whole || c.policy.Whole) {
				t.Errorf("%s: the coordinator is told %v", c.name, a.Whole)
			}
			if err == nil && a.Plan != nil && a.Plan.String() != c.plan {
				t.Errorf("%s: the coordinator gets %v, want %s", c.name, a.Plan, c.plan)
			}
		}
		var code interface{ ExitCode() int }
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "divisible=True") {
				t.Errorf("%s: error %v, want one with %q and what to do", c.name, err, c.says)
			} else if errors.As(err, &code) && code.ExitCode() != exitcode.Usage {
				t.Errorf("%s: exit code %d", c.name, code.ExitCode())
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case s.plan.String() != c.plan:
			t.Errorf("%s: plan %v, want %s", c.name, s.plan, c.plan)
		}
	}
}

// Shards are not cut within the matrices of muon; workers without a layout cannot use it.
func TestUncut(t *testing.T) {
	layout := []session.Tensor{{Name: "a.weight", Shape: []int{4, 3}}, {Name: "a.bias", Shape: []int{4}, Offset: 12}, {Name: "head.weight", Shape: []int{2, 4}, Offset: 16}}
	for _, c := range []struct {
		optimizer, baseline string
		layout              []session.Tensor
		want                []coord.Range
		says                string
	}{
		{"muon", "", layout, []coord.Range{{From: 0, To: 12}}, ""},
		{"muon", "", nil, nil, "have workers send a layout"},
		{"adam", "", nil, nil, ""},
		{"adam", "", layout, nil, ""},
		{"muon", "local-sgd", layout, nil, ""},
	} {
		job := &Config{Policy: Policy{Mode: "ssgd"}}
		job.Workers, job.Batch, job.Baseline, job.Optimizer, job.LR, job.Momentum, job.Compress, job.UpdateScale = 3, 16, c.baseline, c.optimizer, 0.1, 0.9, "none", "n"
		s := &server{job: job, log: slog.New(slog.DiscardHandler)}
		if err := s.prepare(); err != nil {
			t.Fatal(err)
		}
		a, err := s.adopt(session.Enrolment{Layout: c.layout})
		if !slices.Equal(a.Uncut, c.want) || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s: %v, %v", c.optimizer, c.baseline, a.Uncut, err)
		}
	}
}
