// Package combinations defines which features of a job exclude each other: one table, used to check settings and to write
// docs/combinations.md.
//
// A feature is a property of a job, independent of its settings: the servers make a [Set] of a job when its plan and its baseline are
// known. Features that are not in the table can be combined.
//
// A refused combination would be wrong, not only unusual. Each entry says what to do instead. The package is pure.
package combinations

import (
	"fmt"
	"slices"
)

// Feature is something that a job may have.
type Feature uint8

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

// What features are called: in short, and in words with an example.
var names = [numFeatures]struct{ Short, Long string }{
	AllReduce:    {"all-reduce", "`--arch allreduce`"},
	Copies:       {"copies", "copies of shards: `--replicas 2`"},
	Coordinators: {"coordinators", "several processes that may coordinate: `--coordinators 3`"},
	Codec:        {"codec", "compressed gradients: `--compress int8`"},
	Lossy:        {"lossy codec", "one that leaves out what is made good later: all but fp16 and bf16"},
	Baseline:     {"baseline", "any `--baseline`"},
	Fixed:        {"baseline: plan", "a baseline that is one plan: `--baseline k-sync` and others"},
	Deciding:     {"baseline: decides", "a baseline that decides while the job runs: `--baseline lb-bsp` and others"},
	OwnRule:      {"baseline: rule", "a baseline that makes something else of gradients than the optimiser: `--baseline zeno++` and others"},
	OwnSteps:     {"baseline: steps", "a baseline of workers that train by themselves: `--baseline local-sgd` and others"},
	ServersOnly:  {"baseline: servers", "a baseline for parameter servers alone: `--baseline zeno++` and others (`baselines.md`)"},
	LGC:          {"lgc", "`--baseline lgc`"},
	ADPSGD:       {"ad-psgd", "`--baseline ad-psgd`"},
	Tree:         {"tree", "gradients that are added up on their way: `--mode 'tree=0(1,2)'`"},
	Parts:        {"parts", "batches in parts, or steps of the workers' own, with a baseline or without: micro, local"},
	Strides:      {"steps", "steps of the workers' own without a baseline: `--mode 'ssgd local=8'`"},
	Slack:        {"ahead", "workers that run ahead: `--mode` with ahead"},
	Adaptive:     {"Adam", "an `--optimizer` with steps that are not proportional to gradients: adam, adamw"},
	Shares:       {"shares", "`--shares`"},
	Clip:         {"clip", "`--clip`"},
	Scale:        {"scale", "an `--update-scale` other than n"},
	NotFiring:    {"scale, not firing", "an `--update-scale` that is given, other than firing"},
	ByWorkers:    {"scale: workers", "`--update-scale workers`"},
	NotSGD:       {"momentum, Adam", "an `--optimizer` other than sgd"},
	Moving:       {"moves", "shards that move by themselves: `--move-shards auto`"},
	Cluster:      {"cluster", "a job that asks a resource service: `--cluster`"},
	Hosts:        {"hosts", "several hosts: `--hosts`, or star-ps and star-worker by hand"},
	Open:         {"open", "neither `STAR_TOKEN` nor certificates (`--tls-cert`) nor `--insecure`"},
}

// String is the short name of f.
func (f Feature) String() string { return names[f].Short }

// Set is the features of a job.
type Set uint32

// Of is the set of features.
func Of(fs ...Feature) (s Set) {
	for _, f := range fs {
		s |= 1 << f
	}
	return s
}

// With is s, and f if that is the case.
func (s Set) With(f Feature, is bool) Set {
	if is {
		s |= 1 << f
	}
	return s
}

// Has reports whether s has all of fs.
func (s Set) Has(fs ...Feature) bool { return s&Of(fs...) == Of(fs...) }

// Refusal is features that do not go together.
type Refusal struct {
	Of      []Feature
	Setting string // that is to be changed: its name
	Why     string
	Instead string // what to do
}

// Error returns the reason and the alternative, for a message that names the setting.
func (r *Refusal) Error() string { return fmt.Sprintf("%s; %s", r.Why, r.Instead) }

// Refusals are all that do not go together. A job is refused for the first that it has.
var Refusals = []Refusal{
	{[]Feature{AllReduce, ServersOnly}, "baseline", "this one needs parameter servers", "--arch ps, or one that a ring can run (docs/baselines.md), such as backup, lb-bsp or lgc"},
	{[]Feature{AllReduce, Copies}, "replicas", "in an all-reduce every worker has the parameters", "leave it off"},
	{[]Feature{AllReduce, Moving}, "move-shards", "an all-reduce has no shards", "leave it off"},
	{[]Feature{AllReduce, Tree}, "mode", "members of a ring exchange gradients by schedules of their own", "--arch ps for trees; --allreduce-algorithm tree for an exchange along one"},
	{[]Feature{AllReduce, Slack}, "mode", "no worker can run ahead in an all-reduce", "--arch ps for ahead; ring-minus=WORKER for a slow worker"},
	{[]Feature{AllReduce, Coordinators, Parts}, "coordinators", "which parts of a batch are in an update would be lost with the coordinator of an all-reduce", "leave micro and local away, or use --arch ps"},
	{[]Feature{Coordinators, Deciding}, "coordinators", "what a baseline has learned would be lost with the coordinator", "--mode auto, which goes on with another one, or --worker-restarts and --restarts"},
	{[]Feature{Coordinators, OwnRule}, "coordinators", "what the servers of this baseline remember of gradients would not be what another coordinator knows", "leave --coordinators away; --restarts begins again from a checkpoint"},
	{[]Feature{Coordinators, OwnSteps}, "coordinators", "where the workers of this baseline are would be lost with the coordinator", "leave --coordinators away; --restarts begins again from a checkpoint"},
	{[]Feature{Coordinators, Strides}, "mode", "a successor would not know which workers have made steps", "remove local, or --coordinators"},
	{[]Feature{Coordinators, Cluster}, "coordinators", "the job's place in a cluster belongs to star-ps 0", "leave --cluster away, or --coordinators"},
	{[]Feature{Coordinators, Moving}, "coordinators", "shards stay where they are where another process may coordinate", "--move-shards off"},
	{[]Feature{Copies, Deciding}, "replicas", "a baseline that decides by what it measures is measured with its servers as its paper has them", "leave it off, or use --mode auto"},
	{[]Feature{Copies, OwnRule}, "replicas", "what this baseline remembers of gradients is not copied", "leave it off"},
	{[]Feature{Copies, OwnSteps}, "replicas", "what this baseline remembers of workers is not copied", "leave it off, or use --mode 'ssgd local=8' in its place"},
	{[]Feature{Copies, Moving}, "replicas", "shards with copies stay where they are", "give --move-shards off"},
	{[]Feature{Moving, Baseline}, "move-shards", "a baseline is measured with its servers where they are", "leave it off, or give the plan as --mode"},
	{[]Feature{Shares, Baseline}, "shares", "a baseline says itself how many samples each worker gets", "leave --shares away, or give the plan as --mode"},
	{[]Feature{OwnSteps, Clip}, "clip", "workers that train by themselves send no gradients to the servers", "leave --clip away"},
	{[]Feature{OwnSteps, Scale}, "update-scale", "this baseline averages parameters", "leave --update-scale away"},
	{[]Feature{Strides, Baseline}, "mode", "a baseline says what workers do between two releases", "leave local away, or --baseline"},
	{[]Feature{Strides, Adaptive}, "mode", "the steps of this optimiser are not as long as their gradients, and what it remembers of them is not known to workers", "--optimizer sgd, momentum, nesterov or dana"},
	{[]Feature{Strides, Clip}, "mode", "--clip is for the gradient of all workers, and they make steps with their own", "leave local away, or --clip"},
	{[]Feature{Strides, Lossy}, "mode", "what a codec leaves out of a gradient would be made good with a weight that is not its own", "--compress fp16 or bf16, or leave local away"},
	{[]Feature{Strides, Scale}, "mode", "this --update-scale weighs gradients", "--update-scale n, or leave local away"},
	{[]Feature{ADPSGD, NotSGD}, "optimizer", "ad-psgd makes plain steps of every worker's model", "use --optimizer sgd"},
	{[]Feature{ADPSGD, Clip}, "clip", "ad-psgd adds gradients to models of their own", "leave --clip away"},
	{[]Feature{LGC, Codec}, "compress", "lgc uses gradients that a worker's codec takes for lost", "leave --compress away"},
	{[]Feature{ByWorkers, Adaptive}, "update-scale", "the steps of this optimiser are as long whatever a gradient counts", "--optimizer sgd, momentum, nesterov or dana"},
	{[]Feature{LGC, NotFiring}, "update-scale", "an update of lgc is the mean of its gradients and a correction", "leave --update-scale away"},
	{[]Feature{Hosts, Open}, "hosts", "any process that reaches a host of the job could join and read the model", "give STAR_TOKEN or certificates (--tls-cert …), or allow it with --insecure"},
}

// Check returns why a job with these features is refused; nil: it is not.
func Check(s Set) *Refusal { return first(func(r Refusal) bool { return s.Has(r.Of...) }) }

// Against returns why a job with the features of s cannot have f too; nil: it can.
func Against(f Feature, s Set) *Refusal {
	return first(func(r Refusal) bool { return slices.Contains(r.Of, f) && (s | Of(f)).Has(r.Of...) })
}

func first(is func(Refusal) bool) *Refusal {
	if i := slices.IndexFunc(Refusals, is); i >= 0 {
		return &Refusals[i]
	}
	return nil
}
