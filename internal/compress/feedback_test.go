package compress

import (
	"math"
	"slices"
	"testing"

	"star/internal/kernel"
)

// TestNothingIsLost: what was sent and what is left is the sum of all gradients.
func TestNothingIsLost(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const n, steps = 9000, 50
		for _, c := range codecs(t, n) {
			f := NewFeedback(c, n)
			all, sent, got := make([]float64, n), make([]float64, n), make([]float32, n)
			for s := range uint64(steps) {
				g := randoms(n, s)
				before := slices.Clone(g)
				msg := f.Encode(nil, g)
				if !slices.Equal(g, before) {
					t.Fatalf("%s: Encode changed the gradient", c.Name())
				}
				if err := c.Decode(got, msg); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					all[i] += float64(g[i])
					sent[i] += float64(got[i])
				}
			}
			worst := 0.0
			for i, e := range f.Residual() {
				worst = max(worst, math.Abs(sent[i]+float64(e)-all[i]))
			}
			// Each step rounds sums of magnitude below 1 twice.
			if !(worst <= 2*steps*0x1p-24) {
				t.Errorf("%s: sent + residual is off by %v", c.Name(), worst)
			}
		}
	})
}

// TestFeedbackInPieces: the pieces in which Feedback works do not show.
func TestFeedbackInPieces(t *testing.T) {
	const n = 3*4096 + 100
	for _, name := range []string{"none", "fp16", "bf16", "int8", "int8-stochastic"} {
		c, _ := New(name, Slice{}, 3)
		d, _ := New(name, Slice{}, 3)
		f, e := NewFeedback(c, n), make([]float32, n)
		for s := range uint64(3) {
			g := randoms(n, s)
			kernel.Add(e, g)
			want := d.Encode(nil, e)
			if err := d.DecodeAdd(e, -1, want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(f.Encode(nil, g), want) || !slices.Equal(f.Residual(), e) {
				t.Errorf("%s: step %d: differs from the definition", name, s)
			}
		}
	}
}

func TestFeedbackReturnScaleReset(t *testing.T) {
	const n = 100
	f := NewFeedback(NewTopCount(10), n)
	g := randoms(n, 1)
	msg := f.Encode(nil, g)
	if err := f.Return(msg); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Residual(), g) {
		t.Error("a message that was returned is not all there")
	}
	if err := f.Return(msg[:3]); err == nil || !slices.Equal(f.Residual(), g) {
		t.Errorf("returning a message that is cut short: error %v", err)
	}
	f.Scale(0.5)
	if f.Residual()[7] != g[7]/2 {
		t.Error("Scale did not scale")
	}
	f.Reset()
	if !slices.Equal(f.Residual(), make([]float32, n)) {
		t.Error("Reset left something")
	}
	if got := NewFeedback(Float32, 0).Encode([]byte("x"), nil); string(got) != "x" {
		t.Errorf("empty slice: %q", got)
	}
}

// TestFeedbackChangesCodec: what one codec left out the next one sends, and
// Float32 leaves out nothing.
func TestFeedbackChangesCodec(t *testing.T) {
	const n = 5000
	f := NewFeedback(NewTopCount(1), n)
	g, want, got := randoms(n, 1), make([]float32, n), make([]float32, n)
	f.Encode(nil, g)
	f.Use(&Int8{})
	copy(want, f.Residual())
	kernel.Add(want, g)
	if err := f.Codec().Decode(got, f.Encode(nil, g)); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if d := want[i] - got[i]; math.Abs(float64(d)) > 2.0/127 || f.Residual()[i] != d {
			t.Fatalf("element %d: sent %v and kept %v of %v", i, got[i], f.Residual()[i], want[i])
		}
	}
	f.Use(Float32)
	copy(want, f.Residual())
	kernel.Add(want, g)
	if err := f.Codec().Decode(got, f.Encode(nil, g)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || !slices.Equal(f.Residual(), make([]float32, n)) {
		t.Error("Float32 does not send all that was left out")
	}
}

// TestFeedbackOutlivesNaN: a bad gradient is sent as it is and then forgotten.
func TestFeedbackOutlivesNaN(t *testing.T) {
	const n = 9000
	for _, c := range codecs(t, n) {
		f := NewFeedback(c, n)
		for _, bad := range []float32{float32(math.NaN()), inf, math.MaxFloat32} {
			g := randoms(n, 1)
			g[8000] = bad
			msg := f.Encode(nil, g)
			dst := make([]float32, n)
			if err := c.Decode(dst, msg); err != nil {
				t.Fatal(err)
			}
			if bad != math.MaxFloat32 && kernel.Finite(dst[8000:8001]) {
				t.Errorf("%s: %v arrived as %v", c.Name(), bad, dst[8000])
			}
			if !kernel.Finite(f.Residual()) {
				t.Errorf("%s: %v is in the residual", c.Name(), bad)
			}
			if err := f.Return(msg); err != nil {
				t.Fatal(err)
			}
			if !kernel.Finite(f.Residual()) {
				t.Errorf("%s: %v is in the residual when the message comes back", c.Name(), bad)
			}
			f.Reset()
		}
	}
}

// TestSGDNeedsFeedback is gradient descent on ½Σλ(w − w*)² by two workers with gradients that differ by ±b on 1 % of
// the parameters: as from data that are not spread evenly. The differences cancel in the mean, but they are what top-k
// of 1 % picks, in every step. With feedback the other parameters have their turn. (Karimireddy et al. 2019, section 3,
// has such examples for signs.)
func TestSGDNeedsFeedback(t *testing.T) {
	const n, steps, rate = 1000, 4000, 0.05
	target := randoms(n, 1)
	distance := func(feedback bool) float64 {
		w := make([]float32, n)
		var send [2]*Feedback
		for i := range send {
			send[i] = NewFeedback(NewTopShare(0.01), n)
		}
		g, sum := make([]float32, n), make([]float32, n)
		for range steps {
			clear(sum)
			for i, f := range send {
				for j := range g {
					lambda := 0.2 + 0.8*float32(j)/n
					g[j] = lambda * (w[j] - target[j])
					if j%100 == 50 {
						g[j] += 0.1 * float32(1-2*i)
					}
				}
				if !feedback {
					f.Reset()
				}
				if err := f.Codec().DecodeAdd(sum, 0.5, f.Encode(nil, g)); err != nil {
					t.Fatal(err)
				}
			}
			kernel.Axpy(-rate, sum, w)
		}
		d := 0.0
		for j := range w {
			d += float64(w[j]-target[j]) * float64(w[j]-target[j])
		}
		return math.Sqrt(d / kernel.SumSq(target))
	}
	with, without := distance(true), distance(false)
	if !(with <= 0.15) {
		t.Errorf("with feedback the distance is still %.3f of what it was", with)
	}
	if !(without >= 0.9) {
		t.Errorf("without feedback the distance fell to %.3f: this test shows nothing", without)
	}
	t.Logf("distance to the solution: %.4f with feedback, %.4f without", with, without)
}

// TestFeedbackOfParts: feedbacks over the parts of one residual make the pieces of
// the whole vector's message, where [Unit] says that it can be cut.
func TestFeedbackOfParts(t *testing.T) {
	const n = 5*Block + 17
	for _, c := range codecs(t, n) {
		unit, ok := Unit(c)
		if want := !slices.Contains([]string{"topk", "powe"}, c.Name()[:4]); ok != want {
			t.Errorf("%s: can be cut: %v, want %v", c.Name(), ok, want)
		}
		if !ok || c.Name() == "int8-stochastic" { // its random numbers go on from part to part
			continue
		}
		whole, e := NewFeedback(c, n), make([]float32, n)
		cut := 3 * unit
		parts := []*Feedback{FeedbackOver(c, e[:cut]), FeedbackOver(c, e[cut:])}
		for s := range uint64(3) {
			g := randoms(n, s)
			if s == 2 {
				g = nil // zeros
			}
			want := whole.Encode(nil, g)
			var got []byte
			if g == nil {
				got = parts[1].Encode(parts[0].Encode(nil, nil), nil)
			} else {
				got = parts[1].Encode(parts[0].Encode(nil, g[:cut]), g[cut:])
			}
			if !slices.Equal(got, want) || !slices.Equal(e, whole.Residual()) {
				t.Errorf("%s, message %d: the parts differ from the whole", c.Name(), s)
			}
		}
		zeros, f := make([]float32, n), NewFeedback(c, n)
		f.Encode(nil, randoms(n, 9))
		g := NewFeedback(c, n)
		copy(g.Residual(), f.Residual())
		if !slices.Equal(f.Encode(nil, nil), g.Encode(nil, zeros)) {
			t.Errorf("%s: no gradient is not a gradient of zeros", c.Name())
		}
	}
}
