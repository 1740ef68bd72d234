package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// fillRandom fills x with values of about unit size from a fixed stream.
func fillRandom(x []float32, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
}

func random(n int, seed uint64) []float32 {
	x := make([]float32, n)
	fillRandom(x, seed)
	return x
}

// gemmNaive is the definition, in float64. It also returns Σ|a·b|, by which
// rounding is judged.
func gemmNaive(tA, tB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) (want, size []float64) {
	want, size = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for j := range n {
			var s, t float64
			for p := range k {
				ia, ib := i*lda+p, p*ldb+j
				if tA {
					ia = p*lda + i
				}
				if tB {
					ib = j*ldb + p
				}
				v := float64(a[ia]) * float64(b[ib])
				s += v
				t += math.Abs(v)
			}
			s *= float64(alpha)
			t *= math.Abs(float64(alpha))
			if beta != 0 {
				v := float64(beta) * float64(c[i*ldc+j])
				s += v
				t += math.Abs(v)
			}
			want[i*n+j], size[i*n+j] = s, t
		}
	}
	return want, size
}

type gemmCase struct {
	tA, tB        bool
	m, n, k       int
	da, db, dc    int // extra distance between rows
	alpha, beta   float32
	guard, offset int
}

// check runs one product and compares it with the definition; C lies between
// guards that must survive, and so must the gaps between its rows.
func (g gemmCase) check(seed uint64) error {
	lda, ldb, ldc := g.k+g.da, g.n+g.db, g.n+g.dc
	ra, rb := g.m, g.k
	if g.tA {
		lda, ra = g.m+g.da, g.k
	}
	if g.tB {
		ldb, rb = g.k+g.db, g.n
	}
	lda, ldb, ldc = max(lda, 1), max(ldb, 1), max(ldc, 1)
	a, b := random(ra*lda, seed), random(rb*ldb, seed+1)
	// Cut to the last element that exists: reading past it is reading past the end.
	a, b = a[:max(0, len(a)-g.da)], b[:max(0, len(b)-g.db)]
	whole := random(g.offset+g.m*ldc+g.guard, seed+2)
	before := append([]float32(nil), whole...)
	c := whole[g.offset : g.offset+g.m*ldc]
	if g.beta == 0 { // C must not be read
		for i := range g.m {
			for j := range g.n {
				c[i*ldc+j] = float32(math.NaN())
			}
		}
	}
	want, size := gemmNaive(g.tA, g.tB, g.m, g.n, g.k, g.alpha, a, lda, b, ldb, g.beta, c, ldc)
	Gemm(g.tA, g.tB, g.m, g.n, g.k, g.alpha, a, lda, b, ldb, g.beta, c, ldc)
	for i, v := range whole {
		r, col := (i-g.offset)/ldc, (i-g.offset)%ldc
		if i < g.offset || r >= g.m || col >= g.n {
			if v != before[i] {
				return fmt.Errorf("%+v: element %d outside C changed", g, i)
			}
			continue
		}
		// k roundings of relative size 2⁻²⁴, with room for the block sums.
		tol := float64(g.k+8)*0x1p-24*size[r*g.n+col] + 1e-30
		if d := math.Abs(float64(v) - want[r*g.n+col]); !(d <= tol) {
			return fmt.Errorf("%s: %+v: C[%d,%d] = %v, want %v ± %.2g", Name(), g, r, col, v, want[r*g.n+col], tol)
		}
	}
	return nil
}

func TestGemmSmallSizes(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for m := 1; m <= 17; m++ {
			for _, n := range []int{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97} {
				for _, k := range []int{1, 2, 5, 16, 33} {
					for tr := range 4 {
						g := gemmCase{tA: tr&1 != 0, tB: tr&2 != 0, m: m, n: n, k: k, alpha: 1, guard: 20, offset: 3}
						if err := g.check(uint64(m*n + k)); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	})
}

func TestGemmBlocks(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, s := range [][3]int{{64, 256, 784}, {128, 512, 512}, {130, 515, 600}, {1, 700, 900}, {700, 1, 900}, {16, 2000, 32}, {3, 1030, 1025}, {257, 129, 769}} {
			for tr := range 4 {
				g := gemmCase{tA: tr&1 != 0, tB: tr&2 != 0, m: s[0], n: s[1], k: s[2], da: 3, db: 1, dc: 2, alpha: 0.5, beta: 2, guard: 20, offset: 1}
				if testing.Short() && s[0]*s[1]*s[2] > 1<<24 {
					continue
				}
				if err := g.check(uint64(tr)); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestGemmAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			g := gemmCase{
				tA: rapid.Bool().Draw(t, "tA"), tB: rapid.Bool().Draw(t, "tB"),
				m: rapid.IntRange(0, 70).Draw(t, "m"), n: rapid.IntRange(0, 130).Draw(t, "n"), k: rapid.IntRange(0, 90).Draw(t, "k"),
				da: rapid.IntRange(0, 5).Draw(t, "da"), db: rapid.IntRange(0, 5).Draw(t, "db"), dc: rapid.IntRange(0, 5).Draw(t, "dc"),
				alpha: rapid.SampledFrom([]float32{1, 0, -1, 0.3}).Draw(t, "alpha"),
				beta:  rapid.SampledFrom([]float32{1, 0, -1, 0.7}).Draw(t, "beta"),
				guard: 33, offset: rapid.IntRange(0, 17).Draw(t, "offset"),
			}
			if err := g.check(rapid.Uint64().Draw(t, "seed")); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// A NaN or Inf in A or B reaches exactly its row or column of C.
func TestGemmCarriesNaN(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const m, n, k = 13, 37, 20
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			a, b, c := random(m*k, 1), random(k*n, 2), make([]float32, m*n)
			a[5*k+7] = bad
			Gemm(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
			for i, v := range c {
				if got, want := v-v != 0, i/n == 5; got != want {
					t.Fatalf("A[5,7] = %v: C[%d,%d] = %v", bad, i/n, i%n, v)
				}
			}
			a, b = random(m*k, 1), random(k*n, 2)
			b[3*n+36] = bad
			Gemm(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
			for i, v := range c {
				if got, want := v-v != 0, i%n == 36; got != want {
					t.Fatalf("B[3,36] = %v: C[%d,%d] = %v", bad, i/n, i%n, v)
				}
			}
		}
	})
}

func TestGemmRepeatsItsBits(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const m, n, k = 50, 300, 700
		a, b := random(m*k, 1), random(k*n, 2)
		c, d := make([]float32, m*n), make([]float32, m*n)
		Gemm(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
		for range 3 {
			Gemm(false, false, m, n, k, 1, a, k, b, n, 0, d, n)
			for i := range c {
				if c[i] != d[i] {
					t.Fatalf("C[%d] = %v, then %v", i, c[i], d[i])
				}
			}
		}
	})
}

func TestGemmRefusesWrongShapes(t *testing.T) {
	x := make([]float32, 12)
	for _, c := range []struct {
		name string
		call func()
	}{
		{"short A", func() { Gemm(false, false, 4, 2, 4, 1, x, 4, x, 2, 0, x, 2) }},
		{"short B", func() { Gemm(false, false, 1, 4, 4, 1, x, 4, x, 4, 0, x, 4) }},
		{"short C", func() { Gemm(false, false, 4, 4, 1, 1, x, 1, x, 4, 0, x, 4) }},
		{"narrow rows", func() { Gemm(false, false, 2, 2, 3, 1, x, 2, x, 2, 0, x, 2) }},
		{"negative", func() { Gemm(false, false, -1, 2, 3, 1, x, 3, x, 2, 0, x, 2) }},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", c.name)
				}
			}()
			c.call()
		}()
	}
}
