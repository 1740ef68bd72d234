package sched

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"star/internal/settings"
	"star/sched"
	"star/sched/schedsim"
)

// noteUnused prints a note for each setting of star sched sim that affects none of the policies, so that a result is
// not misread. It is not an error, since scripts run several policies with the same settings.
func (p *schedSim) noteUnused(w io.Writer, jobs []*sched.Job, o sched.Options) {
	var all sched.Heed
	estimates := p.Format == "lucid"
	for _, o.Policy = range p.policies {
		h := o.Heeds(jobs)
		all.Alpha, all.Profiling, all.Users = all.Alpha || h.Alpha, all.Profiling || h.Profiling, all.Users || h.Users
		all.Slot, all.Resize = all.Slot || h.Slot, all.Resize || h.Resize
		estimates = estimates || o.Policy == "lucid"
	}
	names, do := strings.Join(p.policies, ", "), "do"
	if len(p.policies) == 1 {
		do = "does"
	}
	const allox = "allox, alloxplus, es, drf, drfext, drffifo, srpt, and for sjf with jobs of the format allox"
	for _, c := range []struct {
		name, of string
		heeded   bool
	}{
		{"alpha", "the fraction of the least-served users that allox considers: it is for the policies of AlloX's simulator, " + allox, all.Alpha},
		{"profiling", "whether parts of jobs run first: it is for " + allox, all.Profiling},
		{"queues", "the order of the users' queues: it is for " + allox, all.Users},
		{"slot", "how far apart rounds of policies are that plan: it is for edf, edf-admission, ef, ef-admission, pollux, star, themis, and for the others of ElasticFlow with its format", all.Slot},
		{"resize", "until more GPUs are of use: it is for " + strings.Join(sched.LivePolicies(), ", ") + ", with one kind of machines", all.Resize},
		{"estimates", "what lucid knows of jobs that share GPUs: it is for lucid, and for the format lucid", estimates},
	} {
		if schedsim.Flagged(&p.Set, c.name) && !c.heeded {
			fmt.Fprintf(w, "note: %s %s nothing with --%s, which says %s\n", names, do, c.name, c.of)
		}
	}
}

// notePredictions prints for policies that order jobs by a predicted duration how many jobs lack one: they count as the
// shortest. In the format lucid each job has one, which may be 0.
func (p *schedSim) notePredictions(w io.Writer, jobs []*sched.Job) {
	for _, c := range []struct {
		policy, column string
		of             func(*sched.Job) float64
	}{
		{"qssf", "history (lgb_priority)", func(j *sched.Job) float64 { return j.History }},
		{"lucid", "estimate (ebm_priority)", func(j *sched.Job) float64 { return j.Estimate }},
	} {
		if p.Format == "lucid" || !slices.Contains(p.policies, c.policy) {
			continue
		}
		none, first := 0, ""
		for _, j := range jobs {
			if c.of(j) == 0 {
				none, first = none+1, cmp.Or(first, j.ID)
			}
		}
		if none > 0 {
			fmt.Fprintf(w, "note: %d of %d jobs, such as %s, have 0 or nothing in the column %s: %s takes them for the shortest\n", none, len(jobs), first, c.column, c.policy)
		}
	}
}

// dependent refuses settings that were given without those that they belong to.
func (p *schedSim) dependent() error {
	for _, c := range []struct {
		name, with string
		there      bool
	}{
		{"slow-mode", "what a slow node does to a job: give --slow, too", p.slow != ""},
		{"seed", "those of --estimate-error: give that, too; --slow and --revoke have seeds of their own (seed:N, seed=N)", schedsim.Flagged(&p.Set, "estimate-error") || p.estimateError > 0},
	} {
		if schedsim.Flagged(&p.Set, c.name) && !c.there {
			return p.Set.Invalid(c.name, errors.New("says "+c.with))
		}
	}
	return nil
}

// refuse returns the error for the first of some settings on the command line, with the reason.
func refuse(s *settings.Set, why string, names ...string) error {
	if i := slices.IndexFunc(names, func(name string) bool { return schedsim.Flagged(s, name) }); i >= 0 {
		return s.Invalid(names[i], errors.New(why))
	}
	return nil
}
