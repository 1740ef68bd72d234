package kernel

import (
	"fmt"
	"testing"
)

func BenchmarkGemm(b *testing.B) {
	for _, g := range []struct {
		name    string
		tA, tB  bool
		m, n, k int
	}{
		{"square", false, false, 512, 512, 512},
		{"square", false, true, 512, 512, 512},
		{"square", true, false, 512, 512, 512},
		{"mlp-forward", false, true, 64, 256, 784},
		{"mlp-weights", true, false, 256, 784, 64},
		{"tall", false, false, 50176, 16, 32},
		{"wide", false, false, 16, 50176, 32},
		{"lstm", false, true, 32, 512, 128},
		{"lstm", false, false, 32, 128, 512},
		{"lstm-weights", true, false, 512, 128, 32},
		{"one-row", false, true, 1, 512, 512},
		{"head", false, false, 32, 32, 16},
	} {
		n := "N"
		if g.tA {
			n = "T"
		}
		if g.tB {
			n += "T"
		} else {
			n += "N"
		}
		b.Run(fmt.Sprintf("%s-%s/%dx%dx%d", g.name, n, g.m, g.n, g.k), func(b *testing.B) {
			lda, ldb := g.k, g.n
			if g.tA {
				lda = g.m
			}
			if g.tB {
				ldb = g.k
			}
			x, y, z := random(g.m*g.k, 1), random(g.k*g.n, 2), make([]float32, g.m*g.n)
			b.ReportAllocs()
			for b.Loop() {
				Gemm(g.tA, g.tB, g.m, g.n, g.k, 1, x, lda, y, ldb, 0, z, g.n)
			}
			b.ReportMetric(2*float64(g.m)*float64(g.n)*float64(g.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

var benchConvs = []struct {
	name string
	s    Conv
}{
	{"lenet1", Conv{N: 64, In: 1, H: 28, W: 28, Out: 6, KH: 5, KW: 5, Pad: 2}},
	{"lenet2", Conv{N: 64, In: 6, H: 14, W: 14, Out: 16, KH: 5, KW: 5}},
	{"resnet1", Conv{N: 32, In: 16, H: 32, W: 32, Out: 16, KH: 3, KW: 3, Pad: 1}},
	{"resnet2", Conv{N: 32, In: 32, H: 16, W: 16, Out: 32, KH: 3, KW: 3, Pad: 1}},
	{"resnet3", Conv{N: 32, In: 64, H: 8, W: 8, Out: 64, KH: 3, KW: 3, Pad: 1}},
	{"resnet-down", Conv{N: 32, In: 16, H: 32, W: 32, Out: 32, KH: 3, KW: 3, Pad: 1, Stride: 2}},
	{"vgg-4x4", Conv{N: 32, In: 128, H: 4, W: 4, Out: 128, KH: 3, KW: 3, Pad: 1}},
	{"depthwise", Conv{N: 32, In: 96, H: 16, W: 16, Out: 96, KH: 3, KW: 3, Pad: 1, Groups: 96}},
}

func BenchmarkConv(b *testing.B) {
	for _, c := range benchConvs {
		s := c.s
		x, y, w, bias := random(s.N*s.In*s.H*s.W, 1), random(s.N*s.Out*s.OutH()*s.OutW(), 2), random(s.Weights(), 3), random(s.Out, 4)
		flop := 2 * float64(s.N*s.OutH()*s.OutW()) * float64(s.Weights())
		run := func(name string, f func()) {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
				b.ReportMetric(flop*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
		dx, dw := make([]float32, len(x)), make([]float32, len(w))
		run("forward", func() { s.Forward(y, x, w, bias) })
		run("input", func() { s.GradInput(dx, y, w) })
		run("weight", func() { s.GradWeight(dw, bias, y, x) })
	}
}

// The same product on each implementation.
func BenchmarkGemmISA(b *testing.B) {
	const n = 512
	x, y, z := random(n*n, 1), random(n*n, 2), make([]float32, n*n)
	benchISA(b, func(b *testing.B) {
		for b.Loop() {
			Gemm(false, false, n, n, n, 1, x, n, y, n, 0, z, n)
		}
		b.ReportMetric(2*n*n*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	})
}

// What lies between the convolutions of LeNet and ResNet-20: time per step.
func BenchmarkLayers(b *testing.B) {
	const n = 64 * 6 * 28 * 28
	x, y, z := random(n, 1), random(n, 2), make([]float32, n)
	arg := make([]int32, n/4)
	pool := Pool{Planes: 64 * 6, H: 28, W: 28, K: 2}
	bn := Norm{N: 32, C: 16, Size: 576, Eps: 1e-5, Momentum: 0.1}
	c := make([]float32, 6*64)
	labels := make([]int32, 64*32)
	for _, f := range []struct {
		name string
		run  func()
	}{
		{"max", func() { pool.Max(z, arg, x) }},
		{"maxgrad", func() { pool.MaxGrad(z, y, arg) }},
		{"norm", func() { bn.Train(z, x, c, c, c[16:], c[32:], c, c) }},
		{"normgrad", func() { bn.Grad(z, c, c[16:], y, x, c[32:], c[48:], c[64:]) }},
		{"relu", func() { ReLU(z, x) }},
		{"relugrad", func() { ReLUGrad(z, y, x) }},
		{"add", func() { Add(z, x) }},
		{"tanh", func() { Tanh(z, x) }},
		{"sigmoid", func() { Sigmoid(z, x) }},
		{"gelu", func() { GELU(z, x) }},
		{"dot", func() { Dot(x, y) }},
		{"finitesumsq", func() { FiniteSumSq(x) }},
		{"finite", func() { Finite(x) }},
		{"adam", func() { Adam(x, y, z, z, AdamStep{Step: 1, LR: 1e-9, Beta1: 0.9, Beta2: 0.9, Eps: 1}) }},
		{"momentum", func() { Momentum(x, y, z, 1e-9, 0.9, 0, 0, false) }},
		{"layernorm", func() { LayerNorm(z, x, y[:64], y[64:128], z[n-4704:], z[n-2*4704:], 4000, 1e-5) }},
		{"xent", func() { SoftmaxXent(z[:2048*64], x[:2048*64], labels, 64) }},
	} {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.run()
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/n*1e9, "ns/element")
		})
	}
}
