package net

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// An Init fills a parameter tensor with its initial values.
type Init func(w []float32, rng *rand.Rand)

// Uniform draws from [−bound, bound).
func Uniform(bound float64) Init {
	return func(w []float32, rng *rand.Rand) {
		for i := range w {
			w[i] = float32(bound * (2*rng.Float64() - 1))
		}
	}
}

// FanIn draws from U(−1/√fan, 1/√fan): what PyTorch does by default for weights
// (Kaiming uniform with a = √5: bound = √(6/((1+5)·fan))) and biases of linear
// and convolutional layers.
func FanIn(fan int) Init { return Uniform(1 / math.Sqrt(float64(fan))) }

// Normal draws from N(0, σ²).
func Normal(sigma float64) Init {
	return func(w []float32, rng *rand.Rand) {
		for i := range w {
			w[i] = float32(sigma * gauss(rng))
		}
	}
}

// gauss draws from N(0, 1) by the polar method (G. Marsaglia, T. Bray, SIAM Review
// 6(3), 1964; the second number of each pair is thrown away). It is not
// rng.NormFloat64 because that compares with the result of sums of products, which
// a compiler may fuse on one processor and not on another; conversions forbid it
// here, so every machine draws the same bits.
func gauss(rng *rand.Rand) float64 {
	for {
		u, v := 2*rng.Float64()-1, 2*rng.Float64()-1 // 2x is exact
		if s := float64(u*u) + float64(v*v); s > 0 && s < 1 {
			return u * math.Sqrt(-2*logarithm(s)/s)
		}
	}
}

// logarithm is ln x for a positive normal x, to about 1e-15, with the same bits on
// every machine: with x = m·2ᵉ and t = (m−1)/(m+1),
//
//	ln x = e·ln 2 + 2·(t + t³/3 + t⁵/5 + …),   |t| < 0.18 for m in [√½, √2)
func logarithm(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	t := (m - 1) / (m + 1)
	t2 := float64(t * t)
	sum := 0.0
	for n := 21; n >= 1; n -= 2 {
		sum = float64(sum*t2) + 1/float64(n)
	}
	return float64(float64(e)*math.Ln2) + float64(2*t*sum)
}

// Constant fills with v.
func Constant(v float32) Init {
	return func(w []float32, rng *rand.Rand) {
		for i := range w {
			w[i] = v
		}
	}
}

// generator is the random source of one tensor: a permuted congruential generator
// (M. O'Neill, 2014) seeded by the model's seed and the tensor's name, so that
// a tensor's values depend on nothing else.
func generator(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
