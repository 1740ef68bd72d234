package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	gonet "net"
	"sync"
	"testing"
	"time"

	"star"
	"star/allreduce"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/job"
	"star/train"
	"star/transport/wire"
)

// halves is a model of two tensors, for its layout.
type halves struct {
	train.Model
	n int
}

func (m halves) Layout() []train.TensorSpec {
	return []train.TensorSpec{{Name: "first", Shape: []int{m.n / 2}}, {Name: "second", Shape: []int{m.n / 2}, Offset: m.n / 2}}
}

func inRing(rank, n int, policy string) *ringWorker {
	job := &job.Job{Rule: job.Rule{Poison: policy}, Ring: job.Ring{Bucket: 1e-6 * 4 * float64(n/2)}}
	return &ringWorker{
		worker: &worker{job: job, model: halves{n: n}, grad: make([]float32, n), rank: rank},
		guard:  newGuard(policy, 0), ring: wire.Ring{Members: []star.Worker{0, 1, 2}},
	}
}

func fill(v []float32, x float32) {
	for i := range v {
		v[i] = x
	}
}

// A gradient that explodes is found before it is added in, made zero, and its longest tensor named.
func TestRingJudge(t *testing.T) {
	w := inRing(1, 8, poison.Fatal)
	for range 20 {
		fill(w.grad, 1)
		if err := w.judge(&star.Record{Norm2: 8, Samples: 1}); err != nil || w.grad[0] != 1 {
			t.Fatal(err, w.grad)
		}
	}
	w.step = 20
	w.grad[5] = 1e10
	var p *PoisonError
	err := w.judge(&star.Record{Norm2: 1e20, Samples: 1})
	if !errors.As(err, &p) || p.Worker != 1 || p.Step != 20 || p.Cause != poison.Exploding.String() || p.Tensor != "second" || job.ExitCode(err) != exitcode.Diverged {
		t.Errorf("%+v", err)
	}
	for _, v := range w.grad {
		if v != 0 {
			t.Fatalf("%v is still there", w.grad)
		}
	}
	if err := w.judge(&star.Record{Norm2: math.NaN(), Samples: 1}); err != nil {
		t.Errorf("a gradient that was taken back: %v", err)
	}
	off := inRing(1, 8, "off")
	for range 20 {
		off.judge(&star.Record{Norm2: 1, Samples: 1})
	}
	if err := off.judge(&star.Record{Norm2: 1e20, Samples: 1}); err != nil {
		t.Errorf("with --poison off: %v", err)
	}
}

// Buckets that leave before the whole gradient is computed are judged one by one.
func TestBucketJudge(t *testing.T) {
	for _, policy := range []string{poison.Skip, poison.Fatal} {
		w := inRing(1, 8, policy)
		var err error
		b := &buckets{w: w, early: true}
		for range 20 {
			norm2 := 4.0
			if err := b.judge(0, 4, 8, &norm2); err != nil || norm2 != 4 {
				t.Fatal(err, norm2)
			}
		}
		fill(w.grad, 1)
		w.grad[6] = 1e9
		norm2 := 1e18
		err = b.judge(0, 4, 8, &norm2)
		if policy == poison.Fatal {
			if p := (*PoisonError)(nil); !errors.As(err, &p) || p.Tensor != "second" {
				t.Errorf("%v", err)
			}
			continue
		}
		if err != nil || norm2 != 0 || len(b.found) != 1 || w.grad[6] != 0 || w.grad[4] != 0 || w.grad[3] != 1 {
			t.Errorf("%v, norm %v, found %v, %v: only the bucket is to be made zero", err, norm2, b.found, w.grad)
		}
		whole := &buckets{w: w}
		norm2 = 1e18
		if err := whole.judge(0, 4, 8, &norm2); err != nil || norm2 == 0 {
			t.Errorf("what was looked at as a whole is looked at again: %v", err)
		}
	}
}

// A member with reversed gradients finds out by the sum of all gradients, and only that member does.
func TestRingCompare(t *testing.T) {
	const n = 1000
	rnd := rand.New(rand.NewPCG(5, 6))
	var ws [3]*ringWorker
	for i := range ws {
		ws[i] = inRing(i, n, poison.Fatal)
	}
	for version := range int64(200) {
		sum := make([]float32, n)
		for i, w := range ws {
			for j := range w.grad {
				w.grad[j] = 0.3 + float32(rnd.NormFloat64())
				if i == 2 {
					w.grad[j] = -w.grad[j]
				}
			}
			w.guard.begin(n, version)
			w.guard.sample(w.grad[n/2:], n/2, nil) // as buckets go
			w.guard.sample(w.grad[:n/2], 0, nil)
			for j, v := range w.grad {
				sum[j] += v
			}
		}
		for i, w := range ws {
			copy(w.grad, sum)
			err := w.compareWithOthers(1)
			if err == nil {
				continue
			}
			if p := (*PoisonError)(nil); i != 2 || !errors.As(err, &p) || p.Cause != poison.Flipped.String() || p.Value >= 0 {
				t.Fatalf("version %d, worker %d: %v", version, i, err)
			}
			w.guard.sample(w.grad, 0, nil)
			if w.grad[0] != 0 || w.guard.own[0] == 0 {
				t.Error("its gradient is still added in, or not looked at any more")
			}
			return
		}
	}
	t.Error("worker 2 is reversed, and does not find out")
}

// Through a codec only that part of a gradient is in the sum which the codec has let through. Sound members are taken
// for sound, whatever it leaves out; a reversed member is found where it leaves little.
func TestRingCompareThroughACodec(t *testing.T) {
	const n = 2000
	for _, c := range []struct {
		codec    string
		reversed int // rank; -1: no member
	}{{"topk=0.02", -1}, {"int8", -1}, {"int8", 2}, {"powersgd=1", -1}} {
		t.Run(fmt.Sprintf("%s, %d", c.codec, c.reversed), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l, err := gonet.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var found [3]error
			var wg sync.WaitGroup
			for rank := range found {
				wg.Go(func() {
					g, err := allreduce.Dial(ctx, allreduce.Config{Rank: rank, Size: 3, Rendezvous: l.Addr().String(), Listener: map[int]gonet.Listener{0: l}[rank], Log: slog.New(slog.DiscardHandler)})
					if err != nil {
						t.Error(err)
						return
					}
					defer g.Close()
					w := inRing(rank, n, poison.Fatal)
					w.group = g
					if w.codec, err = allreduce.NewCompressor(allreduce.CompressorConfig{Len: n, Codec: c.codec, Tensors: []compress.Tensor{{Shape: []int{40, 50}}}}); err == nil {
						_, err = w.codec.Join(ctx, g)
					}
					if err != nil {
						t.Error(err)
						return
					}
					common, mine := rand.New(rand.NewPCG(5, 6)), rand.New(rand.NewPCG(7, uint64(rank)))
					for version := range int64(200) {
						for j := range w.grad {
							w.grad[j] = 0.3*float32(common.NormFloat64()) + float32(mine.NormFloat64())
							if rank == c.reversed {
								w.grad[j] = -w.grad[j]
							}
						}
						w.guard.begin(n, version)
						for _, at := range [][2]int{{n / 2, n}, {0, n / 2}} {
							w.guard.sample(w.grad[at[0]:at[1]], at[0], w.left(at[0], at[1]))
						}
						if err := w.reduce(ctx, w.grad, 0); err != nil {
							t.Error(err)
							return
						}
						if err := w.compareWithOthers(1); err != nil && found[rank] == nil {
							found[rank] = err
						}
						w.codec.Keep()
					}
					if err := g.Barrier(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for rank, err := range found {
				if p := (*PoisonError)(nil); (err != nil) != (rank == c.reversed) || err != nil && (!errors.As(err, &p) || p.Cause != poison.Flipped.String()) {
					t.Errorf("worker %d: %v", rank, err)
				}
			}
		})
	}
}

// A rider's gradient that does not belong is not carried.
func TestCarries(t *testing.T) {
	w := inRing(0, 4, poison.Fatal)
	for range 20 {
		if ok, err := w.carries(&riderGrad{vec: []float32{1, 1, 1, 1}}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), 1e10} {
		ok, err := w.carries(&riderGrad{Push: wire.Push{Worker: 3, Step: 77}, vec: []float32{1, bad, 1, 1}})
		if p := (*PoisonError)(nil); ok || !errors.As(err, &p) || p.Worker != 3 || p.Step != 77 {
			t.Errorf("%v: %v, %v", bad, ok, err)
		}
	}
}
