package ps

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"star/internal/compress"
	"star/transport"
)

// thawed reads all of f.
func thawed(f *frozen, n int) []float32 {
	v := make([]float32, n)
	if got := f.next(v); got != n {
		panic(fmt.Sprintf("%d of %d values", got, n))
	}
	return v
}

// nearly says whether a is b but for roundings.
func nearly(a, b []float32) bool {
	for i := range a {
		if math.Abs(float64(a[i]-b[i])) > 1e-6*(1+math.Abs(float64(b[i]))) {
			return false
		}
	}
	return len(a) == len(b)
}

// The residual of a packer is reported as of a step, in any state of the worker: at rest, with the gradient of the step
// on its way, or with the gradient before it thrown away, acknowledged or not.
func TestFreezeIsOfAStep(t *testing.T) {
	const n = 5000
	for _, codec := range everyCodec[1:] {
		t.Run(codec, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			grad := func() []float32 {
				g := make([]float32, n)
				for i := range g {
					g[i] = float32(rng.NormFloat64())
				}
				return g
			}
			k := new(packer)
			k.use(codecOf(t, codec, layout(n), n, 0, 0), n)
			for s := range int64(3) {
				k.pack(s, grad())
			}
			rest := slices.Clone(k.feedback.Residual()) // when step 3 begins
			f, name, _ := k.freeze(3, false)
			if name != codec || !slices.Equal(thawed(f, n), rest) {
				t.Errorf("at rest: another residual, of %s", name)
			}
			unheard, _, _ := k.freeze(3, true)
			k.giveBack()
			heard, _, _ := k.freeze(3, true)
			back := slices.Clone(k.feedback.Residual())
			if !slices.Equal(thawed(heard, n), back) || !slices.Equal(thawed(unheard, n), back) || slices.Equal(back, rest) {
				t.Error("of a gradient that was thrown away something is missing")
			}
			k.pack(3, grad())
			f, _, _ = k.freeze(3, true) // which is of the gradient of step 2
			if !nearly(thawed(f, n), back) {
				t.Error("with the gradient of the step on its way it is not what it was before")
			}
			if f, _, _ = k.freeze(4, false); !slices.Equal(thawed(f, n), k.feedback.Residual()) {
				t.Error("the gradient of the step before is in it, and is not")
			}
		})
	}
}

// What is being read stays as it was when more is left out, given back, or when the codec goes.
func TestFrozenStays(t *testing.T) {
	const n = 1000
	for name, change := range map[string]func(k *packer, g []float32){
		"push":     func(k *packer, g []float32) { k.pack(9, g) },
		"dropped":  func(k *packer, g []float32) { k.giveBack() },
		"another":  func(k *packer, g []float32) { k.use(compress.FP16, n); k.pack(9, g) },
		"none":     func(k *packer, g []float32) { k.use(none, n); k.pack(9, g); k.pack(10, g) },
		"frozen":   func(k *packer, g []float32) { k.freeze(9, false); k.pack(9, g) },
		"recalled": func(k *packer, g []float32) { k.recall(n, func(dst []float32) error { clear(dst); return nil }, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			k := new(packer)
			k.use(compress.NewTopCount(10), n)
			g := make([]float32, n)
			for i := range g {
				g[i] = float32(math.Sin(float64(i)))
			}
			k.pack(8, g)
			want := slices.Clone(k.feedback.Residual())
			f, _, _ := k.freeze(9, false)
			got := make([]float32, n)
			f.next(got[:300])
			change(k, g)
			f.next(got[300:])
			if !slices.Equal(got, want) {
				t.Error("it has changed while it was read")
			}
		})
	}
}

// Half a job, and the other half with what the first has left out and remembered, has the bits of the whole; without
// it, others.
func TestRecallGoesOn(t *testing.T) {
	const n, shards, half = 3001, 3, 10
	for _, codec := range everyCodec[1:] {
		t.Run(codec, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := func(recall bool, parts ...int) []float32 {
					pipe := &transport.Pipe{}
					j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: shards, workers: 1, quorum: 1, codec: func(int) string { return codec }, tensors: layout(n)})
					params, grad := make([]float32, n), make([]float32, n)
					var kept []float32
					var pieces []compress.Piece
					step := int64(0)
					for _, steps := range parts {
						l, err := j.dial(pipe, 0, params)
						if err != nil {
							t.Fatal(err)
						}
						if step == 0 {
							if err := l.Init(t.Context()); err != nil {
								t.Fatal(err)
							}
							<-j.ready
						}
						if recall && kept != nil {
							whole, err := l.Recall(func(from int64, dst []float32) error { copy(dst, kept[from:]); return nil }, pieces)
							if err != nil || !whole {
								t.Errorf("recalled %v, %v", whole, err)
							}
						}
						for range steps {
							wave(0, int(step), params, grad)
							if err := l.Push(t.Context(), step, step, 1, grad); err != nil {
								t.Fatal(err)
							}
							if _, err := l.Wait(t.Context(), <-j.released[0]); err != nil {
								t.Fatal(err)
							}
							step++
						}
						r := l.Freeze(step, false)
						if r == nil || r.Codec != codec {
							t.Fatalf("frozen: %+v", r)
						}
						pieces, kept = r.Pieces, make([]float32, n)
						r.Next(kept[:n/2])
						r.Next(kept[n/2:])
						l.Close()
					}
					if err := j.stop(); err != nil {
						t.Error(err)
					}
					return params
				}
				want := run(true, 2*half)
				if !slices.Equal(run(true, half, half), want) {
					t.Error("other parameters after the residual was recalled")
				}
				if slices.Equal(run(false, half, half), want) {
					t.Error("the same parameters without the residual: this test compares nothing")
				}
			})
		})
	}
}

// Without a codec, all that was left out goes out with the first gradient, and what was remembered for another cut is
// not used.
func TestRecallElsewhere(t *testing.T) {
	k := new(packer)
	if ok, err := k.recall(3, func(dst []float32) error { copy(dst, []float32{1, 2, 3}); return nil }, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, want := range [][]float32{{11, 12, 13}, {10, 10, 10}} {
		got := make([]float32, 3)
		name, msg := k.pack(0, []float32{10, 10, 10})
		if err := none.Decode(got, msg); err != nil || name != "" || !slices.Equal(got, want) {
			t.Errorf("sent %v as %q, %v; want %v", got, name, err, want)
		}
	}
	p := new(packer)
	p.use(codecOf(t, "powersgd=2", layout(1000), 1000, 0, 0), 1000)
	if ok, err := p.recall(1000, func([]float32) error { return nil }, &compress.Memory{Warm: make([]float32, 3)}); ok || err != nil {
		t.Errorf("the start of an iteration over another matrix: %v, %v", ok, err)
	}
	if _, err := p.recall(1000, func(dst []float32) error { dst[7] = float32(math.NaN()); return nil }, nil); err == nil {
		t.Error("a NaN was recalled")
	}
}

// The values of shards follow each other, with zeros where a shard's slice goes as it is.
func TestResidualNext(t *testing.T) {
	r := Residual{slices: []slab{{2, &frozen{rest: []float32{1, 2}}}, {3, nil}, {2, &frozen{rest: []float32{3, 4}}}}}
	var got []float32
	for range 4 {
		part := []float32{9, 9}
		r.Next(part)
		got = append(got, part...)
	}
	if want := []float32{1, 2, 0, 0, 0, 3, 4, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
