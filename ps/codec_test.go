package ps

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star/internal/compress"
	"star/transport"
	"star/transport/wire"
)

// everyCodec is one of each; layout has a matrix for powersgd and a vector.
var everyCodec = []string{"none", "fp16", "bf16", "int8", "int8-stochastic", "int2", "topk=0.1", "topk=100", "powersgd=2"}

func layout(n int) []compress.Tensor {
	rows := n / 100
	return []compress.Tensor{{Shape: []int{rows, 80}}, {Offset: rows * 80, Shape: []int{n - rows*80}}}
}

func codecOf(t testing.TB, name string, tensors []compress.Tensor, n, w, shard int) compress.Codec {
	t.Helper()
	c, err := newCodec(name, tensors, wire.ShardInfo{To: int64(n)}, uint64(w)<<32|uint64(shard))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lossy is wave as it arrives through a codec with error feedback over the whole
// vector: made here, without packer, Link and Server.
func lossy(t testing.TB, name string, n, workers int) func(w, step int, params, grad []float32) {
	var left []*compress.Feedback
	for w := range workers {
		left = append(left, compress.NewFeedback(codecOf(t, name, layout(n), n, w, 0), n))
	}
	return func(w, step int, params, grad []float32) {
		wave(w, step, params, grad)
		if err := left[w].Codec().Decode(grad, left[w].Encode(nil, grad)); err != nil {
			t.Error(err)
		}
	}
}

// With one shard, a job has the bits of a single goroutine that compresses, decompresses and applies, whatever the
// codec. With several it has them where a value's code depends on the value alone: none, fp16, bf16. Shards may be cut
// anywhere; int8 shares a scale between adjacent values, topk counts per slice, and powersgd loses the rows that a cut
// divides.
func TestCompressedSSGD(t *testing.T) {
	for _, c := range []struct {
		codec  string
		shards []int
	}{
		{"fp16", []int{1, 3}}, {"bf16", []int{1, 3}}, {"int8", []int{1}}, {"int8-stochastic", []int{1}},
		{"topk=0.1", []int{1}}, {"topk=77", []int{1}}, {"powersgd=2", []int{1}},
	} {
		for _, k := range c.shards {
			t.Run(fmt.Sprintf("%s,shards=%d", c.codec, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const n, workers, steps = 5003, 3, 12
					pipe := &transport.Pipe{}
					j := start(t, jobConfig{
						net: pipe, addr: "ps", params: n, shards: k, workers: workers, quorum: workers,
						codec: func(int) string { return c.codec }, tensors: layout(n),
					})
					var mu sync.Mutex
					last := map[int][]float32{}
					j.all(n, steps, func(w int) transport.Network {
						link := transport.Link{Delay: time.Duration(w+1) * time.Millisecond, Bandwidth: 10e6 / int64(w+1)}
						return pipe.Via(link, link)
					}, wave, func(w int, version int64, params []float32) {
						mu.Lock()
						last[w] = slices.Clone(params)
						mu.Unlock()
					})
					if err := j.stop(); err != nil {
						t.Error(err)
					}
					want := one(t, n, workers, steps, 0.1, 0, lossy(t, c.codec, n, workers))
					for w, got := range last {
						if !slices.Equal(got, want) {
							t.Errorf("worker %d has other parameters than one goroutine makes", w)
						}
					}
					if slices.Equal(want, one(t, n, workers, steps, 0.1, 0, wave)) {
						t.Error("the codec changes nothing: this test compares nothing")
					}
				})
			})
		}
	}
}

// A quadratic with workers that pull in different directions: every codec reaches the minimum of the sum, which no
// single worker's gradient points at, and each worker may have another codec. The bytes of a step are what the codec
// says.
func TestEveryCodecTrains(t *testing.T) {
	const n, workers, shards, steps = 2000, 4, 2, 250
	target := func(i int) float32 { return float32(math.Sin(float64(i))) }
	for _, codec := range append(slices.Clone(everyCodec), "mixed") {
		t.Run(codec, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pipe := &transport.Pipe{}
				name := func(w int) string {
					if codec == "mixed" {
						return everyCodec[2*w]
					}
					return codec
				}
				j := start(t, jobConfig{
					net: pipe, addr: "ps", params: n, shards: shards, workers: workers, quorum: workers,
					codec: name, tensors: layout(n), server: ServerConfig{NewRule: plain(0.05, 0)},
				})
				var mu sync.Mutex
				var last []float32
				j.all(n, steps, same(pipe), func(w, step int, params, grad []float32) {
					for i := range grad {
						// The offsets of the workers add up to zero. One alone is wrong by
						// 0.4 of the distance.
						away := 0.1 * float32(1-2*(w&1))
						if w >= 2 {
							away *= 3
						}
						grad[i] = params[i] - target(i) + away
					}
				}, func(w int, version int64, params []float32) {
					mu.Lock()
					last = append(last[:0], params...)
					mu.Unlock()
				})
				if err := j.stop(); err != nil {
					t.Error(err)
				}
				var far, was float64
				for i, v := range last {
					far += math.Pow(float64(v-target(i)), 2)
					was += math.Pow(float64(target(i)), 2)
				}
				if rel := math.Sqrt(far / was); !(rel < 0.05) {
					t.Errorf("the distance to the minimum is %.3g of what it was", rel)
				}
			})
		})
	}
}

// The bytes of a push are those of the codec, and little else.
func TestBytesOfAPush(t *testing.T) {
	const n, shards, steps = 20_000, 2, 50
	sent := map[string]int64{}
	for _, codec := range everyCodec {
		synctest.Test(t, func(t *testing.T) {
			pipe := &transport.Pipe{}
			j := start(t, jobConfig{
				net: pipe, addr: "ps", params: n, shards: shards, workers: 1, quorum: 1, codec: func(int) string { return codec }, tensors: layout(n),
			})
			params, grad := make([]float32, n), make([]float32, n)
			l, err := j.dial(pipe, 0, params)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-j.ready
			before, _ := l.Traffic()
			for step := range int64(steps) {
				wave(0, int(step), params, grad)
				if err := l.Push(t.Context(), step, step, 1, grad); err != nil {
					t.Fatal(err)
				}
				if _, err := l.Wait(t.Context(), <-j.released[0]); err != nil {
					t.Fatal(err)
				}
			}
			after, _ := l.Traffic()
			sent[codec] = (after - before) / steps
			l.Close()
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range []struct {
		codec       string
		least, most float64 // of the bytes of the vector
	}{
		{"none", 1, 1.01}, {"fp16", 0.5, 0.51}, {"bf16", 0.5, 0.51}, {"int8", 0.25, 0.26}, {"int8-stochastic", 0.25, 0.26},
		{"topk=0.1", 0.12, 0.14}, {"topk=100", 0.01, 0.02}, {"powersgd=2", 0.2, 0.25}, // a fifth is in no matrix
	} {
		if share := float64(sent[c.codec]) / (4 * n); share < c.least || share > c.most {
			t.Errorf("%s: a push takes %.4f of the bytes of its vector, want %v to %v", c.codec, share, c.least, c.most)
		}
	}
}

// A worker that wants parameters in bfloat16 gets the shards' float32 rounded, in half the bytes; another one of the
// same job gets them as they are.
func TestRoundedParameters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, steps = 5003, 6
		// It does not depend on the parameters, which differ between the workers.
		sine := func(w, step int, _, grad []float32) {
			for i := range grad {
				grad[i] = float32(math.Sin(float64(i + 7*w + 13*step)))
			}
		}
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: 2, workers: 2, quorum: 2, rounds: map[int]bool{0: true}})
		var mu sync.Mutex
		last := map[int][]float32{}
		j.all(n, steps, same(pipe), sine, func(w int, version int64, params []float32) {
			mu.Lock()
			last[w] = slices.Clone(params)
			mu.Unlock()
		})
		params := make([]float32, n)
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		_, before := l.Traffic()
		if _, err := l.Pull(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if _, after := l.Traffic(); after-before > 2*n+200 {
			t.Errorf("%d bytes of %d parameters, expected 2 for each", after-before, n)
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
		want := one(t, n, 2, steps, 0.1, 0, sine)
		if !slices.Equal(last[1], want) {
			t.Error("the worker with float32 has other parameters than one goroutine makes")
		}
		if err := compress.BF16.Decode(want, compress.BF16.Encode(nil, want)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(last[0], want) || !slices.Equal(params, want) || slices.Equal(last[0], last[1]) {
			t.Error("the worker with bfloat16 does not have the rounded parameters")
		}
	})
}

// What is sent of a gradient that is thrown away goes out with the next one.
func TestDroppedGradientComesBack(t *testing.T) {
	for _, c := range []struct {
		name string
		told int // how often
		want []float32
	}{
		{"told", 1, []float32{-0.4, 0, 0, 0}},
		{"told twice", 2, []float32{-0.4, 0, 0, 0}},
		{"not told", 0, []float32{0, -0.3, 0, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			pipe := &transport.Pipe{}
			j := start(t, jobConfig{
				net: pipe, addr: "ps", params: 4, shards: 1, workers: 1, quorum: 1, noReader: true, codec: func(int) string { return "topk=1" },
			})
			params := make([]float32, 4)
			l, err := j.dial(pipe, 0, params)
			if err != nil {
				t.Fatal(err)
			}
			l.Dropped() // of nothing
			if err := l.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			step := func(seq int64, grad []float32, f wire.Fire) {
				if err := l.Push(t.Context(), seq-1, 0, 1, grad); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				j.tell(f)
				if _, err := l.Wait(t.Context(), f.Version); err != nil {
					t.Fatal(err)
				}
			}
			step(1, []float32{4, 3, 0, 0}, wire.Fire{Seq: 1, Dropped: []wire.Gradient{{Step: 0}}})
			for range c.told {
				l.Dropped()
			}
			step(2, []float32{0, 0, 0, 0}, wire.Fire{Seq: 2, Version: 1, Gradients: []wire.Gradient{{Step: 1, Weight: 1}}})
			if !slices.Equal(params, c.want) {
				t.Errorf("%s: parameters %v, want %v", c.name, params, c.want)
			}
			l.Close()
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A packer goes from one codec to another and to none without losing anything, and
// then is as new.
func TestPackerChangesCodec(t *testing.T) {
	grad := []float32{8, 4, 2, 1}
	var k packer
	take := func(want string, payload ...float32) {
		t.Helper()
		name, msg := k.pack(0, grad)
		if name != want {
			t.Fatalf("codec %q, want %q", name, want)
		}
		c := compress.Codec(none)
		if name != "" {
			c = codecOf(t, name, nil, len(grad), 0, 0)
		}
		got := make([]float32, len(grad))
		if err := c.Decode(got, msg); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, payload) {
			t.Fatalf("%q: sent %v, want %v", name, got, payload)
		}
	}
	k.giveBack()
	take("", 8, 4, 2, 1)
	k.use(none, 4)
	take("", 8, 4, 2, 1)
	k.use(compress.NewTopCount(1), 4)
	take("topk=1", 8, 0, 0, 0)
	k.giveBack()
	take("topk=1", 16, 0, 0, 0) // left: 0 8 4 2
	k.use(compress.NewTopCount(2), 4)
	k.giveBack() // of another codec: no
	take("topk=2", 8, 12, 0, 0)
	k.use(none, 4)
	take("", 8, 4, 8, 4) // left were 0 0 6 3
	k.giveBack()
	take("", 16, 8, 10, 5)
	take("", 8, 4, 2, 1)
	if k.feedback != nil || k.msg != nil {
		t.Error("a packer that owes nothing keeps its memory")
	}
	k.use(compress.NewTopCount(1), 4)
	take("topk=1", 8, 0, 0, 0)
	k.use(none, 4)
	take("", 8, 8, 4, 2)
	k.use(compress.NewTopCount(1), 4) // before it has forgotten
	take("topk=1", 8, 0, 0, 0)
	take("topk=1", 8, 0, 0, 0)
	take("topk=1", 0, 12, 0, 0)
}

// A connection's memory follows the codec, not what a frame claims.
func TestUnpackerRoom(t *testing.T) {
	const n = 1000
	fresh := func(name string) (compress.Codec, error) { return compress.New(name, compress.Slice{}, 0) }
	var u unpacker
	for _, c := range []struct {
		codec string
		size  int64
		ok    bool
		cap   int // afterwards
	}{
		{"fp16", 1 << 32, false, 0}, {"fp16", 2*n + 1, false, 0}, {"fp16", 0, false, 0}, {"zip", 4, false, 0},
		{"fp16", 2 * n, true, 2 * n}, {"fp16", 8, true, 2 * n}, {"zip", 4, false, 2 * n}, {"int8", n + 16, true, n + 16}, {"int8", 1 << 40, false, n + 16},
	} {
		msg, err := u.room(c.codec, c.size, n, fresh)
		if (err == nil) != c.ok || c.ok && int64(len(msg)) != c.size || cap(u.msg) > c.cap+64 {
			t.Errorf("%s of %d bytes: room for %d, %d kept, %v", c.codec, c.size, len(msg), cap(u.msg), err)
		}
	}
}

func TestBadCodecs(t *testing.T) {
	for name, say := range map[string]string{"zip": "unknown codec", "powersgd=2": "shapes of the tensors", "powersgd=0": "rank"} {
		synctest.Test(t, func(t *testing.T) {
			pipe := &transport.Pipe{}
			j := start(t, jobConfig{net: pipe, addr: "ps", params: 10, shards: 1, workers: 1, quorum: 1, codec: func(int) string { return name }})
			if _, err := j.dial(pipe, 0, make([]float32, 10)); err == nil || !strings.Contains(err.Error(), say) {
				t.Errorf("%s: %v, want %q", name, err, say)
			}
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// auto on a link without limit chooses nothing, and on a slow one a codec; the
// bytes follow.
func TestAutoFollowsTheLink(t *testing.T) {
	for _, c := range []struct {
		name      string
		bandwidth int64
		want      string
		why       string
		bytes     float64 // of the last push, as a share of the vector's
	}{{"no limit", 0, "codec=none", "+Inf MB/s", 1}, {"1 MB/s for each shard", 1e6, "codec=int8", "at 1.99", 0.254}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, steps = 20_000, 12
				pipe := &transport.Pipe{}
				var lines bytes.Buffer
				j := start(t, jobConfig{
					net: pipe, addr: "ps", params: n, shards: 2, workers: 1, quorum: 1,
					codec: func(int) string { return "auto" }, linkLog: slog.New(slog.NewTextHandler(&lines, nil)),
				})
				params, grad := make([]float32, n), make([]float32, n)
				slow := transport.Link{Bandwidth: c.bandwidth, Delay: 5 * time.Millisecond}
				l, err := j.dial(pipe.Via(slow, slow), 0, params)
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Init(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-j.ready
				var last int64
				for step := range int64(steps) {
					wave(0, int(step), params, grad)
					before, _ := l.Traffic()
					if err := l.Push(t.Context(), step, step, 1, grad); err != nil {
						t.Fatal(err)
					}
					if _, err := l.Wait(t.Context(), <-j.released[0]); err != nil {
						t.Fatal(err)
					}
					after, _ := l.Traffic()
					last = after - before
				}
				if got := lines.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want) || !strings.Contains(got, c.why) {
					t.Errorf("log:\n%swant one line with %s and %s", got, c.want, c.why)
				}
				if share := float64(last) / (4 * n); math.Abs(share-c.bytes) > 0.01 {
					t.Errorf("the last push took %.4f of the vector's bytes, want %v", share, c.bytes)
				}
				l.Close()
				if err := j.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// On this host auto does not even measure.
func TestAutoOnLoopback(t *testing.T) {
	const n = 1000
	var lines bytes.Buffer
	j := start(t, jobConfig{
		net: tcp(), addr: "127.0.0.1:0", params: n, shards: 2, workers: 1, quorum: 1,
		codec: func(int) string { return "auto" }, linkLog: slog.New(slog.NewTextHandler(&lines, nil)),
	})
	l, err := j.dial(tcp(), 0, make([]float32, n))
	if err != nil {
		t.Fatal(err)
	}
	if l.tuner != nil || !strings.Contains(lines.String(), "codec=none") {
		t.Errorf("log:\n%s", lines.String())
	}
	l.Close()
	if err := j.stop(); err != nil {
		t.Error(err)
	}
}

// A shard answers the pings of a worker that reads, also before it has parameters.
func TestShardAnswersPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: 4, shards: 1, workers: 1, quorum: 1})
		c := j.rogue(t, 0)
		for seq := range int64(20) {
			if err := transport.Send(c, wire.Ping{Seq: seq, Sent: 7}, nil); err != nil {
				t.Fatal(err)
			}
			f, err := c.Recv()
			if err != nil || f.Kind != wire.KindPong {
				t.Fatalf("answered with %v, %v", f.Kind, err)
			}
			if m, err := wire.ParsePong(f.Header); err != nil || m.Seq != seq || m.Sent != 7 || f.Size != 0 {
				t.Errorf("answer %+v, %v", m, err)
			}
		}
		c.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}
