package straggler

import (
	"fmt"
	"math"

	"star"
)

// Source is a source of random numbers, such as *rand.Rand of math/rand/v2.
type Source interface {
	Float64() float64
	Shuffle(n int, swap func(i, j int))
}

// History collects what a network learns from: rows of features and times of each
// worker of one job or several, in the order of their steps.
type History struct {
	features []Feature
	timer    Timer
	max      int
	lens     *lens
	seqs     []sequence
	open     []int // of each worker of the present job: its sequence
	row      []float64
}

// sequence is one worker's life: rows of the features, the time's logarithm over
// the level before, and nothing for the first row.
type sequence []float64

// NewHistory collects at most limit rows of each worker, the newest; 0: all.
func NewHistory(timer Timer, features []Feature, limit int) *History {
	if err := checkFeatures(features); err != nil {
		panic("straggler: " + err.Error())
	}
	return &History{features: features, timer: timer, max: limit}
}

// Begin starts the records of another job.
func (h *History) Begin(workers int) {
	h.lens = newLens(workers, h.timer, h.features)
	h.open = h.open[:0]
	for range workers {
		h.open = append(h.open, len(h.seqs))
		h.seqs = append(h.seqs, nil)
	}
}

// Observe adds a record of the present job. Impossible ones are skipped.
func (h *History) Observe(r star.Record) {
	if !usable(&r, len(h.open), h.timer) {
		return
	}
	k := len(h.features) + 1
	before := h.lens.level[r.Worker]
	if math.IsNaN(h.lens.last[r.Worker]) {
		before = math.NaN()
	}
	h.row = h.lens.look(h.row[:0], &r)
	h.row = append(h.row, h.lens.last[r.Worker]-before)
	s := &h.seqs[h.open[r.Worker]]
	if h.max > 0 && len(*s) >= h.max*k {
		*s = (*s)[:copy(*s, (*s)[k:])]
	}
	*s = append(*s, h.row...)
}

// Rows is the number of rows collected.
func (h *History) Rows() (n int) {
	for _, s := range h.seqs {
		n += len(s) / (len(h.features) + 1)
	}
	return n
}

// Clone is a copy that the original does not change.
func (h *History) Clone() *History {
	c := &History{features: h.features, timer: h.timer, max: h.max}
	for _, s := range h.seqs {
		c.seqs = append(c.seqs, append(sequence(nil), s...))
	}
	return c
}

// Truncate keeps the first part of each worker's rows: later ones are for measuring.
func (h *History) Truncate(part float64) {
	k := len(h.features) + 1
	for i, s := range h.seqs {
		h.seqs[i] = s[:int(part*float64(len(s)/k))*k]
	}
}

// TrainConfig configures the training. Zero values mean the defaults, which are the
// artefact's where it has some.
type TrainConfig struct {
	Hidden, Layers int     // 50, 2
	Head           []int   // widths before the last one: 256, 128
	Window         int     // steps of one sequence: 25
	Batch          int     // sequences of one update: 20
	Epochs         int     // passes at most: 40 (the artefact makes 1000 and keeps the last)
	Patience       int     // passes without a better validation after which it ends: 8
	Rate           float64 // of Adam: 1e-3
	Validation     float64 // newest part of the rows that is not trained on: 0.2
	Random         Source  // initial parameters and the order of windows
}

// Trainer trains a network, a little at a time: its owner decides when and how
// much. Its result is the same for the same history and the same randomness.
type Trainer struct {
	cfg   TrainConfig
	scale Scale
	k     int
	net   *Net[float32]
	opt   Adam[float32]

	train, valid []cut
	x, want, d   []float32
	at           int // of train

	epoch, since int
	best         *Model
	features     []Feature
	rows         int
}

// cut is a window: a sequence and where it begins, in rows.
type cut struct {
	rows  []float32 // of the sequence, standardised
	start int
}

// MinRows is the least number of rows of one worker that a network with the
// default window can learn from.
const MinRows = 60

// NewTrainer standardises a history and cuts it into windows. The history is not
// used after that. A history that is too short is an error.
func NewTrainer(h *History, c TrainConfig) (*Trainer, error) {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&c.Hidden, 50)
	or(&c.Layers, 2)
	or(&c.Window, keep)
	or(&c.Batch, 20)
	or(&c.Epochs, 40)
	or(&c.Patience, 8)
	if c.Head == nil {
		c.Head = []int{256, 128}
	}
	if c.Validation == 0 {
		c.Validation = 0.2
	}
	if c.Random == nil {
		panic("straggler: training without a source of randomness")
	}
	k := len(h.features)
	shape := Shape{Inputs: k, Hidden: c.Hidden, Layers: c.Layers, Resources: k, Head: append(append([]int(nil), c.Head...), 1)}
	if err := shape.check(); err != nil {
		return nil, fmt.Errorf("straggler: %w", err)
	}
	if c.Window < 1 || c.Batch < 1 || !(c.Validation > 0) || c.Validation >= 1 {
		return nil, fmt.Errorf("straggler: windows of %d in batches of %d, %v for validation", c.Window, c.Batch, c.Validation)
	}
	t := &Trainer{cfg: c, k: k, net: NewNet[float32](shape), features: h.features, rows: h.Rows()}
	t.opt.Rate = c.Rate
	var all []float64
	split := func(s sequence) int { return int((1 - c.Validation) * float64(len(s)/(k+1))) }
	for _, s := range h.seqs {
		all = append(all, s[:split(s)*(k+1)]...)
	}
	t.scale.Fit(all, k+1)
	stride := max(c.Window/2, 1)
	for _, s := range h.seqs {
		std := make([]float32, len(s))
		row := make([]float64, k+1)
		for i := 0; i < len(s); i += k + 1 {
			copy(row, s[i:])
			t.scale.Apply(row)
			for j, v := range row {
				std[i+j] = float32(v)
			}
		}
		n, border := len(s)/(k+1), split(s)
		// A window needs the row behind it, for its last target.
		for at := 0; at+c.Window < border; at += stride {
			t.train = append(t.train, cut{std, at})
		}
		for at := max(border-c.Window, 0); at+c.Window < n; at += c.Window {
			t.valid = append(t.valid, cut{std, at})
		}
	}
	if len(t.train) == 0 || len(t.valid) == 0 {
		return nil, fmt.Errorf("straggler: %d rows are too few to train on: no worker has %d", t.rows, MinRows)
	}
	t.initialise()
	return t, nil
}

// initialise draws the parameters as PyTorch does: evenly from ±1/√n, n being the
// hidden units in the LSTM and the inputs in linear layers.
func (t *Trainer) initialise() {
	s := t.net.Shape
	draw := func(ps []float32, n int) {
		for i := range ps {
			ps[i] = float32((2*t.cfg.Random.Float64() - 1) / math.Sqrt(float64(n)))
		}
	}
	p := t.net.Params
	take := func(k int) []float32 { q := p[:k]; p = p[k:]; return q }
	for l := range s.Layers {
		draw(take(4*s.Hidden*(s.in(l)+s.Hidden+2)), s.Hidden)
	}
	draw(take(s.Resources*(s.Hidden+1)), s.Hidden)
	w := s.head().Widths
	for i := 1; i < len(w); i++ {
		draw(take(w[i]*(w[i-1]+1)), w[i-1])
	}
}

// load fills the inputs and targets of a batch, time-major.
func (t *Trainer) load(cuts []cut) {
	k, n := t.k, len(cuts)
	t.x, t.want = sized(t.x, t.cfg.Window*n*k), sized(t.want, t.cfg.Window*n*(k+1))
	t.d = sized(t.d, len(t.want))
	for r, c := range cuts {
		for s := range t.cfg.Window {
			at := (c.start + s) * (k + 1)
			copy(t.x[(s*n+r)*k:(s*n+r+1)*k], c.rows[at:])
			copy(t.want[(s*n+r)*(k+1):(s*n+r+1)*(k+1)], c.rows[at+k+1:])
		}
	}
}

// Step makes one update and reports whether more are to come.
func (t *Trainer) Step() (more bool) {
	if t.at == 0 {
		t.cfg.Random.Shuffle(len(t.train), func(i, j int) { t.train[i], t.train[j] = t.train[j], t.train[i] })
	}
	n := min(t.cfg.Batch, len(t.train)-t.at)
	t.load(t.train[t.at : t.at+n])
	mse(t.d, t.net.Forward(t.x, t.cfg.Window, n), t.want)
	clear(t.net.Grads)
	t.net.Backward(t.d)
	limit(t.net.Grads, 1)
	t.opt.Step(t.net.Params, t.net.Grads)
	if t.at += n; t.at < len(t.train) {
		return true
	}
	t.at = 0
	t.epoch++
	t.since++
	if e := t.validate(); t.best == nil || e < t.best.Error {
		t.since = 0
		if t.best = t.snapshot(e); !finite(e) {
			return false // it has diverged; there is nothing to find
		}
	}
	return t.epoch < t.cfg.Epochs && t.since < t.cfg.Patience
}

// limit scales a gradient to a norm of at most max: single outliers of real times
// are ten standard deviations long.
func limit(g []float32, max float64) {
	var sq float64
	for _, v := range g {
		sq += float64(v) * float64(v)
	}
	if n := math.Sqrt(sq); n > max {
		f := float32(max / n)
		for i := range g {
			g[i] *= f
		}
	}
}

// validate is the mean squared error over the rows that are not trained on.
func (t *Trainer) validate() float64 {
	var sum, n float64
	for at := 0; at < len(t.valid); at += t.cfg.Batch {
		cuts := t.valid[at:min(at+t.cfg.Batch, len(t.valid))]
		t.load(cuts)
		sum += float64(len(cuts)) * mse(t.d, t.net.Forward(t.x, t.cfg.Window, len(cuts)), t.want)
		n += float64(len(cuts))
	}
	return sum / n
}

func (t *Trainer) snapshot(e float64) *Model {
	return &Model{Shape: t.net.Shape, Features: t.features, Scale: t.scale, Rows: t.rows, Error: e, Params: append([]float32(nil), t.net.Params...)}
}

// Epochs is the number of passes made.
func (t *Trainer) Epochs() int { return t.epoch }

// Best is the model with the least error on the rows that are not trained on, or
// nil before the first pass is complete.
func (t *Trainer) Best() *Model { return t.best }
