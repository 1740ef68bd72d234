package kernel

import "math"

// ReLU writes max(x, 0) into dst. NaN stays NaN, as in PyTorch.
func ReLU(dst, x []float32) {
	same("ReLU", dst, x)
	vReLU(dst, x)
}

// ReLUGrad writes into dx the gradient dy where the output y of ReLU is positive
// or NaN, and 0 elsewhere.
func ReLUGrad(dx, dy, y []float32) {
	same("ReLUGrad", dx, dy)
	same("ReLUGrad", dx, y)
	vReLUGrad(dx, dy, y)
}

// Exp writes eˣ into dst. The error is at most 2 ulp, subnormal results
// included; beyond the range the result is 0 or +Inf. NaN stays NaN.
func Exp(dst, x []float32) {
	same("Exp", dst, x)
	vExp(dst, x)
}

// Tanh writes tanh x into dst, within 2e-7. NaN stays NaN, ±Inf becomes ±1.
func Tanh(dst, x []float32) {
	same("Tanh", dst, x)
	vTanh(dst, x)
}

// Sigmoid writes 1/(1+e⁻ˣ) into dst, within 2e-7. NaN stays NaN; −Inf becomes 0,
// +Inf 1.
func Sigmoid(dst, x []float32) {
	same("Sigmoid", dst, x)
	vSigmoid(dst, x)
}

// GELU writes x·Φ(x) into dst, Φ being the normal distribution function (the exact
// form, PyTorch's default, not the tanh approximation). The error is at most
// 4e-7·max(1, |x|). NaN stays NaN; +Inf stays, −Inf becomes −0.
//
// D. Hendrycks, K. Gimpel: Gaussian Error Linear Units. arXiv 1606.08415, 2016.
func GELU(dst, x []float32) {
	same("GELU", dst, x)
	vGELU(dst, x)
}

// GELUGrad writes dy·(Φ(x) + x·φ(x)) into dx, for the input x of GELU.
func GELUGrad(dx, dy, x []float32) {
	same("GELUGrad", dx, dy)
	same("GELUGrad", dx, x)
	vGELUGrad(dx, dy, x)
}

// Constants of the scalar functions below and of their assembly.
const (
	expMin = -104 // below: 0, the smallest subnormal is e^-103.97
	expMax = 89   // above: +Inf, the largest finite value is e^88.72
	log2e  = 1.44269504088896341
	ln2Hi  = 0.693359375 // 10 bits: n·ln2Hi is exact
	ln2Lo  = -2.12194440e-4

	exp0 = 1.9875691500e-4 // Cephes expf: eʳ = 1 + r + r²·P(r), |r| ≤ ln2/2
	exp1 = 1.3981999507e-3
	exp2 = 8.3334519073e-3
	exp3 = 4.1665795894e-2
	exp4 = 1.6666665459e-1
	exp5 = 5.0000001201e-1

	rounder = 12582912 // 1.5·2²³: adding and subtracting it rounds to an integer

	tanhSmall = 0.625 // below, Cephes tanhf: x + x³·P(x²)
	tanh0     = -5.70498872745e-3
	tanh1     = 2.06390887954e-2
	tanh2     = -5.37397155531e-2
	tanh3     = 1.33314422036e-1
	tanh4     = -3.33332819422e-1

	// Abramowitz and Stegun 7.1.26 for Φ: erfc(z) = t·P(t)·e^(−z²), t = 1/(1+p·z),
	// with z = |x|/√2 and the half of erfc folded into the coefficients.
	erfP  = 0.3275911 / math.Sqrt2
	erf0  = 1.061405429 / 2
	erf1  = -1.453152027 / 2
	erf2  = 1.421413741 / 2
	erf3  = -0.284496736 / 2
	erf4  = 0.254829592 / 2
	phi0  = 0.39894228040143268 // 1/√(2π)
	oneF  = 1
	halfF = 0.5

	geluMin = -1e4 // far beyond where Φ is 0 or 1; keeps Inf·0 out
	geluMax = 1e4
)

func exp32(x float32) float32 {
	if x < expMin {
		x = expMin
	}
	if x > expMax {
		x = expMax
	}
	n := float32(float32(x*log2e)+rounder) - rounder
	r := x - float32(n*ln2Hi)
	r -= float32(n * ln2Lo)
	p := float32(exp0*r) + exp1
	p = float32(p*r) + exp2
	p = float32(p*r) + exp3
	p = float32(p*r) + exp4
	p = float32(p*r) + exp5
	p = float32(p*float32(r*r)) + r
	p += oneF
	if n != n {
		return p // NaN
	}
	// 2ⁿ in two factors, so that neither overflows and a subnormal result is
	// rounded once.
	i := int32(n)
	a := i >> 1
	b := i - a
	p *= math.Float32frombits(uint32(a+127) << 23)
	return p * math.Float32frombits(uint32(b+127)<<23)
}

func tanh32(x float32) float32 {
	ax := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	if ax < tanhSmall {
		z := float32(x * x)
		p := float32(tanh0*z) + tanh1
		p = float32(p*z) + tanh2
		p = float32(p*z) + tanh3
		p = float32(p*z) + tanh4
		return float32(float32(p*z)*x) + x
	}
	e := exp32(ax+ax) + oneF
	t := oneF - 2/e
	return math.Float32frombits(math.Float32bits(t)&^(1<<31) | math.Float32bits(x)&(1<<31))
}

func sigmoid32(x float32) float32 { return oneF / (oneF + exp32(-x)) }

// gauss returns Φ(x) and φ(x).
func gauss(x float32) (cdf, pdf float32) {
	ax := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	e := exp32(float32(x*x) * -halfF)
	t := oneF / (oneF + float32(ax*erfP))
	p := float32(erf0*t) + erf1
	p = float32(p*t) + erf2
	p = float32(p*t) + erf3
	p = float32(p*t) + erf4
	tail := float32(float32(p*t) * e) // Φ(−|x|)
	cdf = tail
	if x > 0 {
		cdf = oneF - tail
	}
	return cdf, e * phi0
}

func gelu32(x float32) float32 {
	cdf, _ := gauss(x)
	if x < geluMin { // −Inf·0
		x = geluMin
	}
	return x * cdf
}

func geluGrad32(x float32) float32 {
	if x < geluMin {
		x = geluMin
	}
	if x > geluMax {
		x = geluMax
	}
	cdf, pdf := gauss(x)
	return cdf + float32(x*pdf)
}

func reluGo(dst, x []float32) {
	for i, v := range x {
		if v < 0 { // NaN falls through
			v = 0
		}
		dst[i] = v
	}
}

func reluGradGo(dx, dy, y []float32) {
	for i, v := range y {
		g := dy[i]
		if v <= 0 {
			g = 0
		}
		dx[i] = g
	}
}

func expGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = exp32(v)
	}
}

func tanhGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = tanh32(v)
	}
}

func sigmoidGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = sigmoid32(v)
	}
}

func geluGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = gelu32(v)
	}
}

func geluGradGo(dx, dy, x []float32) {
	for i, v := range x {
		dx[i] = dy[i] * geluGrad32(v)
	}
}
