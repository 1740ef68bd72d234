// Package optim turns gradients into changes of parameters: SGD, momentum,
// Nesterov's momentum, Adam, AdamW and Muon by PyTorch's formulas, and schedules
// of the learning rate.
//
// Optimisers run on the parameter servers, each on its own range of the flat
// vector. They work element by element, Muon matrix by matrix, so cutting the
// vector over more or fewer shards, for Muon between matrices, changes no bit of
// the result.
//
// Schedules are indexed by samples, not by updates: a change of mode changes how
// many samples an update is made of, and must not change the learning rate.
//
// References:
//   - I. Sutskever et al.: On the importance of initialization and momentum in deep learning. ICML 2013.
//   - D. Kingma, J. Ba: Adam: A Method for Stochastic Optimization. ICLR 2015.
//   - I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization. ICLR 2019 (AdamW).
//   - I. Loshchilov, F. Hutter: SGDR. ICLR 2017 (the cosine, without restarts).
//   - K. Jordan et al.: Muon: An optimizer for hidden layers in neural networks. 2024.
//   - J. Liu et al.: Muon is Scalable for LLM Training. arXiv 2502.16982, 2025 (the scale of its steps).
//
// What will bite: with many small updates (x-order with a small x) Adam and
// momentum see other moments than with few large ones, because their decay is
// counted in updates. Only plain SGD is indifferent to how gradients are grouped.
package optim

import (
	"fmt"
	"math"
	"strings"

	"star/internal/kernel"
)

// Names of the optimisers.
const (
	SGD      = "sgd"
	Momentum = "momentum"
	Nesterov = "nesterov"
	Adam     = "adam"
	AdamW    = "adamw"

	// Muon makes the momentum of each hidden matrix orthogonal, and is AdamW for all other parameters. It needs
	// Config.Shaped, and whole matrices.
	Muon = "muon"

	// DANA is Nesterov's momentum with a velocity for each worker. Those are with the rule that makes gradients a
	// direction (rule.WorkerMomentum), which adds the weight decay too: what is left for the optimiser is the
	// plain step.
	DANA = "dana"

	// Own is an optimiser of the program that computes the gradients, which makes the updates itself. It is known
	// by its name alone, and nothing here can make a step of it.
	Own = "own"
)

// Config chooses an optimiser. The zero value is SGD at a learning rate of 0.01.
type Config struct {
	// Name is sgd, momentum, nesterov, dana, adam, adamw or muon. Empty means sgd.
	Name string `json:"name"`

	// LR is the learning rate before the schedule. Zero means 0.01 for the SGD
	// family and 0.001 for the Adam family (PyTorch's for Adam) and muon.
	LR float64 `json:"lr"`

	// Momentum of momentum, nesterov, dana and the matrices of muon. Zero means 0.9, for muon 0.95.
	Momentum float64 `json:"momentum,omitempty"`

	// Beta1, Beta2, Epsilon of the Adam family and muon. Zero means 0.9, 0.999, 1e-8.
	Beta1   float64 `json:"beta1,omitempty"`
	Beta2   float64 `json:"beta2,omitempty"`
	Epsilon float64 `json:"epsilon,omitempty"`

	// WeightDecay is added to the gradient as WeightDecay·w; for adamw and muon it
	// shrinks the parameters by LR·WeightDecay instead.
	WeightDecay float64 `json:"weight_decay,omitempty"`

	// Schedule of the learning rate, see [ParseSchedule]. Empty: constant.
	Schedule string `json:"schedule,omitempty"`

	// Groups are parts of the parameters with other settings, one after the other; between them, and behind,
	// Config's own hold. Not with dana.
	Groups []Group `json:"groups,omitempty"`

	// Matrices are those that muon makes orthogonal, in order. Set by Shaped.
	Matrices []Matrix `json:"-"`
	shaped   bool

	// Given: LR, Momentum and the settings of the Adam family were set explicitly: zero means zero.
	Given bool `json:"-"`
}

// Group is the parameters From to To, without that one: their learning rate is Factor times that of the others.
type Group struct {
	From        int     `json:"from"`
	To          int     `json:"to"`
	Factor      float64 `json:"factor"`
	WeightDecay float64 `json:"weight_decay"`
}

// Cut is c for the parameters from to to, without that one, which are numbered from 0.
func (c Config) Cut(from, to int) Config {
	var cut []Group
	for _, g := range c.Groups {
		g.From, g.To = max(g.From, from)-from, min(g.To, to)-from
		if g.From < g.To {
			cut = append(cut, g)
		}
	}
	c.Groups = cut
	c.Matrices = cutMatrices(c.Matrices, from, to)
	return c
}

// WithDefaults fills in what is zero, and was not given.
func (c Config) WithDefaults() Config {
	def := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Name == "" {
		c.Name = SGD
	}
	rate, momentum := 0.01, 0.0
	switch c.Name {
	case Momentum, Nesterov, DANA:
		momentum = 0.9
	case Muon:
		momentum = 0.95
		fallthrough
	case Adam, AdamW:
		rate = 0.001
		def(&c.Beta1, 0.9)
		def(&c.Beta2, 0.999)
		def(&c.Epsilon, 1e-8)
	}
	if !c.Given {
		def(&c.LR, rate)
		def(&c.Momentum, momentum)
	}
	return c
}

// Validate names the first setting that cannot be used.
func (c Config) Validate() error {
	c = c.WithDefaults()
	switch c.Name {
	case SGD, Momentum, Nesterov, DANA, Adam, AdamW, Muon:
	default:
		return fmt.Errorf("optim: unknown optimiser %q: want %s", c.Name,
			strings.Join([]string{SGD, Momentum, Nesterov, DANA, Adam, AdamW, Muon}, ", "))
	}
	if (c.Name == SGD || c.Name == Adam || c.Name == AdamW) && c.Momentum != 0 {
		return fmt.Errorf("optim: %s takes no momentum (%g is set): use %s, %s or %s", c.Name, c.Momentum, Momentum, Nesterov, DANA)
	}
	for _, s := range []struct {
		name     string
		value    float64
		from, to float64 // from ≤ value < to
	}{
		{"learning rate", c.LR, 0, math.Inf(1)},
		{"momentum", c.Momentum, 0, 1},
		{"beta1", c.Beta1, 0, 1},
		{"beta2", c.Beta2, 0, 1},
		{"epsilon", c.Epsilon, 0, math.Inf(1)},
		{"weight decay", c.WeightDecay, 0, math.Inf(1)},
	} {
		if !(s.value >= s.from && s.value < s.to) { // also false for NaN
			return fmt.Errorf("optim: %s is %g: want a value in [%.3g, %g)", s.name, s.value, s.from, s.to)
		}
	}
	if len(c.Groups) > 0 && c.Name == DANA {
		return fmt.Errorf("optim: %s has no groups of parameters: use %s", c.Name, Nesterov)
	}
	at := 0
	for i, g := range c.Groups {
		if g.From < at || g.To <= g.From || !(g.Factor >= 0 && g.Factor <= 1e6) || !(g.WeightDecay >= 0) || math.IsInf(g.WeightDecay, 1) {
			return fmt.Errorf("optim: group %d of parameters is %d to %d, with %g of the learning rate and a weight decay of %g: want parts one after the other, a factor of at most 1e6, and no negative number",
				i, g.From, g.To, g.Factor, g.WeightDecay)
		}
		at = g.To
	}
	_, err := c.Rate()
	return err
}

// Rate is the learning rate of c as a function of samples.
func (c Config) Rate() (Schedule, error) {
	if c = c.WithDefaults(); c.LR != 0 {
		return ParseSchedule(c.Schedule, c.LR)
	}
	_, err := ParseSchedule(c.Schedule, 1)
	return Schedule{}, err // whatever its course, it is 0
}

// Shared is c where all workers share one velocity: Nesterov's momentum in DANA's place, which is the same in SSGD.
func (c Config) Shared() Config {
	if c.Name == DANA {
		c.Name = Nesterov
	}
	return c
}

// Memory is the share of the last step in the next one: the momentum, or β₁; of DANA 0. Settings
// that the optimizer does not use do not count.
func (c Config) Memory() float64 {
	switch c = c.WithDefaults(); c.Name {
	case Momentum, Nesterov, Muon:
		return c.Momentum
	case Adam, AdamW:
		return c.Beta1
	}
	return 0
}

// Velocities is the momentum where each worker has a velocity of its own; 0: they have none.
func (c Config) Velocities() float64 {
	if c = c.WithDefaults(); c.Name == DANA {
		return c.Momentum
	}
	return 0
}

// Adaptive says that the length of a step does not follow that of the gradients.
func (c Config) Adaptive() bool { return c.Name == Adam || c.Name == AdamW || c.Name == Muon }

// Slot is a vector of state beside the parameters, one element for each. The
// names are PyTorch's: momentum_buffer; exp_avg and exp_avg_sq.
type Slot struct {
	Name string
	Data []float32
}

// Optimizer holds the state for one range of the parameters. It is used by one
// goroutine at a time, but for StepRange.
type Optimizer struct {
	c     Config
	n     int
	steps int64
	slots []Slot
}

// New makes an optimiser for n parameters.
func New(c Config, n int) (*Optimizer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, fmt.Errorf("optim: %d parameters", n)
	}
	o := &Optimizer{c: c.WithDefaults(), n: n}
	if err := c.Fits(n); err != nil {
		return nil, err
	}
	for _, name := range c.SlotNames() {
		o.slots = append(o.slots, Slot{Name: name, Data: make([]float32, n)})
	}
	return o, nil
}

// SlotNames lists the vectors of state that the optimiser keeps. Its length is
// the memory it needs, in units of the parameters.
func (c Config) SlotNames() []string {
	switch c.Name {
	case Momentum, Nesterov:
		return []string{"momentum_buffer"}
	case Adam, AdamW, Muon:
		return []string{"exp_avg", "exp_avg_sq"}
	}
	return nil
}

// Config is what the optimiser was made from, with the defaults filled in.
func (o *Optimizer) Config() Config { return o.c }

// Step changes params by one update with the gradient grad at the learning rate
// lr. Both must have the length that the optimiser was made for; grad is not
// changed. Step allocates nothing.
func (o *Optimizer) Step(params, grad []float32, lr float64) {
	if len(params) != o.n {
		panic(fmt.Sprintf("optim: step on %d parameters with an optimiser for %d", len(params), o.n))
	}
	o.Begin()
	if o.c.Name == Muon {
		for i := range o.Parts() {
			o.StepPart(i, params, grad, lr, 1)
		}
		return
	}
	o.StepRange(params, grad, 0, lr)
}

// Strides is that of its Config.
func (o *Optimizer) Strides() bool { return o.c.Strides() }

// Len is the number of parameters that it is for.
func (o *Optimizer) Len() int { return o.n }

// Begin opens a step that is made in parts, by [Optimizer.StepRange] or [Optimizer.StepPart].
func (o *Optimizer) Begin() { o.steps++ }

// StepRange is the part of a step, after Begin, for the elements of params and grad; the first of
// them is number from of the whole. Every element must be in one part; parts that do not overlap may
// be stepped by several goroutines at once. The bits do not depend on how a step is cut. If Whole, it panics.
func (o *Optimizer) StepRange(params, grad []float32, from int, lr float64) {
	if o.Whole() {
		panic("optim: a step of " + o.c.Name + " on a range of elements")
	}
	o.stepRange(params, grad, from, lr, 1)
}

// stepRange is StepRange in an update of a share of a round. lr has that factor already.
func (o *Optimizer) stepRange(params, grad []float32, from int, lr, share float64) {
	to := from + len(params)
	if len(grad) != len(params) || from < 0 || to > o.n {
		panic(fmt.Sprintf("optim: step on elements %d..%d with %d of the gradient and an optimiser for %d", from, to, len(grad), o.n))
	}
	c := &o.c
	if len(c.Groups) == 0 {
		o.stepPart(params, grad, from, lr, c.WeightDecay, share)
		return
	}
	at := from
	part := func(end int, factor, decay float64) {
		if end = min(end, to); at < end {
			o.stepPart(params[at-from:end-from], grad[at-from:end-from], at, lr*factor, decay, share)
			at = end
		}
	}
	for _, g := range c.Groups {
		if g.To > from {
			part(g.From, 1, c.WeightDecay)
			part(g.To, g.Factor, g.WeightDecay)
		}
	}
	part(to, 1, c.WeightDecay)
}

// stepPart is stepRange for parameters that have the same settings.
func (o *Optimizer) stepPart(params, grad []float32, from int, lr, decay, share float64) {
	c, to := &o.c, from+len(params)
	switch c.Name {
	case SGD:
		kernel.SGD(params, grad, float32(lr), float32(decay))
	case DANA:
		kernel.SGD(params, grad, float32(lr), 0)
	case Momentum, Nesterov:
		kernel.Momentum(params, grad, o.slots[0].Data[from:to], float32(lr), float32(c.Momentum), 0, float32(decay), c.Name == Nesterov)
	case Adam, AdamW, Muon:
		m, v := o.slots[0].Data[from:to], o.slots[1].Data[from:to]
		step := kernel.AdamStep{
			LR: float32(lr), Beta1: float32(c.Beta1), Beta2: float32(c.Beta2), Eps: float32(c.Epsilon),
			Decay: float32(decay), Decoupled: c.Name != Adam, Step: o.steps,
		}
		if share < 1 {
			kernel.AdamPart(params, grad, m, v, step, float32(share))
		} else {
			kernel.Adam(params, grad, m, v, step)
		}
	}
}

// Strides reports whether workers can make local steps for an optimizer of c ([Optimizer.Stride]):
// it requires steps proportional to gradients, with the same factor for all parameters, as in the
// SGD family.
func (c Config) Strides() bool {
	return !c.Adaptive() && c.Name != Own && len(c.Groups) == 0
}

// Gain is by how much a step becomes longer because gradients are remembered: 1/(1 − μ), and 1 without momentum, or if
// steps have a length of their own.
func (c Config) Gain() float64 {
	if c.Adaptive() {
		return 1
	}
	return 1 / (1 - c.WithDefaults().Momentum)
}

// Unit is by what workers divide the distance that they have moved by local steps before an outer step, so that it
// is as long as a gradient: the learning rate without its schedule, times Gain.
func (c Config) Unit() float64 { return c.WithDefaults().LR * c.Gain() }

// Stride moves params by local steps of the workers with optimizers of the same settings: by mean,
// which is the mean of their movement in a step from [rule.Solo], times the number of steps, the
// learning rate and Gain. The state of the optimizer becomes the mean velocity of those steps.
// Optimizers for which Strides is false panic. mean is not changed.
//
// [rule.Solo]: https://pkg.go.dev/star/ps/rule#Solo
func (o *Optimizer) Stride(params, mean []float32, steps int, lr float64) {
	if len(params) != o.n || len(mean) != o.n || !o.c.Strides() {
		panic(fmt.Sprintf("optim: a stride of %d parameters, %d of the mean, with %s for %d", len(params), len(mean), o.c.Name, o.n))
	}
	o.steps++
	kernel.Axpy(float32(-lr*float64(steps)*o.c.Gain()), mean, params)
	for _, s := range o.slots {
		clear(s.Data)
		kernel.Axpy(float32(o.c.Gain()), mean, s.Data)
	}
}

// State is what a checkpoint keeps of an optimiser beside the parameters.
type State struct {
	Name  string // of the optimiser
	Steps int64  // updates so far: Adam's bias correction counts them
	Slots []Slot
}

// State shows the state. The vectors are the optimiser's own: the next Step
// changes them.
func (o *Optimizer) State() State {
	return State{Name: o.c.Name, Steps: o.steps, Slots: o.slots}
}

// SetState copies s into the optimiser, as after the step in which s was taken.
// s must come from an optimiser of the same name and number of parameters; if it
// does not, the optimiser stays as it was.
func (o *Optimizer) SetState(s State) error {
	if s.Name != o.c.Name {
		return fmt.Errorf("optim: the state is that of %q, this optimiser is %q: resume with the same one, or start without the state", s.Name, o.c.Name)
	}
	if s.Steps < 0 {
		return fmt.Errorf("optim: the state counts %d steps", s.Steps)
	}
	if len(s.Slots) != len(o.slots) {
		return fmt.Errorf("optim: the state of %s has %d slots, expected %d", s.Name, len(s.Slots), len(o.slots))
	}
	for i, slot := range s.Slots {
		if slot.Name != o.slots[i].Name {
			return fmt.Errorf("optim: slot %d of %s is %q, expected %q", i, s.Name, slot.Name, o.slots[i].Name)
		}
		if len(slot.Data) != o.n {
			return fmt.Errorf("optim: slot %s has %d elements, expected %d", slot.Name, len(slot.Data), o.n)
		}
	}
	o.steps = s.Steps
	for i, slot := range s.Slots {
		copy(o.slots[i].Data, slot.Data)
	}
	return nil
}
