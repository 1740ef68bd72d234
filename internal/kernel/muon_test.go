package kernel

import (
	"math"
	"slices"
	"testing"
)

// A matrix with known singular vectors and values keeps the vectors, and each value s becomes p⁵(s/‖s‖).
func TestMuonOfKnownValues(t *testing.T) {
	// reflect multiplies column j of m from the left by I − 2·u·uᵀ.
	reflect := func(m [][]float64, u []float64) {
		for j := range m[0] {
			dot := 0.0
			for i := range m {
				dot += u[i] * m[i][j]
			}
			for i := range m {
				m[i][j] -= 2 * dot * u[i]
			}
		}
	}
	unit := func(n int, seed float64) []float64 {
		u, norm := make([]float64, n), 0.0
		for i := range u {
			u[i] = math.Sin(seed * float64(i+1))
			norm += u[i] * u[i]
		}
		for i := range u {
			u[i] /= math.Sqrt(norm)
		}
		return u
	}
	// of returns the matrix with these singular values.
	of := func(rows, cols int, values []float64) []float32 {
		m := make([][]float64, rows)
		for i := range m {
			if m[i] = make([]float64, cols); i < len(values) {
				m[i][i] = values[i]
			}
		}
		reflect(m, unit(rows, 1.1))
		turned := make([][]float64, cols)
		for j := range turned {
			for i := range m {
				turned[j] = append(turned[j], m[i][j])
			}
		}
		reflect(turned, unit(cols, 1.7))
		out := make([]float32, rows*cols)
		for i := range out {
			out[i] = float32(turned[i%cols][i/cols])
		}
		return out
	}
	eachISA(t, func(t *testing.T) {
		for _, size := range [][2]int{{1, 1}, {3, 3}, {5, 40}, {40, 5}, {33, 70}} {
			rows, cols := size[0], size[1]
			k, norm := min(rows, cols), 0.0
			var values, wants []float64
			for i := range k {
				s := 3 / float64(i+1)
				values, norm = append(values, s), norm+s*s
			}
			for _, s := range values {
				s /= math.Sqrt(norm)
				for range 5 {
					s = 3.4445*s - 4.775*s*s*s + 2.0315*math.Pow(s, 5)
				}
				if s < 0.65 || s > 1.25 {
					t.Fatalf("a value becomes %v", s)
				}
				wants = append(wants, -0.5*s)
			}
			g := of(rows, cols, values)
			w, v := make([]float32, len(g)), make([]float32, len(g))
			kept := slices.Clone(g)
			Muon(w, g, v, rows, cols, MuonStep{Rate: 0.5, Beta: 0.9})
			for i, want := range of(rows, cols, wants) {
				if math.Abs(float64(w[i]-want)) > 1e-4 {
					t.Fatalf("%d×%d, element %d: %v, want %v", rows, cols, i, w[i], want)
				}
			}
			if !slices.Equal(g, kept) {
				t.Error("the gradient has changed")
			}
		}
	})
}

// An update of a whole round is Adam's, to the bit.
func TestAdamPartOfAll(t *testing.T) {
	const n = 50
	var a, b [4][]float32
	for i := range a {
		for k := range n {
			a[i] = append(a[i], float32(math.Abs(math.Sin(float64(i+3*k)))))
		}
		b[i] = slices.Clone(a[i])
	}
	for k := range int64(5) {
		s := AdamStep{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.1, Decoupled: k%2 == 0, Step: k + 1}
		Adam(a[0], a[1], a[2], a[3], s)
		AdamPart(b[0], b[1], b[2], b[3], s, 1)
	}
	for i := range a {
		if !slices.Equal(a[i], b[i]) {
			t.Errorf("vector %d: %v, want %v", i, b[i], a[i])
		}
	}
}
