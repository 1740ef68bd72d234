package bench

import (
	"context"
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"star"
	"star/sim"
	"star/sim/trace"
	"star/train"
	"star/train/data"
	"star/train/net"
)

// TTATask is something to learn.
type TTATask struct {
	Name    string
	Model   string  // of package net
	Dataset string  // of package data
	Round   int     // samples of a full round, shared by the workers
	Rounds  int     // of samples that a run has; the learning rate falls to 0 in a straight line meanwhile
	Target  float64 // accuracy

	// Loss are the first and the last level of the test loss, in nats: the times to reach levels are compared. Learning
	// passes the first one while it is still fast; the last is what the runs of a method arrive at. Between them levels
	// are equally far apart in their logarithms.
	Loss [2]float64

	Tests int       // samples of an evaluation while it trains; at the end there are all
	Rates []float64 // learning rates of plain SGD that a method's search for its own best begins with

	AdamRates []float64 // the same for Adam
}

// ttaTasks are the tasks by name. Those of dir are taken where dir has their data, else generated ones.
var ttaTasks = []struct {
	made TTATask // on generated data

	// found is the specification of real data in a folder, and of what file says that they are there; target and loss are
	// of those.
	file, found string
	target      float64
	loss        [2]float64
}{
	{
		made: TTATask{Name: "digits", Model: "lenet:width=0.5", Dataset: "digits", Round: 64, Rounds: 240, Target: 0.85, Loss: [2]float64{1.6, 0.5}, Tests: 250,
			Rates: []float64{0.1, 0.2, 0.4}, AdamRates: []float64{0.001, 0.002, 0.004}},
		file: "mnist/train-images-idx3-ubyte*", found: "mnist:%s/mnist", target: 0.91, loss: [2]float64{1.2, 0.3},
	},
	{
		made: TTATask{Name: "images", Model: "lenet:width=0.5", Dataset: "shapes", Round: 64, Rounds: 240, Target: 0.85, Loss: [2]float64{1.6, 0.5}, Tests: 250,
			Rates: []float64{0.1, 0.2, 0.4}, AdamRates: []float64{0.001, 0.002, 0.004}},
		file: "cifar-10-batches-bin/data_batch_1.bin*", found: "cifar10:%s/cifar-10-batches-bin", target: 0.35, loss: [2]float64{2.2, 1.8},
	},
	{
		made: TTATask{Name: "text", Model: "lstm:layers=1,hidden=48,embed=16", Dataset: "babble:window=32", Round: 32, Rounds: 200, Target: 0.62, Loss: [2]float64{2.4, 1.3}, Tests: 64,
			Rates: []float64{4, 8, 16}, AdamRates: []float64{0.004, 0.008, 0.016}},
		file: "tinyshakespeare/input.txt", found: "chars:%s/tinyshakespeare/input.txt,window=32", target: 0.33, loss: [2]float64{3, 2.4},
	},
	{
		made: TTATask{Name: "mlp", Model: "mlp:hidden=32", Dataset: "digits", Round: 64, Rounds: 120, Target: 0.7, Loss: [2]float64{1.6, 0.9}, Tests: 250,
			Rates: []float64{0.1, 0.2, 0.4}, AdamRates: []float64{0.001, 0.002, 0.004}},
		file: "mnist/train-images-idx3-ubyte*", found: "mnist:%s/mnist", target: 0.88, loss: [2]float64{0.9, 0.4},
	},
	{
		made: TTATask{Name: "resnet", Model: "resnet20:width=0.125", Dataset: "shapes", Round: 32, Rounds: 60, Target: 0.25, Loss: [2]float64{2.25, 2}, Tests: 100,
			Rates: []float64{0.2, 0.4, 0.8}, AdamRates: []float64{0.004, 0.008, 0.016}},
		file: "cifar-10-batches-bin/data_batch_1.bin*", found: "cifar10:%s/cifar-10-batches-bin", target: 0.25, loss: [2]float64{2.2, 2},
	},
	{
		made: TTATask{Name: "chars", Model: "transformer:layers=1,heads=2,width=32,ff=64", Dataset: "babble:window=16", Round: 32, Rounds: 200, Target: 0.4, Loss: [2]float64{2.6, 2}, Tests: 64,
			Rates: []float64{0.5, 1, 2}, AdamRates: []float64{0.004, 0.008, 0.016}},
		file: "tinyshakespeare/input.txt", found: "chars:%s/tinyshakespeare/input.txt,window=16", target: 0.28, loss: [2]float64{3, 2.6},
	},
	{ // 1.26 million parameters on real text
		made: TTATask{Name: "lm", Model: "transformer:layers=4,heads=4,width=160,ff=640", Dataset: "babble:window=32", Round: 16, Rounds: 1200, Target: 0.6, Loss: [2]float64{2.4, 1.4}, Tests: 32,
			Rates: []float64{0.1, 0.2, 0.4}, AdamRates: []float64{0.001, 0.002, 0.004}},
		file: "tinyshakespeare/input.txt", found: "chars:%s/tinyshakespeare/input.txt,window=32", target: 0.4, loss: [2]float64{2.6, 2.1},
	},
}

// ttaLevels is how many levels of the loss are compared.
const ttaLevels = 12

// levels are the logarithms of the task's levels of the loss.
func (t TTATask) levels() (levels []float64) {
	if t.Loss[1] <= 0 {
		return nil
	}
	first, last := math.Log(t.Loss[0]), math.Log(t.Loss[1])
	for k := range ttaLevels {
		levels = append(levels, first+(last-first)*float64(k)/(ttaLevels-1))
	}
	return levels
}

// TTATasks are the names of the tasks.
func TTATasks() []string {
	var names []string
	for _, t := range ttaTasks {
		names = append(names, t.made.Name)
	}
	return names
}

// FindTTATask is the task of that name, on the data in dir if they are there; dir may be empty.
func FindTTATask(name, dir string) (TTATask, error) {
	for _, t := range ttaTasks {
		if t.made.Name != name {
			continue
		}
		task := t.made
		if dir != "" {
			if found, _ := filepath.Glob(filepath.Join(dir, t.file)); len(found) > 0 {
				task.Dataset, task.Target, task.Loss = fmt.Sprintf(t.found, dir), t.target, t.loss
			}
		}
		return task, nil
	}
	return TTATask{}, fmt.Errorf("no task %q; there are %v", name, TTATasks())
}

// String is the task with what it is made of, without folders.
func (t TTATask) String() string {
	kind, _, _ := strings.Cut(t.Dataset, ":")
	return t.Model + "/" + kind
}

// ttaScenario is a cluster.
type ttaScenario struct {
	name     string
	scenario *sim.Scenario
	recorded *trace.Trace
	links    bool // it has hosts: bytes take time, and workers may share processors
	workers  int
	bound    float64
	held     bool // not used for tuning
}

// Clusters of 8 workers with iterations of 600 ms that vary by 5 %, and the recorded ones.
var ttaScenarios = []struct{ name, text string }{
	{"calm", "workers: 8\n"},
	{"one-3x", "workers: 8\ntimes: {3: 1800ms}\n"},
	{"two-2x", "workers: 8\ntimes: {3: 1200ms, 5: 1200ms}\n"},
	{"network", "workers: 8\nfixed: 0.3\nepisodes: [{worker: 2, from: 0s, to: 1000h, factor: 6, network: true}]\n"},
	{"rotating", "workers: 8\nepisodes: [{worker: 0, from: 10s, to: 35s, factor: 3, every: 30s, times: 5000, rotate: true}]\n"},
	{"bursts", "workers: 8\nepisodes: [{worker: 1, from: 2s, to: 3s, factor: 5, every: 6s, times: 10000}]\n"},
	{"alibaba-job1", "trace: straggler-traces/alibaba-job1.csv.gz\n"},
	{"alibaba-job4", "trace: straggler-traces/alibaba-job4.csv.gz\n"},
	{"bytedance-AR", "trace: straggler-traces/bytedance-AR-allranks.csv.gz\n"},
	{"wide-32", "workers: 32\ntimes: {3: 1800ms, 17: 1200ms, 29: 1200ms}\n"},
	{"wide-64", "workers: 64\ntimes: {3: 1800ms, 17: 1200ms, 29: 1200ms, 40: 1500ms, 55: 1200ms}\n"},
}

// TTAScenarios are the names of the scenarios that are built in, without those of TTAHeld.
func TTAScenarios() []string {
	var names []string
	for _, s := range ttaScenarios {
		names = append(names, s.name)
	}
	return names
}

//go:embed scenarios/held-*.yaml
var heldFiles embed.FS

// heldScenarios is the number of held-out scenarios, held-1 to held-N, which judge and are not used for tuning.
const heldScenarios = 12

// held is the name of all of them.
const held = "held"

// TTAHeld are the names of the scenarios that judge: no rule and no setting may be chosen by what comes of them. Their
// seeds are those of nothing else.
func TTAHeld() []string {
	var names []string
	for k := range heldScenarios {
		names = append(names, fmt.Sprintf("%s-%d", held, k+1))
	}
	return names
}

// spread has the scenarios that names stand for.
func spread(names []string) (all []string) {
	for _, name := range names {
		if name == held {
			all = append(all, TTAHeld()...)
		} else {
			all = append(all, name)
		}
	}
	return all
}

// boundSteps is over how many steps the bound of a cluster without a trace is taken.
const boundSteps = 300

// openScenario is a scenario by name, or of a YAML file. dir has the recorded traces. An error in which fs.ErrNotExist
// is says that a trace of a built-in scenario is not there.
func openScenario(name, dir string) (ttaScenario, error) {
	if i := slices.Index(TTAScenarios(), name); i >= 0 {
		return parseScenario(name, []byte("jitter: 0.05\n"+ttaScenarios[i].text), dir)
	}
	if slices.Contains(TTAHeld(), name) {
		text, err := heldFiles.ReadFile("scenarios/" + name + ".yaml")
		if err != nil {
			return ttaScenario{}, fmt.Errorf("bench: %w", err)
		}
		s, err := parseScenario(name, text, dir)
		s.held = true
		return s, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return ttaScenario{name: name}, fmt.Errorf("scenario %s is no name of %v, %s, %s-1 to %s-%d, and as a file: %w", name, TTAScenarios(), held, held, held, heldScenarios, err)
	}
	return parseScenario(name, text, filepath.Dir(name))
}

// parseScenario is the scenario of a text; at is where its trace is looked for.
func parseScenario(name string, text []byte, at string) (ttaScenario, error) {
	out := ttaScenario{name: strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))}
	s, err := sim.ParseScenario(name, text)
	if err != nil {
		return out, err
	}
	if out.scenario = s; s.Name != "" {
		out.name = s.Name
	}
	if s.Trace != "" {
		path := s.Trace
		if !filepath.IsAbs(path) {
			path = filepath.Join(at, path)
		}
		if out.recorded, err = trace.Open(path); err != nil {
			return out, err
		}
	}
	out.links = len(s.Hosts) > 0
	c, err := out.cluster(1, s.Arch)
	if err != nil {
		return out, err
	}
	steps := int64(boundSteps)
	if out.recorded != nil {
		steps = int64(out.recorded.Steps)
	}
	out.workers = c.Times.Workers()
	if !out.links {
		c.Ring = nil // what an exchange takes is not reckoned without links
	}
	out.bound, err = sim.FirstOrder(c, steps)
	return out, err
}

// serves reports whether an architecture runs on it: servers need a host.
func (s ttaScenario) serves(arch string) bool {
	return !s.links || arch == ArchRing || slices.ContainsFunc(s.scenario.Hosts, func(m sim.Machine) bool { return m.Servers > 0 })
}

// cluster is the cluster with the jitter of a seed. With links it is that of an architecture: in an all-reduce the
// hosts have no servers.
func (s ttaScenario) cluster(seed uint64, arch string) (sim.Config, error) {
	of := *s.scenario
	of.Hosts = slices.Clone(of.Hosts)
	if of.Arch = arch; arch == ArchRing {
		for i := range of.Hosts {
			of.Hosts[i].Servers = 0
		}
	} else {
		of.By = "auto"
	}
	return of.Config(s.recorded, seed)
}

// pace is the mean time of an iteration of each worker, and of the slowest in each step, over the first steps.
func pace(times sim.Times, steps int64) (mean []time.Duration, slowest time.Duration) {
	n := times.Workers()
	mean = make([]time.Duration, n)
	at := time.Duration(0)
	for k := range steps {
		worst := time.Duration(0)
		for w := range n {
			t := times.Spend(star.Worker(w), k, at, 1).Total()
			mean[w] += t / time.Duration(steps)
			worst = max(worst, t)
		}
		at += worst
	}
	return mean, at / time.Duration(steps)
}

// opened is a task with its data, shared by runs.
type opened struct {
	TTATask
	train, test data.Dataset
}

func openTask(t TTATask) (opened, error) {
	trainSet, testSet, err := data.Open(t.Dataset, data.Options{})
	return opened{t, trainSet, testSet}, err
}

// netTask is a model with its data, as sim.Task. Gradients depend on no running statistics. Those of batch
// normalisation, which evaluations use, follow the mini-batches of all workers in the order in which gradients are
// made; in a job each worker follows its own, and their mean is taken.
type netTask struct {
	ctx     context.Context
	model   train.Model
	set     data.Dataset
	stream  data.Stream
	indices []int
	batch   train.Batch
	test    train.Batch
	loss    float64 // of the last evaluation, mean of all predictions
}

// build returns a model with its data, for mini-batches of that number of samples.
func (t opened) build(ctx context.Context, batch int, seed uint64) (*netTask, error) {
	spec, err := net.Parse(t.Model)
	if err != nil {
		return nil, err
	}
	spec.Input, spec.Batch, spec.Seed = t.train.Input(), batch, seed
	model, err := net.Build(spec)
	if err != nil {
		return nil, err
	}
	task := &netTask{ctx: ctx, model: model, set: t.train, stream: data.Stream{Seed: seed, N: t.train.Len()}}
	if err := task.tests(t.test, t.Tests); err != nil {
		model.Close()
		return nil, err
	}
	return task, nil
}

// tests has the first n samples of the set judged, or all.
func (t *netTask) tests(set data.Dataset, n int) error {
	t.indices = t.indices[:0]
	for i := range min(n, set.Len()) {
		t.indices = append(t.indices, i)
	}
	return set.Fill(&t.test, t.indices)
}

// Params implements sim.Task.
func (t *netTask) Params() []float32 { return append([]float32(nil), t.model.Params()...) }

// Gradient implements sim.Task.
func (t *netTask) Gradient(dst, params []float32, from int64, samples int) error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	t.indices = t.stream.Indices(t.indices, from, samples)
	if err := t.set.Fill(&t.batch, t.indices); err != nil {
		return err
	}
	copy(t.model.Params(), params)
	_, err := t.model.Grad(t.ctx, dst, t.batch)
	return err
}

// Accuracy implements sim.Task.
func (t *netTask) Accuracy(params []float32) (float64, error) {
	copy(t.model.Params(), params)
	r, err := t.model.Eval(t.ctx, t.test)
	if err != nil || r.Count == 0 {
		return 0, err
	}
	t.loss = r.LossSum / float64(r.Count)
	return float64(r.Correct) / float64(r.Count), nil
}

// everything is the accuracy, and the mean loss of a prediction, on all test samples, or the first 2000.
func (t *netTask) everything(set data.Dataset, params []float32) (accuracy, loss float64, err error) {
	const most, part = 2000, 200
	n := min(most, set.Len())
	for from := 0; from < n; from += part {
		t.indices = t.indices[:0]
		for i := from; i < min(from+part, n); i++ {
			t.indices = append(t.indices, i)
		}
		if err := set.Fill(&t.test, t.indices); err != nil {
			return 0, 0, err
		}
		a, err := t.Accuracy(params)
		if err != nil {
			return 0, 0, err
		}
		share := float64(len(t.indices)) / float64(n)
		accuracy, loss = accuracy+a*share, loss+t.loss*share
	}
	return accuracy, loss, nil
}
