package sched

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Options configure a simulation.
type Options struct {
	Policy string  // one of Policies
	Slot   float64 // shortest time between rounds of policies that plan, s
	// Horizon is how far, in s, ef and ef-admission plan ahead, each job once; 0: no limit, all jobs at each decision.
	Horizon float64
	// Start is how long, in s, a job makes no progress when it starts or resumes, under policies of LivePolicies.
	Start float64
	// Resize is how long, in s, additional GPUs of a running job do not contribute, under those of them that plan; 0:
	// Start.
	Resize float64

	// Placement is the rule for policies that start jobs on the GPUs that they request.
	Placement Placement

	// Progress, if not nil, is called occasionally with how many of a virtual cluster's jobs have ended, and how many
	// there are. Lucid's, AlloX's and Muri's policies do not call it.
	Progress func(ended, jobs int)

	Profile *Profile // for lucid

	// For jobs with Either:
	Alpha     float64  // fraction of the least-served users that AlloX considers, in (0, 1]
	Profiling bool     // parts of each job run first, to estimate its durations
	Users     []string // order of users; users not listed come last
}

// reporting is the number of decisions between calls of Progress.
const reporting = 64

// policies maps each policy to its constructor if it starts jobs on the GPUs that they request. The others are nil.
var policies = map[string]func() Policy{
	"fifo": FIFO, "sjf": SJF, "srtf": SRTF, "srsf": SRSF, "qssf": QSSF, "tiresias": Tiresias, "gandiva": Gandiva,
	"themis": func() Policy { return Themis(0) }, "chronus": Chronus,
	"edf": nil, "edf-admission": nil, "ef": nil, "ef-admission": nil, "pollux": nil, "star": nil, "lucid": nil, "muri-s": nil, "muri-l": nil,
}

func init() {
	for name := range mixedPolicies {
		if _, ok := policies[name]; !ok { // sjf is in both maps
			policies[name] = nil
		}
	}
}

// Policies lists the names of the policies.
func Policies() (names []string) {
	for n := range policies {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Known returns the policy that has another name elsewhere (in ElasticFlow's and Muri's programs, or elasticflow in
// star sched serve), or "".
func Known(elsewhere string) string {
	return map[string]string{"elasticflow": "ef-admission", "ef-accessctrl": "ef-admission", "edf-accessctrl": "edf-admission", "dlas-gpu": "tiresias",
		"shortest": "srtf", "shortest-gpu": "srsf", "multi-resource-blossom-same-gpu": "muri-s"}[elsewhere]
}

// Check returns an error if Run cannot simulate the jobs: it names a job that lacks something that the policy must
// know, or an option that the policy does not support.
func Check(jobs []*Job, clusters map[string]Cluster, o Options) error {
	start, ok := policies[o.Policy]
	if !ok {
		return fmt.Errorf("there is no policy %q: want one of %s", o.Policy, strings.Join(Policies(), ", "))
	}
	predicted := map[string]struct {
		column string
		of     func(*Job) float64
	}{
		"qssf":  {"history (lgb_priority)", func(j *Job) float64 { return j.History }},
		"lucid": {"estimate (ebm_priority)", func(j *Job) float64 { return j.Estimate }},
	}
	if p, ok := predicted[o.Policy]; ok && !slices.ContainsFunc(jobs, func(j *Job) bool { return p.of(j) != 0 }) {
		return fmt.Errorf("%s orders jobs by a predicted duration, and no job has one: give the column %s, which star sched estimate --predict writes", o.Policy, p.column)
	}
	kind := o.simulation(jobs)
	if kind == ofMachines && !(o.Alpha > 0 && o.Alpha <= 1) {
		return fmt.Errorf("alpha is %v: use a number in (0, 1]", o.Alpha)
	}
	if _, ok := livePolicies[o.Policy]; o.Start != 0 && (!ok || kind == ofMachines) {
		return fmt.Errorf("only %s, with one kind of machines, support a start time: leave it out",
			strings.Join(LivePolicies(), ", "))
	}
	if o.Horizon != 0 && (!isElasticFlow(o.Policy) || o.Start != 0) {
		return errors.New("only ef and ef-admission, with starts that take no time, support a horizon: leave it out")
	}
	if o.Placement != Consolidated && kind != ofTasks {
		return fmt.Errorf("%s supports only the placement consolidated, because it counts GPUs or has its own rule: leave it out",
			o.Policy)
	}
	if o.Horizon != 0 || kind == ofStages || kind == ofMachines {
		for _, c := range clusters {
			what := "slow nodes"
			if c.Slow == nil {
				what = "absent nodes"
			}
			if c.Slow != nil || c.Away != nil && o.Horizon != 0 {
				return fmt.Errorf("cannot simulate %s with %s: it only counts GPUs, or plans up to a horizon", o.Policy, what)
			}
		}
	}
	for _, j := range jobs {
		if _, ok := clusters[j.VC]; !ok {
			return fmt.Errorf("job %s: unknown virtual cluster %q: add it to the clusters", j.ID, j.VC)
		}
		switch {
		case kind == ofStages && j.Stages == nil:
			return fmt.Errorf("job %s: %s needs to know how long it uses each resource and takes to start again: use a trace of the format muri", j.ID, o.Policy)
		case kind == ofMachines && j.Either == nil:
			return fmt.Errorf("job %s: %s needs to know how long it takes with a GPU and without: use a trace of the format allox", j.ID, o.Policy)
		case kind == ofShares && o.Policy != "star" && j.Rates == nil:
			return fmt.Errorf("job %s: %s plans with iterations and throughputs, and the job has none: give --throughputs and a trace of the format elasticflow (also star sched gen --throughputs), or the columns iterations, rates and batch", j.ID, o.Policy)
		case start != nil && j.Duration == 0 && j.Rates != nil:
			return fmt.Errorf("job %s: %s runs jobs for their duration, and this one has none: add the column duration, or use a policy that plans, such as ef", j.ID, o.Policy)
		}
	}
	if kind == ofProfiles && o.Profile == nil {
		return errors.New("lucid needs the speeds of jobs that share GPUs, and forecasts: give --estimates")
	}
	return nil
}

// Run simulates jobs on virtual clusters, each independently, until all have ended or were declined. Outcomes are in
// the order of jobs. Errors are those of Check.
func Run(jobs []*Job, clusters map[string]Cluster, o Options) ([]Outcome, error) {
	if err := Check(jobs, clusters, o); err != nil {
		return nil, err
	}
	start, kind := policies[o.Policy], o.simulation(jobs)
	if o.Policy == "themis" {
		start = func() Policy { return Themis(o.Slot) }
	}
	if kind == ofProfiles {
		return o.Profile.lucid(jobs, clusters), nil
	}
	out := make([]Outcome, len(jobs))
	apart(jobs, out, func(vc string, of []*Job) []Outcome {
		c := clusters[vc]
		switch kind {
		case ofMachines:
			return either(of, c, o)
		case ofStages:
			return interleave(of, c, o.Policy)
		case ofShares:
			return runElastic(of, c, o)
		}
		return simulate(of, c, start(), o)
	})
	return out, nil
}

// apart simulates the jobs of each virtual cluster separately and fills in the outcomes that out lacks.
func apart(jobs []*Job, out []Outcome, simulate func(vc string, jobs []*Job) []Outcome) {
	parts := map[string][]int{}
	for i, j := range jobs {
		if out[i].Job == nil {
			parts[j.VC] = append(parts[j.VC], i)
		}
	}
	for vc, indices := range parts {
		var of []*Job
		for _, i := range indices {
			of = append(of, jobs[i])
		}
		for k, o := range simulate(vc, of) {
			out[indices[k]] = o
		}
	}
}

func isElasticFlow(policy string) bool { return policy == "ef" || policy == "ef-admission" }

// simulation is a kind of simulation, by what a policy decides.
type simulation int

const (
	ofTasks    simulation = iota // which jobs run, on the GPUs that they request
	ofShares                     // how many GPUs each job runs on
	ofStages                     // which jobs take turns on the same GPUs
	ofMachines                   // which of two kinds of machines a job runs on
	ofProfiles                   // as ofTasks, after Lucid's profiler
)

// simulation returns the kind of the policy, for these jobs.
func (o Options) simulation(jobs []*Job) simulation {
	_, mixed := mixedPolicies[o.Policy]
	switch start := policies[o.Policy]; {
	case o.Policy == "muri-s", o.Policy == "muri-l":
		return ofStages
	case mixed && (start == nil || slices.ContainsFunc(jobs, func(j *Job) bool { return j.Either != nil })):
		return ofMachines
	case o.Policy == "lucid":
		return ofProfiles
	case start == nil:
		return ofShares
	}
	return ofTasks
}

// Heed lists which options affect a policy, or the policies that its paper compares it with.
type Heed struct {
	Alpha, Profiling, Users bool
	Slot, Resize            bool
}

// Heeds returns which options affect the policy for these jobs.
func (o Options) Heeds(jobs []*Job) (h Heed) {
	kind := o.simulation(jobs)
	mixed := kind == ofMachines
	h.Alpha, h.Profiling, h.Users = mixed, mixed, mixed
	planned := slices.ContainsFunc(jobs, func(j *Job) bool { return j.Rates != nil })
	compared := planned && slices.Contains([]string{"tiresias", "gandiva", "chronus"}, o.Policy)
	h.Slot = kind == ofShares || o.Policy == "themis" || compared
	_, live := livePolicies[o.Policy]
	h.Resize = live && !mixed
	return h
}

// Summary summarizes the outcomes of all jobs.
type Summary struct {
	Jobs        int     `json:"jobs"`
	Ended       int     `json:"ended"`
	Declined    int     `json:"declined"`
	Met         int     `json:"met_deadline"` // by Outcome.Met, which includes jobs without a deadline
	Deadlines   int     `json:"jobs_with_deadline"`
	JCT         float64 `json:"mean_jct_s"` // of jobs that ended
	P99         float64 `json:"p99_jct_s"`
	Queue       float64 `json:"mean_queue_s"`
	Makespan    float64 `json:"makespan_s"` // from the first submission to the last end
	Preemptions int     `json:"preemptions"`
}

// Summarize adds up outcomes.
func Summarize(out []Outcome) (s Summary) {
	s.Jobs = len(out)
	first, last := never, -never
	var jct []float64
	for _, o := range out {
		first = min(first, o.Submit)
		s.Preemptions += o.Preemptions
		if !math.IsInf(o.Deadline, 1) {
			s.Deadlines++
		}
		if o.Declined() {
			s.Declined++
			continue
		}
		if math.IsNaN(o.End) {
			continue
		}
		if o.Met() {
			s.Met++
		}
		last = max(last, o.End)
		jct = append(jct, o.JCT())
		s.JCT += o.JCT()
		s.Queue += o.Queue
	}
	if s.Ended = len(jct); s.Ended > 0 {
		s.JCT /= float64(s.Ended)
		s.Queue /= float64(s.Ended)
		slices.Sort(jct)
		s.P99 = jct[(len(jct)*99+99)/100-1]
		s.Makespan = last - first
	}
	return s
}
