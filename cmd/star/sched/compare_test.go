package sched

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"star/runlog"
	"star/sched"
)

// Two schedules of six jobs, by hand: one ends sooner, one later, one the same, two in one of them alone, and one is
// declined in both.
func TestPairUp(t *testing.T) {
	nan, never := math.NaN(), math.Inf(1)
	job := func(id string, deadline, start, end float64, why string) sched.Outcome {
		return sched.Outcome{Job: &sched.Job{ID: id, Deadline: deadline}, Start: start, End: end, Why: why}
	}
	a := []sched.Outcome{job("sooner", 15, 5, 20, ""), job("later", 15, 2, 10, ""), job("same", never, 0, 3, ""), job("a", 15, 1, 4, ""), job("b", never, nan, nan, "why"), job("none", never, nan, nan, "why")}
	b := []sched.Outcome{job("none", never, nan, nan, "why"), job("sooner", 15, 0, 14, ""), job("later", 15, 2, 25, ""), job("same", never, 0, 3, ""), job("a", 15, nan, nan, "why"), job("b", never, 7, 9, "")}
	p, err := pairUp(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if p.Jobs != 6 || p.Both != 3 || p.OnlyA != 1 || p.OnlyB != 1 || p.Same != 2 || p.Sooner != 1 || p.Later != 1 || p.MetA != 2 || p.MetB != 2 {
		t.Errorf("%+v", p)
	}
	// The differences are -6, 15 and 0.
	if want := math.Sqrt((81. + 144 + 9) / 2 / 3); p.JCTA != 11 || p.JCTB != 14 || p.Mean != 3 || math.Abs(float64(p.Error)-want) > 1e-12 {
		t.Errorf("means %v and %v, difference %v ± %v, want 11, 14 and 3 ± %v", p.JCTA, p.JCTB, p.Mean, p.Error, want)
	}
	var order []string
	for _, d := range p.Differ {
		order = append(order, d.Job)
	}
	if got := strings.Join(order, " "); got != "sooner a b later" { // three of them from 0 s on
		t.Errorf("they differ in the order %s", got)
	}
	var out bytes.Buffer
	if err := writeDifferences(&out, []*schedPair{p}); err != nil || !strings.Contains(out.String(), "\n,,later,2,2,10,25,false,false,15\n") || !strings.Contains(out.String(), "\n,,b,,7,,9,true,false,\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, c := range []struct {
		a, b []sched.Outcome
		want string
	}{{a[:5], b, "job none is in the second schedule alone"}, {a, b[1:], "job none is in the first schedule alone"}} {
		if _, err := pairUp(c.a, c.b); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if p, _ := pairUp(a[5:], b[:1]); !math.IsNaN(float64(p.Mean)) || !(runlog.Number.IsZero(p.Error)) {
		t.Errorf("of no job that ended in both: %v ± %v, want nothing", p.Mean, p.Error)
	}
}
