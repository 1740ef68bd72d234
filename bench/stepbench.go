package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"star/train"
	"star/train/net"
)

// torchStep times the same models in PyTorch.
//
//go:embed torch_step.py
var torchStep []byte

// StepConfig configures Steps. The zero value: all models, without a peer.
type StepConfig struct {
	Models  []string // of StepModels; empty means all
	Rounds  int      // turns of each side. Zero means 5
	Seconds float64  // of one turn. Zero means 1
	Against string   // "torch", or empty for none
	Python  string   // interpreter that has PyTorch. Empty means /usr/bin/python3
}

// StepResult is one row: processor time of one training step (forward, backward)
// on one thread. Times are medians over the turns.
type StepResult struct {
	Model   string  `json:"model"`
	Batch   int     `json:"batch"`
	Params  int     `json:"params"`
	Steps   int     `json:"steps"`
	CPU     float64 `json:"cpu_s_per_step"`
	Min     float64 `json:"min_s"` // wall time of the fastest step
	Allocs  float64 `json:"allocs_per_step"`
	Peer    string  `json:"peer,omitempty"`
	PeerCPU float64 `json:"peer_cpu_s_per_step,omitempty"`
	PeerMin float64 `json:"peer_min_s,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"` // our processor time over the peer's
}

type stepModel struct {
	name  string // as in torch_step.py
	spec  string
	input train.Input
	batch int
}

// The architectures of torch_step.py.
var stepModels = []stepModel{
	{"mlp", "mlp", train.Input{Shape: []int{784}, Classes: 10}, 64},
	{"lenet", "lenet", train.Input{Shape: []int{1, 28, 28}, Classes: 10}, 64},
	{"resnet20", "resnet20", train.Input{Shape: []int{3, 32, 32}, Classes: 10}, 32},
	{"lstm", "lstm:layers=1,hidden=128,embed=128", train.Input{Shape: []int{50}, Classes: 64, Tokens: true}, 32},
	{"transformer", "transformer:layers=1,width=64,heads=4,ff=256", train.Input{Shape: []int{32}, Classes: 64, Tokens: true}, 8},
}

// StepModels are the names of the models of Steps.
func StepModels() []string {
	var names []string
	for _, m := range stepModels {
		names = append(names, m.name)
	}
	return names
}

// Steps measures the processor time of training steps, on one thread, in turns with the peer.
func Steps(ctx context.Context, cfg StepConfig) ([]StepResult, error) {
	if len(cfg.Models) == 0 {
		cfg.Models = StepModels()
	}
	if cfg.Rounds == 0 {
		cfg.Rounds = 5
	}
	if cfg.Seconds == 0 {
		cfg.Seconds = 1
	}
	if cfg.Python == "" {
		cfg.Python = "/usr/bin/python3"
	}
	if cfg.Against != "" && cfg.Against != "torch" {
		return nil, fmt.Errorf("bench: unknown peer %q; there is: torch", cfg.Against)
	}
	script := ""
	if cfg.Against == "torch" {
		f, err := os.CreateTemp("", "torch_step*.py")
		if err != nil {
			return nil, err
		}
		defer os.Remove(f.Name())
		if _, err := f.Write(torchStep); err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		script = f.Name()
	}
	var out []StepResult
	for _, name := range cfg.Models {
		i := slices.IndexFunc(stepModels, func(m stepModel) bool { return m.name == name })
		if i < 0 {
			return out, fmt.Errorf("bench: unknown model %q; there are: %v", name, StepModels())
		}
		r, err := stepPair(ctx, stepModels[i], cfg, script)
		if err != nil {
			return out, err
		}
		out = append(out, r)
	}
	return out, nil
}

func stepPair(ctx context.Context, m stepModel, cfg StepConfig, script string) (StepResult, error) {
	spec, err := net.Parse(m.spec)
	if err != nil {
		return StepResult{}, err
	}
	spec.Input, spec.Batch, spec.Seed = m.input, m.batch, 1
	model, err := net.Build(spec)
	if err != nil {
		return StepResult{}, err
	}
	defer model.Close()
	grad := make([]float32, len(model.Params()))
	if g, ok := model.(interface{ Gradient() []float32 }); ok {
		grad = g.Gradient()
	}
	batch := syntheticBatch(m)
	one := func() error { _, err := model.Grad(ctx, grad, batch); return err }
	for range 3 {
		if err := one(); err != nil {
			return StepResult{}, err
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := StepResult{Model: m.name, Batch: m.batch, Params: len(model.Params())}
	var cpus, peers []float64
	steps := 0
	for range cfg.Rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cpu, n := cpuTime(), 0
		for end := time.Now().Add(time.Duration(cfg.Seconds * float64(time.Second))); time.Now().Before(end); n++ {
			start := time.Now()
			if err := one(); err != nil {
				return r, err
			}
			if t := time.Since(start).Seconds(); r.Min == 0 || t < r.Min {
				r.Min = t
			}
		}
		cpus = append(cpus, (cpuTime()-cpu)/float64(n))
		runtime.ReadMemStats(&after)
		r.Allocs = float64(after.Mallocs-before.Mallocs) / float64(n)
		r.Steps += n
		steps = n
		if script == "" {
			continue
		}
		c, least, err := torch(ctx, cfg.Python, script, m, max(steps, 10))
		if err != nil {
			return r, err
		}
		peers = append(peers, c)
		if r.PeerMin == 0 || least < r.PeerMin {
			r.PeerMin = least
		}
	}
	r.CPU = median(cpus)
	if script != "" {
		r.Peer, r.PeerCPU = "torch", median(peers)
		r.Ratio = r.CPU / r.PeerCPU
	}
	return r, nil
}

// torch runs the same steps in PyTorch.
func torch(ctx context.Context, python, script string, m stepModel, steps int) (cpu, least float64, err error) {
	cmd := exec.CommandContext(ctx, python, script, m.name, strconv.Itoa(m.batch), strconv.Itoa(steps))
	// One thread also for the libraries below PyTorch: their idle threads would spin.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	b, err := cmd.Output()
	if err != nil {
		var x *exec.ExitError
		if errors.As(err, &x) {
			err = fmt.Errorf("%w: %s", err, x.Stderr)
		}
		return 0, 0, fmt.Errorf("bench: %s torch_step.py %s: %w (Debian: python3-torch; --python names another interpreter)", python, m.name, err)
	}
	var got struct {
		CPU float64 `json:"cpu_s_per_step"`
		Min float64 `json:"min_s"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		return 0, 0, fmt.Errorf("bench: torch_step.py printed %q: %w", b, err)
	}
	return got.CPU, got.Min, nil
}

func syntheticBatch(m stepModel) train.Batch {
	rng := rand.New(rand.NewPCG(1, 2))
	n := m.batch
	for _, d := range m.input.Shape {
		n *= d
	}
	b := train.Batch{Samples: m.batch}
	label := func() int32 { return int32(rng.IntN(m.input.Classes)) }
	if m.input.Tokens {
		for range n {
			b.Tokens = append(b.Tokens, label())
			b.Y = append(b.Y, label())
		}
		return b
	}
	for range n {
		b.X = append(b.X, float32(rng.NormFloat64()))
	}
	for range m.batch {
		b.Y = append(b.Y, label())
	}
	return b
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}
