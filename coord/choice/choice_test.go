package choice

import (
	"errors"
	"strings"
	"testing"

	"star/modes"
)

func TestRules(t *testing.T) {
	planted := errors.New("planted")
	local, shared := modes.SSGD(4), modes.SSGD(4)
	local.Local, shared.Shares = 3, []int{8, 4, 2, 2}
	for _, c := range []struct {
		name, spec string
		now, first modes.Plan
		change     func(*Rules)
		want, says string
	}{
		{name: "asynchronous", spec: "asgd", want: "asgd"},
		{name: "no mode", spec: "dance", says: "dance"},
		{name: "too few workers", spec: "x=9", says: "9"},
		{name: "the coordinators", spec: "asgd", change: func(r *Rules) { r.Replaceable = func(modes.Plan) error { return planted } }, says: "planted"},
		{name: "whole batches", spec: "asgd", change: func(r *Rules) {
			r.Uncut = func(p modes.Plan) (modes.Plan, error) { return p, planted }
		}, says: "mode asgd: planted: set star.loader(divisible=True)"},
		{name: "the workers", spec: "asgd", change: func(r *Rules) { r.Fits = func(modes.Plan) error { return planted } }, says: "planted"},
		{name: "shares stay", spec: "ssgd", now: shared, want: shared.String()},
		{name: "local steps stay", spec: "ssgd", now: local, want: local.String()},
		{name: "local steps of gradients", spec: "ssgd local=2", says: "permit no local steps"},
		{name: "strides", spec: "ssgd local=2", change: func(r *Rules) { r.Strides = true }, want: "ssgd local=2"},
		{name: "outer steps of a job that makes none", spec: "ssgd local=2 outer=nesterov", change: func(r *Rules) { r.Strides = true }, says: "permit no outer steps"},
		{name: "outer steps", spec: "ssgd local=2 outer=nesterov", change: func(r *Rules) { r.Outward = true }, want: "ssgd local=2 outer=nesterov(0.9,0.7)"},
		{name: "gradients after outer steps", spec: "ssgd", now: mode(t, "ssgd local=2 outer=nesterov"), change: func(r *Rules) { r.Outward = true }, want: "ssgd"},
		{name: "the mean after outer steps", spec: "ssgd local=2", now: mode(t, "ssgd local=2 outer=nesterov"), change: func(r *Rules) { r.Outward = true }, says: "permit no mean of local steps"},
		{name: "parts of batches after local steps", spec: "x=2 micro=2 cap=1s", now: local, says: "make local steps and send no gradients"},
		{name: "more kept gradients", spec: "kbatch-async=3", says: "lets shards keep 0 gradients"},
		{name: "as many kept gradients", spec: "kbatch-async=3", first: mode(t, "kbatch-async=3"), want: "kbatch-async=3"},
	} {
		r := Rules{Workers: 4, First: c.first, Uncut: func(p modes.Plan) (modes.Plan, error) { return p, nil }, Fits: func(modes.Plan) error { return nil }}
		if r.First.Groups == nil {
			r.First = modes.SSGD(4)
		}
		if c.now.Groups == nil {
			c.now = modes.SSGD(4)
		}
		if c.change != nil {
			c.change(&r)
		}
		p, err := r.Plan(c.spec, c.now)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		} else if err != nil || p.String() != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, p, err, c.want)
		}
	}
}

func mode(t *testing.T, spec string) modes.Plan {
	t.Helper()
	p, err := modes.Parse(spec, 4)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWords(t *testing.T) {
	m := New(" groups=0,1/2,3 ")
	p := mode(t, "groups=0,1/2,3")
	if got := m.Words(p, 4, false, ""); got != "groups=0,1/2,3" {
		t.Errorf("%q", got)
	}
	if got := m.Words(modes.Ring(4, 1), 4, false, "ring-minus=1"); got != "ring-minus=1" {
		t.Errorf("%q", got)
	}
	m.Set("asgd")
	if !m.ByHand() {
		t.Error("star ctl mode has set it")
	}
	m.Release()
	if m.ByHand() || m.Words(modes.SSGD(4), 4, true, "") != "ssgd" {
		t.Error("the pilot chooses again")
	}
}
