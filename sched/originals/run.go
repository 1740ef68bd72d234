package originals

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"star/sched"
)

// Options of a simulation.
type Options struct {
	Program string  // one of Programs; "": the first of them that has the policy
	Policy  string  // one of Policies
	Slot    float64 // s between rounds of ElasticFlow's policies, at least; whole
	Turned  bool    // ef and ef-admission give remaining GPUs where GPU-seconds grow least

	// Muri is what MuriTimes has read of the trace. Nil: times of jobs follow from their durations, rounded.
	Muri map[string]MuriTime

	Profile *sched.Profile // for lucid

	// For AlloX's policies:
	Alpha     float64  // allox chooses among the jobs of this share of the users, in (0, 1]
	Profiling bool     // parts of each job run first, from which its durations are estimated
	Users     []string // in their order; others follow

	// Progress, unless nil, is called now and then with how many of a virtual cluster's jobs have ended, of how many.
	Progress func(ended, jobs int)
}

// policy has what a policy needs to know of jobs, and how it simulates those of a virtual cluster: in order of
// submission, for ofMachines in the order of the trace.
type policy struct {
	kind kind
	run  func([]*sched.Outcome, sched.Cluster, Options)
}

// policies are those of each program.
var policies = map[string]map[string]policy{
	"elasticflow": {
		"edf": {ofShares, runDeadlines}, "edf-admission": {ofShares, runDeadlines},
		"ef": {ofShares, runElasticFlow}, "ef-admission": {ofShares, runElasticFlow},
		"tiresias": {ofTasks, runTiresias}, "gandiva": {ofTasks, runGandiva}, "themis": {ofTasks, runThemis},
		"chronus": {ofTasks, runChronus},
	},
	"muri": {
		"muri-s": {ofStages, runMuri}, "muri-l": {ofStages, runMuri},
		"srtf": {ofStages, runLoners}, "srsf": {ofStages, runLoners}, "tiresias": {ofStages, runLoners},
	},
	"lucid": {
		"fifo": {ofTasks, runQueue}, "sjf": {ofTasks, runQueue}, "qssf": {ofTasks, runQueue},
		"srtf": {ofTasks, runQuota}, "srsf": {ofTasks, runQuota}, "tiresias": {ofTasks, runQuota},
		"lucid": {ofProfiles, nil}, // runLucid simulates all virtual clusters at once
	},
	"allox": {
		"allox": {ofMachines, runMixed}, "alloxplus": {ofMachines, runMixed}, "sjf": {ofMachines, runMixed},
		"srpt": {ofMachines, runMixed}, "es": {ofMachines, runMixed}, "drf": {ofMachines, runMixed},
		"drfext": {ofMachines, runMixed}, "drffifo": {ofMachines, runMixed},
	},
}

// kind is what a policy must know of jobs.
type kind int

const (
	ofShares   kind = iota // iterations, and how fast they are on how many GPUs
	ofTasks                // durations: jobs run on the GPUs that they ask for
	ofStages               // iterations, and how long each uses which resource
	ofProfiles             // as ofTasks, and how fast jobs are that share GPUs
	ofMachines             // how long each takes on a machine with a GPU and on one without
)

// Programs are the supported programs. A policy without a named program is that of the first one that has it.
func Programs() []string { return []string{"elasticflow", "muri", "lucid", "allox"} }

// Has reports whether a program has a policy.
func Has(program, policy string) bool {
	_, there := policies[program][policy]
	return there
}

// policy is the one that the options name, and the program that has it.
func (o Options) policy() (program string, p policy, err error) {
	programs := []string{o.Program}
	if o.Program == "" {
		programs = Programs()
	}
	for _, program := range programs {
		if p, there := policies[program][o.Policy]; there {
			return program, p, nil
		}
	}
	if names := Policies(programs...); len(names) > 0 {
		return "", p, fmt.Errorf("there is no policy %q: want one of %s", o.Policy, strings.Join(names, ", "))
	}
	return "", p, fmt.Errorf("there is no program %q: want one of %s", o.Program, strings.Join(Programs(), ", "))
}

// Policies lists the names of the policies of programs, of all without any.
func Policies(programs ...string) (names []string) {
	if len(programs) == 0 {
		programs = Programs()
	}
	for _, program := range programs {
		for n := range policies[program] {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Check returns why Run cannot simulate: a job lacks a value that the policy needs, or the cluster is invalid.
func Check(jobs []*sched.Job, clusters map[string]sched.Cluster, o Options) error {
	program, policy, err := o.policy()
	if err != nil {
		return err
	}
	kind := policy.kind
	if program == "elasticflow" && (o.Slot < 1 || o.Slot != math.Trunc(o.Slot)) {
		return fmt.Errorf("the slot is %v s: want whole seconds, and one at least", o.Slot)
	}
	if kind == ofMachines && !(o.Alpha > 0 && o.Alpha <= 1) {
		return fmt.Errorf("alpha is %v: want more than 0, and at most 1", o.Alpha)
	}
	for name, c := range clusters {
		switch {
		case c.Slow != nil || c.Away != nil || c.Plain > 0 && kind != ofMachines:
			return fmt.Errorf("virtual cluster %q has slow nodes, nodes that go and come, or machines without GPUs, and %s's program knows of none", name, o.Policy)
		case (c.Nodes < 1 || c.GPUs < 1) && (kind != ofMachines || c.Plain < 1):
			return fmt.Errorf("virtual cluster %q has no GPUs", name)
		case kind == ofShares && o.Policy != "edf" && c.GPUs&(c.GPUs-1) != 0:
			return fmt.Errorf("virtual cluster %q has nodes of %d GPUs: ElasticFlow's program places jobs on nodes of 1, 2, 4, … GPUs", name, c.GPUs)
		}
	}
	for _, j := range jobs {
		if _, ok := clusters[j.VC]; !ok {
			return fmt.Errorf("job %s: there is no virtual cluster %q: add it to the clusters", j.ID, j.VC)
		}
		switch {
		case kind == ofShares && (j.Rates == nil || j.Iterations <= 0):
			return fmt.Errorf("job %s: %s plans with iterations and throughputs, and it has none: give --throughputs and a trace of the format elasticflow, or the columns iterations, rates and batch", j.ID, o.Policy)
		case (kind == ofTasks || kind == ofProfiles) && j.Duration == 0 && j.Rates != nil:
			return fmt.Errorf("job %s: %s runs jobs for their duration, and it has none: give the column duration", j.ID, o.Policy)
		case kind == ofMachines && j.Either == nil:
			return fmt.Errorf("job %s: %s needs to know how long it takes with a GPU and without: give a trace of the format allox",
				j.ID, o.Policy)
		case kind == ofStages && (j.Stages == nil || j.Duration <= 0 || j.Iterations <= 0):
			return fmt.Errorf("job %s: %s needs to know its iterations and how long each uses each resource: give a trace of the format muri", j.ID, o.Policy)
		}
	}
	predicted := map[string]struct {
		column string
		of     func(*sched.Job) float64
	}{
		"qssf":  {"history (lgb_priority)", func(j *sched.Job) float64 { return j.History }},
		"lucid": {"estimate (ebm_priority)", func(j *sched.Job) float64 { return j.Estimate }},
	}
	if p, ok := predicted[o.Policy]; ok && !slices.ContainsFunc(jobs, func(j *sched.Job) bool { return p.of(j) != 0 }) {
		return fmt.Errorf("%s orders jobs by a predicted duration, and no job has one: give the column %s",
			o.Policy, p.column)
	}
	if kind == ofProfiles && o.Profile == nil {
		return errors.New("lucid needs to know how fast jobs are that share GPUs, and forecasts: give --estimates")
	}
	return nil
}

// Run simulates jobs on virtual clusters, each for itself, until all have ended or been declined. Outcomes are in the
// order of jobs.
func Run(jobs []*sched.Job, clusters map[string]sched.Cluster, o Options) ([]sched.Outcome, error) {
	if err := Check(jobs, clusters, o); err != nil {
		return nil, err
	}
	_, policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	out := begin(jobs)
	due := make([]*sched.Outcome, len(out))
	for i := range out {
		due[i] = &out[i]
	}
	if policy.kind != ofMachines {
		slices.SortStableFunc(due, func(a, b *sched.Outcome) int { return cmp.Compare(a.Submit, b.Submit) })
	}
	if policy.kind == ofProfiles {
		runLucid(due, clusters, o)
		return out, nil
	}
	of := map[string][]*sched.Outcome{}
	for _, o := range due {
		of[o.VC] = append(of[o.VC], o)
	}
	for vc, outs := range of {
		policy.run(outs, clusters[vc], o)
	}
	return out, nil
}

// begin is the outcomes of jobs before their arrival.
func begin(jobs []*sched.Job) []sched.Outcome {
	out := make([]sched.Outcome, len(jobs))
	for i, j := range jobs {
		out[i] = sched.Outcome{Job: j, Start: math.NaN(), End: math.NaN()}
	}
	return out
}

func runElasticFlow(outs []*sched.Outcome, c sched.Cluster, o Options) {
	t4 := slices.ContainsFunc(outs, func(o *sched.Outcome) bool {
		return slices.Contains([]string{"yolov3", "ncf", "imagenet", "cifar10"}, o.Model)
	})
	newElasticFlow(c, o).run(elasticJobs(outs, c, func(j *sched.Job) int { return mostGPUs(j, t4) }), o.Progress)
}

// tooLarge reports whether a job asks for more GPUs than there are, and declines it if so.
func tooLarge(o *sched.Outcome, gpus int) bool {
	if o.GPUs > gpus {
		o.Why = fmt.Sprintf("asks for %d GPUs, and the cluster has %d", o.GPUs, gpus)
	}
	return o.Declined()
}

// runMuri simulates jobs under muri-s or muri-l.
func runMuri(outs []*sched.Outcome, c sched.Cluster, o Options) {
	m := &muri{gpus: c.Nodes * c.GPUs, long: o.Policy == "muri-l", kinds: map[[3]float64]int{}, periods: map[[packing]int]float64{}}
	var jobs []*staged
	for _, out := range outs {
		if tooLarge(out, m.gpus) {
			continue
		}
		t, known := o.Muri[out.ID]
		if !known {
			t = MuriTime{out.Duration / out.Iterations * 1000, out.Duration}
		}
		jobs = append(jobs, &staged{out: out, gpus: out.GPUs, c: out.Stages[0], g: out.Stages[1], n: out.Stages[2], iteration: float64(t.Iteration*alone) / 1000, work: t.Duration,
			left: out.Iterations, waiting: out.Submit})
	}
	m.run(jobs, o.Progress)
}

// elasticJobs are the jobs that run on a number of the cluster's GPUs up to most. The others are declined.
func elasticJobs(outs []*sched.Outcome, c sched.Cluster, most func(*sched.Job) int) (jobs []*elastic) {
	all := c.Nodes * c.GPUs
	for _, o := range outs {
		j := &elastic{work: work{rates: o.Rates, deadline: o.Deadline, left: o.Iterations}, out: o}
		for l, r := range o.Rates {
			if r > 0 && 1<<l <= most(o.Job) {
				j.levels = append(j.levels, 1<<l)
			}
		}
		if j.fit(all) == 0 {
			o.Why = fmt.Sprintf("runs on none of the numbers of GPUs that the program gives it, of the %d of the cluster", all)
			continue
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// mostGPUs is the most GPUs that ElasticFlow's program gives to a job, where that differs from its throughputs. T4 is
// one of its two kinds of GPUs.
func mostGPUs(j *sched.Job, t4 bool) int {
	for _, m := range []struct {
		model string
		batch int // 0: all others
		t4    bool
		most  int
	}{
		{"gpt2", 128, false, 16}, {"gpt2", 256, false, 32}, {"bert", 64, false, 8}, {"bert", 128, false, 16}, {"inception3", 64, false, 16}, {"inception3", 128, false, 32},
		{"resnet50", 64, false, 32}, {"vgg16", 64, false, 32}, {"deepspeech2", 0, false, j.Batch},
		{"bert", 0, true, 16}, {"cifar10", 0, true, 16}, {"deepspeech2", 320, true, 32}, {"yolov3", 0, true, 4}, {"ncf", 0, true, 1},
	} {
		if m.t4 == t4 && m.model == j.Model && (m.batch == 0 || m.batch == j.Batch) {
			return m.most
		}
	}
	if t4 {
		return 64
	}
	return min(j.Batch, 64)
}

// SwitchOf is how many nodes a switch has in ElasticFlow's cluster of that shape. 0: all are of one switch.
func SwitchOf(c sched.Cluster) int {
	if c.GPUs == 8 && (c.Nodes == 64 || c.Nodes == 160 || c.Nodes == 256) {
		return 32
	}
	return 0
}

// ended is how many jobs have.
func ended(jobs []*elastic) (n int) {
	for _, j := range jobs {
		if !math.IsNaN(j.out.End) {
			n++
		}
	}
	return n
}

// steps notes how many GPUs a job has from a time on.
func steps(o *sched.Outcome, at, gpus float64) {
	if n := len(o.Steps); n > 0 && o.Steps[n-1].At == at {
		o.Steps = o.Steps[:n-1] // nothing was between
	}
	was := 0.
	if n := len(o.Steps); n > 0 {
		was = o.Steps[n-1].GPUs
	}
	if gpus != was {
		o.Steps = append(o.Steps, sched.Step{At: at, GPUs: gpus})
	}
}
