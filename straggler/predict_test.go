package straggler

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
)

func record(w, step int, d time.Duration) star.Record {
	return star.Record{Worker: star.Worker(w), Step: int64(step), Compute: d, CPU: 0.5, NetIn: 10, NetOut: 20}
}

func TestEWMA(t *testing.T) {
	e, last := NewEWMA(3, star.Record.Busy, 0.25), NewLast(3, star.Record.Busy)
	for _, r := range []star.Record{record(0, 0, 100*ms), record(1, 0, time.Second), record(0, 1, 200*ms), record(7, 0, ms), record(-1, 0, ms), record(0, 2, -ms), record(0, 2, 25*time.Hour)} {
		e.Observe(r)
		last.Observe(r)
	}
	if got, want := e.Predict(), []time.Duration{125 * ms, time.Second, 0}; !slices.Equal(got, want) {
		t.Errorf("EWMA %v, want %v", got, want)
	}
	if got, want := last.Predict(), []time.Duration{200 * ms, time.Second, 0}; !slices.Equal(got, want) {
		t.Errorf("last %v, want %v", got, want)
	}
	if a := e.Ahead(3); len(a) != 3 || !slices.Equal(a[2], e.Predict()) || e.Next(0) != 125*ms {
		t.Errorf("ahead %v", a)
	}
}

// sawtooth is a job in which worker 1 is slow in every fourth iteration: an EWMA cannot predict that.
func sawtooth(steps int) (rs []star.Record) {
	rnd := rand.New(rand.NewPCG(4, 2))
	for s := range steps {
		for w := range 2 {
			d := time.Duration(100e6 * (1 + 0.02*rnd.NormFloat64()))
			if w == 1 && s%4 == 0 {
				d *= 2
			}
			rs = append(rs, record(w, s, d))
		}
	}
	return rs
}

func learn(t *testing.T, rs []star.Record, features []Feature) *Model {
	t.Helper()
	h := NewHistory(star.Record.Busy, features, 0)
	h.Begin(2)
	for _, r := range rs {
		h.Observe(r)
	}
	tr, err := NewTrainer(h, TrainConfig{Hidden: 12, Layers: 1, Head: []int{8}, Epochs: 60, Rate: 1e-2, Random: rand.New(rand.NewPCG(1, 2))})
	if err != nil {
		t.Fatal(err)
	}
	for tr.Step() {
	}
	return tr.Best()
}

// The network learns the rhythm in the data; the contest notices, and the report says so.
func TestLSTMLearnsARhythm(t *testing.T) {
	rs := sawtooth(400)
	m := learn(t, rs[:600], Times)
	timer := star.Record.Busy
	contest := NewContest(timer, 50, Entrant{"ewma", NewEWMA(2, timer, 0.3)}, Entrant{"lstm", NewLSTM(2, timer, m)})
	scores := Evaluate(Aligned(rs, 2, timer), 300, 6, 0.2, timer,
		Entrant{"last", NewLast(2, timer)}, Entrant{"ewma", NewEWMA(2, timer, 0.3)}, Entrant{"lstm", NewLSTM(2, timer, m)}, Entrant{"contest", contest})
	last, ewma, lstm, both := scores[0], scores[1], scores[2], scores[3]
	if lstm.LogError > 0.05 || ewma.LogError < 0.1 || both.LogError != lstm.LogError || contest.Champion().Name != "lstm" {
		t.Errorf("LSTM off by %.3f, EWMA by %.3f, contest by %.3f with %v", lstm.LogError, ewma.LogError, both.LogError, contest)
	}
	if lstm.Workers.Recall() < 0.99 || lstm.Workers.Precision() < 0.99 || lstm.Jobs.FalsePositiveRate() > 0.01 || last.Workers.TruePositive != 0 {
		t.Errorf("LSTM %+v, last %+v", lstm.Workers, last.Workers)
	}
	if lstm.Onsets != 25 || lstm.Foreseen != 25 || lstm.Lead < 5 || last.Foreseen != 0 || last.Lead != 0 {
		t.Errorf("lead %.1f over %d of %d onsets; last value %.1f over %d", lstm.Lead, lstm.Foreseen, lstm.Onsets, last.Lead, last.Foreseen)
	}
	// When the rhythm ends, the LSTM must earn its place again.
	for s := range 100 {
		for w := range 2 {
			contest.Observe(record(w, 400+s, time.Duration(1+s%2*w)*100*ms*time.Duration(1+s/3%2)))
		}
	}
	if contest.Error(1) > contest.Error(0) && contest.Champion().Name != "ewma" {
		t.Errorf("%v", contest)
	}
}

// The same history and seed give the same bits.
func TestTrainingIsReproducible(t *testing.T) {
	rs := sawtooth(150)
	a, b := learn(t, rs, Resources), learn(t, rs, Resources)
	if !slices.Equal(a.Params, b.Params) || a.Error != b.Error {
		t.Error("two trainings differ")
	}
}

// A model that takes over catches up on what it has not seen.
func TestSetModel(t *testing.T) {
	rs := sawtooth(200)
	m := learn(t, rs, Times)
	timer := star.Record.Busy
	always, late := NewLSTM(2, timer, m), NewLSTM(2, timer, m)
	for i, r := range rs[:50] { // 25 of each: all that is replayed
		always.Observe(r)
		late.Observe(r)
		if i == 40 {
			other := *m
			other.Params = make([]float32, len(m.Params))
			late.SetModel(&other)
		}
	}
	if slices.Equal(always.Predict(), late.Predict()) {
		t.Error("another model predicts the same")
	}
	late.SetModel(m)
	if !slices.Equal(always.Predict(), late.Predict()) {
		t.Errorf("%v and %v", always.Predict(), late.Predict())
	}
	a, b := always.Ahead(30), late.Ahead(30)
	for i := range a {
		if !slices.Equal(a[i], b[i]) || a[i][0] <= 0 {
			t.Fatalf("step %d: %v and %v", i, a[i], b[i])
		}
	}
	if again := always.Ahead(30); !slices.Equal(again[29], a[29]) || !slices.Equal(again[0], always.Predict()) {
		t.Error("a roll-out changes the state")
	}
}

// Nothing that a record can hold makes a prediction that is not a time.
func TestPredictionsAreTimes(t *testing.T) {
	m := learn(t, sawtooth(150), Resources)
	l := NewLSTM(2, star.Record.Busy, m)
	for i, r := range []star.Record{
		record(0, 0, 1), record(0, 1, longest), record(0, 2, 1), {Worker: 0, Step: 3, Compute: ms, CPU: math.NaN(), NetIn: math.Inf(1)},
		{Worker: 0, Step: 4, Compute: ms, CPU: -1, NetOut: -5}, {Worker: 0, Step: 5, Compute: ms, NetOut: 1e300},
	} {
		l.Observe(r)
		for _, ts := range append(l.Ahead(40), l.Predict()) {
			if ts[0] < 0 || ts[0] > longest+time.Second || ts[1] != 0 {
				t.Fatalf("after record %d: %v", i, ts)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	h := NewHistory(star.Record.Busy, Times, 10)
	for range 2 {
		h.Begin(2)
		for _, r := range sawtooth(30) {
			h.Observe(r)
		}
		h.Observe(record(5, 0, ms))
	}
	if h.Rows() != 40 {
		t.Errorf("%d rows of 4 workers, want 10 of each", h.Rows())
	}
	c := h.Clone()
	c.Truncate(0.5)
	if h.Rows() != 40 || c.Rows() != 20 {
		t.Errorf("%d and %d rows", h.Rows(), c.Rows())
	}
	if _, err := NewTrainer(h, TrainConfig{Random: rand.New(rand.NewPCG(1, 1))}); err == nil || !strings.Contains(err.Error(), "too few") {
		t.Errorf("10 rows: %v", err)
	}
	if _, err := NewTrainer(h, TrainConfig{Random: rand.New(rand.NewPCG(1, 1)), Hidden: -1}); err == nil {
		t.Error("negative width")
	}
}

func TestAligned(t *testing.T) {
	rs := []star.Record{record(0, 5, ms), record(1, 5, 2*ms), record(0, 6, ms), record(1, 7, ms), record(0, 7, 3*ms), record(2, 7, ms), record(0, 8, -1), record(1, 8, 1), record(0, 7, 4*ms)}
	got := Aligned(rs, 2, star.Record.Busy)
	if len(got) != 2 || got[0][1].Compute != 2*ms || got[1][0].Compute != 4*ms {
		t.Errorf("%+v", got)
	}
}

func someModel() *Model {
	s := Shape{Inputs: 2, Hidden: 3, Layers: 1, Resources: 2, Head: []int{4, 1}}
	m := &Model{Shape: s, Features: Times, Scale: Scale{[]float64{1, 2, 3}, []float64{1, 0, 2}}, Rows: 7, Error: 0.5, Params: make([]float32, s.Params())}
	fill(m.Params, s.tensors())
	return m
}

func TestModelFile(t *testing.T) {
	m := someModel()
	b, err := m.AppendTo([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseModel(b[1:])
	if err != nil || !slices.Equal(got.Params, m.Params) || got.Rows != 7 || !slices.Equal(got.Features, m.Features) || !slices.Equal(got.Scale.Std, m.Scale.Std) {
		t.Errorf("%+v, %v", got, err)
	}
	good := b[1:]
	for i := range good { // every single byte
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		_, err := ParseModel(bad)
		var me *ModelError
		if !errors.As(err, &me) || me.ExitCode() != 65 {
			t.Errorf("byte %d: %v", i, err)
		}
		if _, err := ParseModel(good[:i]); !errors.As(err, &me) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
}

// What is consistent in itself may be wrong all the same.
func TestModelRefuses(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(m *Model)
	}{
		{"hidden units", func(m *Model) { m.Shape.Hidden = 0 }},
		{"parameters", func(m *Model) { m.Params = m.Params[1:] }},
		{"parameter 3 is NaN", func(m *Model) { m.Params[3] = float32(math.NaN()) }},
		{"features", func(m *Model) { m.Features = []Feature{FeatureTime, FeatureTime} }},
		{"features", func(m *Model) { m.Features = []Feature{"weather", FeatureTime} }},
		{"inputs and resources", func(m *Model) { m.Shape.Resources = 1; m.Params = make([]float32, m.Shape.Params()) }},
		{"a head", func(m *Model) { m.Shape.Head = nil; m.Params = make([]float32, m.Shape.Params()) }},
		{"means", func(m *Model) { m.Scale.Mean = m.Scale.Mean[1:] }},
		{"deviation -1", func(m *Model) { m.Scale.Std[0] = -1 }},
		{"not a number", func(m *Model) { m.Error = math.Inf(1) }},
	} {
		m := someModel()
		c.spoil(m)
		if _, err := m.AppendTo(nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func FuzzParseModel(f *testing.F) {
	b, _ := someModel().AppendTo(nil)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseModel(b)
		if err != nil {
			return
		}
		NewLSTM(2, star.Record.Busy, m).Observe(record(0, 0, ms))
	})
}
