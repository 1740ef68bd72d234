package kernel

import "testing"

// Nothing allocates in the steady state.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		a, b, c := random(130*70, 1), random(70*200, 2), make([]float32, 130*200)
		s := Conv{N: 2, In: 3, H: 12, W: 12, Out: 5, KH: 3, KW: 3, Pad: 1}
		strided := s
		strided.Stride = 2
		x, y, w, bias := random(2*3*144, 3), random(2*5*144, 4), random(s.Weights(), 5), random(5, 6)
		arg := make([]int32, 2*5*36)
		labels := make([]int32, 20)
		short := random(5, 7)
		for name, f := range map[string]func(){
			"Gemm NN":        func() { Gemm(false, false, 130, 200, 70, 1, a, 70, b, 200, 0, c, 200) },
			"Gemm TT":        func() { Gemm(true, true, 130, 200, 70, 1, a, 130, b, 70, 0, c, 200) },
			"Gemm few rows":  func() { Gemm(false, true, 3, 200, 70, 1, a, 70, b, 70, 0, c, 200) },
			"Conv":           func() { s.Forward(y, x, w, bias) },
			"Conv input":     func() { s.GradInput(x, y, w) },
			"Conv weight":    func() { s.GradWeight(w, bias, y, x) },
			"Conv strided":   func() { strided.Forward(y, x, w, bias); strided.GradInput(x, y, w); strided.GradWeight(w, bias, y, x) },
			"Pool":           func() { p := Pool{Planes: 10, H: 12, W: 12, K: 2}; p.Max(c, arg, y); p.MaxGrad(y, c, arg) },
			"Norm":           func() { Norm{N: 2, C: 5, Size: 144, Eps: 1}.Train(c, y, bias, bias, short, short, nil, nil) },
			"SoftmaxXent":    func() { SoftmaxXent(nil, a, labels, 10); SoftmaxXent(c, a, labels, 10) },
			"LayerNormGrad":  func() { LayerNormGrad(c[:50], short, short, a[:50], a[50:100], bias, x, x, 10) },
			"elementwise":    func() { Add(a, a); Axpy(1e-9, a, a); Tanh(c, c); GELU(c, c); Exp(c, c) },
			"FiniteSumSq":    func() { FiniteSumSq(a); Finite(b) },
			"Adam, Momentum": func() { Adam(a, a, a, a, AdamStep{Step: 1}); Momentum(a, a, a, 0, 0, 0, 0, true) },
		} {
			f()
			if n := testing.AllocsPerRun(20, f); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	const m, n, k = 40, 90, 110
	a, b, want := random(m*k, 1), random(k*n, 2), make([]float32, m*n)
	Gemm(false, false, m, n, k, 1, a, k, b, n, 0, want, n)
	s := Conv{N: 1, In: 3, H: 12, W: 12, Out: 5, KH: 3, KW: 3, Pad: 1}
	x, w, conv := random(3*144, 3), random(s.Weights(), 5), make([]float32, 5*144)
	s.Forward(conv, x, w, nil)
	t.Run("group", func(t *testing.T) {
		for range 8 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				c, y := make([]float32, m*n), make([]float32, 5*144)
				for range 50 {
					Gemm(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
					s.Forward(y, x, w, nil)
					for i := range c {
						if c[i] != want[i] {
							t.Fatalf("C[%d] = %v, want %v", i, c[i], want[i])
						}
					}
					for i := range y {
						if y[i] != conv[i] {
							t.Fatalf("y[%d] = %v, want %v", i, y[i], conv[i])
						}
					}
				}
			})
		}
	})
}
