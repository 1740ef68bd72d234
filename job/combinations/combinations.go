// Package combinations has the table of features that a job cannot combine. It checks settings, and
// docs/combinations.md is written from it.
//
// A feature is independent of the names of settings: the servers make a [Set] of a job when its plan and its
// baseline are known. Features that the table does not list together can be combined.
//
// A combination is rejected because it would be wrong, not because it is unusual. Each row has an alternative.
// The package is pure.
package combinations

import (
	"fmt"
	"slices"
)

// Feature is a property that a job may have.
type Feature uint8

// The features; names has what each is.
const (
	AllReduce Feature = iota
	Copies
	Coordinators
	Codec
	Lossy
	Baseline
	Fixed
	Deciding
	OwnRule
	OwnSteps
	ServersOnly
	LGC
	ADPSGD
	Tree
	Parts
	Strides
	Outward
	Slack
	Shares
	Clip
	Scale
	NotFiring
	ByWorkers
	NotSGD
	Adaptive
	Moving
	Cluster
	Hosts
	Open
	numFeatures
)

// names has the short name of each feature, and a description with an example.
var names = [numFeatures]struct{ Short, Long string }{
	AllReduce:    {"all-reduce", "`--arch allreduce`"},
	Copies:       {"copies", "of shards: `--replicas 2`"},
	Coordinators: {"coordinators", "`--coordinators 3`"},
	Codec:        {"codec", "any `--compress` but none"},
	Lossy:        {"lossy codec", "a codec with error feedback: all but fp16 and bf16"},
	Baseline:     {"baseline", "any [`--baseline`](baselines.md)"},
	Fixed:        {"baseline: plan", "one with a fixed plan, such as `k-sync`"},
	Deciding:     {"baseline: decides", "one that changes its plan, such as `lb-bsp`"},
	OwnRule:      {"baseline: rule", "one with its own update rule, such as `zeno++`"},
	OwnSteps:     {"baseline: steps", "one with local steps, such as `local-sgd`"},
	ServersOnly:  {"baseline: servers", "one for parameter servers only"},
	LGC:          {"lgc", "`--baseline lgc`"},
	ADPSGD:       {"ad-psgd", "`--baseline ad-psgd`"},
	Tree:         {"tree", "`--mode 'tree=0(1,2)'`"},
	Parts:        {"parts", "batches in parts or local steps, also of a baseline: `micro=`, `local=`"},
	Strides:      {"steps", "local steps, with the mean as update: `--mode 'ssgd local=8'`"},
	Outward:      {"outer steps", "local steps with another rule: `--mode 'ssgd local=8 outer=nesterov'`"},
	Slack:        {"ahead", "workers that run ahead: `ahead=`, `ssp=`"},
	Adaptive:     {"Adam", "`--optimizer adam`, adamw or muon: steps not proportional to gradients"},
	Shares:       {"shares", "`--shares`"},
	Clip:         {"clip", "`--clip`"},
	Scale:        {"scale", "an `--update-scale` other than n"},
	NotFiring:    {"scale, not firing", "an explicit `--update-scale` other than firing"},
	ByWorkers:    {"scale: workers", "`--update-scale workers`"},
	NotSGD:       {"momentum, Adam", "an `--optimizer` other than sgd"},
	Moving:       {"moves", "`--move-shards auto`"},
	Cluster:      {"cluster", "a job with a resource service: `--cluster`"},
	Hosts:        {"hosts", "several hosts: `--hosts`, or star-ps and star-worker by hand"},
	Open:         {"open", "neither `STAR_TOKEN` nor certificates (`--tls-cert`) nor `--insecure`"},
}

// String returns the short name of f.
func (f Feature) String() string { return names[f].Short }

// Set holds the features of a job.
type Set uint32

// Of returns the set of fs.
func Of(fs ...Feature) (s Set) {
	for _, f := range fs {
		s |= 1 << f
	}
	return s
}

// With returns s, plus f where is holds.
func (s Set) With(f Feature, is bool) Set {
	if is {
		s |= 1 << f
	}
	return s
}

// Has reports whether s has all of fs.
func (s Set) Has(fs ...Feature) bool { return s&Of(fs...) == Of(fs...) }

// Refusal is a combination that is rejected.
type Refusal struct {
	Of      []Feature
	Setting string // name of the setting to change
	Why     string
	Instead string // the alternative
}

// Error has the reason and the alternative; the caller adds the setting.
func (r *Refusal) Error() string { return fmt.Sprintf("%s; %s", r.Why, r.Instead) }

// Refusals has all rejected combinations. A job is rejected for the first that applies.
var Refusals = []Refusal{
	{[]Feature{AllReduce, ServersOnly}, "baseline", "this baseline needs parameter servers", "use --arch ps, or a baseline that a ring can run (docs/baselines.md), such as backup, lb-bsp or lgc"},
	{[]Feature{AllReduce, Copies}, "replicas", "in an all-reduce every worker has the parameters", "remove --replicas"},
	{[]Feature{AllReduce, Moving}, "move-shards", "an all-reduce has no shards", "remove --move-shards"},
	{[]Feature{AllReduce, Tree}, "mode", "members of a ring exchange gradients by their own schedule", "use --arch ps, or --allreduce-algorithm tree"},
	{[]Feature{AllReduce, Slack}, "mode", "no worker can run ahead in an all-reduce", "use --arch ps, or ring-minus=WORKER for a slow worker"},
	{[]Feature{AllReduce, Coordinators, Parts}, "coordinators", "only the coordinator of an all-reduce knows which parts of a batch are in an update", "remove micro and local, or use --arch ps"},
	{[]Feature{Coordinators, Deciding}, "coordinators", "another coordinator would not have what the baseline has learned", "use --mode auto, or --worker-restarts and --restarts"},
	{[]Feature{Coordinators, OwnRule}, "coordinators", "this baseline's state of gradients would not match another coordinator", "remove --coordinators; --restarts resumes from a checkpoint"},
	{[]Feature{Coordinators, OwnSteps}, "coordinators", "another coordinator would not know the progress of this baseline's workers", "remove --coordinators; --restarts resumes from a checkpoint"},
	{[]Feature{Coordinators, Strides}, "mode", "another coordinator would not know which workers have made steps", "remove local, or --coordinators"},
	{[]Feature{Coordinators, Cluster}, "coordinators", "star-ps 0 holds the job's lease in a cluster", "remove --cluster, or --coordinators"},
	{[]Feature{Coordinators, Moving}, "coordinators", "shards cannot move in a job with several coordinators", "use --move-shards off"},
	{[]Feature{Copies, Deciding}, "replicas", "copies would change what this baseline measures", "remove --replicas, or use --mode auto"},
	{[]Feature{Copies, OwnRule}, "replicas", "this baseline's state of gradients is not copied", "remove --replicas"},
	{[]Feature{Copies, OwnSteps}, "replicas", "this baseline's state of workers is not copied", "remove --replicas, or use --mode 'ssgd local=8'"},
	{[]Feature{Copies, Moving}, "replicas", "shards with copies cannot move", "use --move-shards off"},
	{[]Feature{Moving, Baseline}, "move-shards", "a move would change what a baseline measures", "remove --move-shards, or give the plan as --mode"},
	{[]Feature{Shares, Baseline}, "shares", "a baseline chooses the samples of each worker", "remove --shares, or give the plan as --mode"},
	{[]Feature{OwnSteps, Clip}, "clip", "workers with local steps send no gradients to the servers", "remove --clip"},
	{[]Feature{OwnSteps, Scale}, "update-scale", "this baseline averages parameters", "remove --update-scale"},
	{[]Feature{Strides, Baseline}, "mode", "a baseline defines what workers do between two releases", "remove local, or --baseline"},
	{[]Feature{Strides, Adaptive}, "mode", "the steps of this optimiser are not proportional to gradients, and workers do not have its state", "add outer=nesterov to the mode, or use --optimizer sgd, momentum, nesterov or dana"},
	{[]Feature{Strides, Clip}, "mode", "--clip applies to the gradient of all workers, and local steps use one worker's", "add outer=nesterov to the mode, which clips in each local step, or remove local or --clip"},
	{[]Feature{Strides, Lossy}, "mode", "error feedback would return with a wrong weight", "add outer=nesterov to the mode, or use --compress fp16 or bf16"},
	{[]Feature{Strides, Scale}, "mode", "this --update-scale weights single gradients", "add outer=nesterov to the mode, or use --update-scale n"},
	{[]Feature{ADPSGD, NotSGD}, "optimizer", "ad-psgd makes plain steps of every worker's model", "use --optimizer sgd"},
	{[]Feature{ADPSGD, Clip}, "clip", "ad-psgd adds each gradient to another model", "remove --clip"},
	{[]Feature{LGC, Codec}, "compress", "lgc uses gradients that a worker's codec assumes to be lost", "remove --compress"},
	{[]Feature{ByWorkers, Adaptive}, "update-scale", "the steps of this optimiser have a length of their own", "use --optimizer sgd, momentum, nesterov or dana"},
	{[]Feature{LGC, NotFiring}, "update-scale", "an update of lgc is the mean of its gradients plus a correction", "remove --update-scale"},
	{[]Feature{Hosts, Open}, "hosts", "any process that reaches the job could join and read the model", "give STAR_TOKEN or certificates (--tls-cert …), or allow it with --insecure"},
}

// Check returns why a job with these features is rejected, or nil.
func Check(s Set) *Refusal { return first(func(r Refusal) bool { return s.Has(r.Of...) }) }

// Against returns why a job with the features of s cannot have f too, or nil.
func Against(f Feature, s Set) *Refusal {
	return first(func(r Refusal) bool { return slices.Contains(r.Of, f) && (s | Of(f)).Has(r.Of...) })
}

func first(is func(Refusal) bool) *Refusal {
	if i := slices.IndexFunc(Refusals, is); i >= 0 {
		return &Refusals[i]
	}
	return nil
}
