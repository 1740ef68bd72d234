package straggler

import (
	"math"
	"time"

	"star"
)

// keep is how many iterations of each worker are replayed when another model takes
// over: the artefact's window.
const keep = 25

// LSTM predicts with a trained network. Each record advances the state of its worker's
// sequence by one step, so the next times are available without further steps; a roll-out
// feeds the predicted features back. (The artefact runs a
// window of 25 through the network for each predicted step, which costs twenty times as much.)
type LSTM struct {
	model *Model
	net   *Net[float32]
	lens  *lens

	state  *State[float32] // of all workers
	one    *State[float32]
	next   []float64   // s; 0: unknown
	levels []float64   // of a roll-out
	guess  [][]float32 // standardised features expected next
	past   [][]float64 // the last rows of each worker, raw
	row    []float64
	x      []float32
	roll   *State[float32]
	inputs []float32
}

// NewLSTM makes a predictor for a number of workers. The model must be one of
// [ParseModel] or [Trainer]; it is not changed.
func NewLSTM(workers int, timer Timer, m *Model) *LSTM {
	l := &LSTM{lens: newLens(workers, timer, m.Features), next: make([]float64, workers), past: make([][]float64, workers)}
	l.install(m)
	return l
}

// SetModel replaces the model by one with the same features, and catches up.
func (l *LSTM) SetModel(m *Model) {
	if len(m.Features) != len(l.lens.features) {
		panic("straggler: a model with other features")
	}
	for i, f := range m.Features {
		if f != l.lens.features[i] {
			panic("straggler: a model with other features")
		}
	}
	l.install(m)
	k := len(m.Features)
	for w, rows := range l.past {
		for ; len(rows) >= k; rows = rows[k:] {
			l.step(w, rows[:k])
		}
	}
}

func (l *LSTM) install(m *Model) {
	l.model, l.net = m, NewNet[float32](m.Shape)
	copy(l.net.Params, m.Params)
	n, k := len(l.next), len(m.Features)
	l.state, l.one, l.roll = l.net.NewState(n), l.net.NewState(1), l.net.NewState(n)
	l.guess, l.x, l.inputs = make([][]float32, n), make([]float32, k), make([]float32, n*k)
	for w := range l.guess {
		l.guess[w] = make([]float32, k)
	}
	clear(l.next)
}

// Observe implements Predictor.
func (l *LSTM) Observe(r star.Record) {
	if !usable(&r, len(l.next), l.lens.timer) {
		return
	}
	w, k := int(r.Worker), len(l.model.Features)
	l.row = l.lens.look(l.row[:0], &r)
	if len(l.past[w]) >= keep*k {
		l.past[w] = l.past[w][:copy(l.past[w], l.past[w][k:])]
	}
	l.past[w] = append(l.past[w], l.row...)
	l.step(w, l.row)
}

// step advances worker w's sequence by a raw row.
func (l *LSTM) step(w int, row []float64) {
	for i, v := range row {
		l.x[i] = l.standard(i, v)
	}
	h := l.model.Shape.Hidden
	l.one.copyRow(0, l.state, w, h)
	y := l.net.Step(l.one, l.x, 1)
	l.state.copyRow(w, l.one, 0, h)
	copy(l.guess[w], y)
	l.next[w] = l.time(l.lens.level[w], y[len(row)])
}

// standard is a feature as the network knows it. What is far beyond anything that it was
// trained on counts as just beyond.
func (l *LSTM) standard(i int, v float64) float32 {
	const far = 10
	s := &l.model.Scale
	if !finite(v) || s.Std[i] == 0 {
		return 0
	}
	return float32(max(-far, min(far, (v-s.Mean[i])/s.Std[i])))
}

// time is the network's output as seconds: limited to a nanosecond to a day.
func (l *LSTM) time(level float64, v float32) float64 {
	v64 := level + l.model.Scale.one(len(l.model.Features), float64(v))
	return min(max(math.Exp(v64), 1e-9), longest.Seconds())
}

// Next implements Forecaster.
func (l *LSTM) Next(w star.Worker) time.Duration { return seconds(l.next[w]) }

// Predict implements Predictor.
func (l *LSTM) Predict() []time.Duration {
	out := make([]time.Duration, len(l.next))
	for w, v := range l.next {
		out[w] = seconds(v)
	}
	return out
}

// Ahead implements Forecaster.
func (l *LSTM) Ahead(steps int) [][]time.Duration {
	out := make([][]time.Duration, steps)
	n, k := len(l.next), len(l.model.Features)
	l.roll.CopyFrom(l.state)
	for w, g := range l.guess {
		copy(l.inputs[w*k:], g)
	}
	l.levels = append(l.levels[:0], l.lens.level...)
	for i := range out {
		if out[i] = make([]time.Duration, n); i == 0 {
			copy(out[0], l.Predict())
			continue
		}
		y := l.net.Step(l.roll, l.inputs, n)
		for w := range n {
			copy(l.inputs[w*k:(w+1)*k], y[w*(k+1):])
			if l.next[w] == 0 {
				continue
			}
			// What was predicted for the step before has become its time.
			l.levels[w] += settle * (math.Log(max(out[i-1][w].Seconds(), 1e-9)) - l.levels[w])
			out[i][w] = seconds(l.time(l.levels[w], y[w*(k+1)+k]))
		}
	}
	return out
}
