package main

import (
	"strings"
	"testing"
)

// Switches of two runs are paired in order, as many as can be, if the plan is the same and they are near.
func TestAgreed(t *testing.T) {
	at := func(texts ...string) (out []fidelitySwitch) {
		for i, p := range texts {
			if p != "" {
				out = append(out, fidelitySwitch{Samples: int64(100 * i), Plan: p})
			}
		}
		return out
	}
	for _, c := range []struct {
		a, b []fidelitySwitch
		want int
	}{
		{at(), at("asgd"), 0},
		{at("asgd", "ssgd"), at("asgd", "ssgd"), 2},
		{at("asgd", "ssgd"), at("ssgd", "asgd"), 1},         // in order
		{at("asgd", "", "", "ssgd"), at("ssgd"), 0},         // too far
		{at("asgd", "ssgd", "asgd"), at("x=2", "asgd"), 1},  // one of a pair each
		{at("asgd", "ssgd", "x=2"), at("ssgd", "x=2"), 2},   // the first has no partner
		{at("", "asgd", "ssgd"), at("asgd", "", "ssgd"), 2}, // both are late or early
	} {
		if got := agreed(c.a, c.b, 100); got != c.want {
			t.Errorf("%v and %v: %d, want %d", c.a, c.b, got, c.want)
		}
		same := 0
		for _, s := range c.a {
			if s.Same {
				same++
			}
		}
		if same != c.want {
			t.Errorf("%v: %d are marked, want %d", c.a, same, c.want)
		}
	}
}

// A run that was not of a trace in its own times cannot be compared, and says so.
func TestFidelityNeedsATrace(t *testing.T) {
	_, err := fidelity(t.Context(), "testdata/explain.jsonl.gz")
	if err == nil || !strings.Contains(err.Error(), "--straggler-iteration") || !strings.HasPrefix(err.Error(), "testdata/explain.jsonl.gz: ") {
		t.Errorf("error %v", err)
	}
}
