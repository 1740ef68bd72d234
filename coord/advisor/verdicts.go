package advisor

import (
	"math"
	"slices"

	"star"
	"star/runlog"
)

// Verdicts has a pilot's verdicts on workers that are slow now. The zero value has none.
type Verdicts struct{ list []verdict }

// verdict is the last verdict on a worker.
type verdict struct {
	worker star.Worker
	text   string
	cause  string
	factor runlog.Factor // over all its verdicts since it became slow
}

// Take records a verdict, with its text; a verdict that the worker has recovered removes the earlier one.
func (vs *Verdicts) Take(v runlog.Verdict, text string) {
	var factor runlog.Factor
	if i := slices.IndexFunc(vs.list, func(o verdict) bool { return o.worker == v.Worker }); i >= 0 {
		factor = vs.list[i].factor
		vs.list = slices.Delete(vs.list, i, i+1)
	}
	factor.Add(float64(v.Slowdown))
	if v.Event != "recovered" {
		vs.list = append(vs.list, verdict{v.Worker, text, v.Cause, factor})
	}
}

// Texts returns the texts on the workers that are slow now, by rank.
func (vs *Verdicts) Texts() []string {
	slices.SortFunc(vs.list, func(a, b verdict) int { return int(a.worker - b.worker) })
	var out []string
	for _, v := range vs.list {
		out = append(out, v.text)
	}
	return out
}

// Of returns how many times slower a worker is than the fast ones, and why; 0 if it is not slow or the factor is
// unknown.
func (vs *Verdicts) Of(w star.Worker) (slowdown float64, cause string) {
	for _, v := range vs.list {
		if f := v.factor.Value(); v.worker == w && !math.IsNaN(f) {
			return f, v.cause
		}
	}
	return 0, ""
}
