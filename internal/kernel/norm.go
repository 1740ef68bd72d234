package kernel

import "math"

// Norm is the shape of a batch normalisation: N samples of C channels of Size
// positions (height·width; 1 for plain features).
//
// S. Ioffe, C. Szegedy: Batch Normalization. ICML 2015.
type Norm struct {
	N, C, Size int
	Eps        float32
	Momentum   float32 // of the new statistics in the running ones; PyTorch's default is 0.1
}

func (s Norm) check(op string, long, short []float32) {
	atLeast(op, "a tensor", len(long), s.N*s.C*s.Size)
	atLeast(op, "a channel vector", len(short), s.C)
}

// Train normalises x over samples and positions, y = (x−mean)·invStd·gamma + beta,
// and moves the running statistics: run = (1−Momentum)·run + Momentum·new. mean
// and invStd, of length C, are kept for Grad. As in PyTorch the batch is
// normalised with the biased variance while runVar takes the unbiased one (the
// biased one if there is but one value). runMean and runVar may be nil. y may
// be x only if Grad is not called.
//
// Mean and variance are summed in float64 in one pass: the variance is good to
// 1e-6 as long as the mean is below 10⁵ standard deviations.
func (s Norm) Train(y, x, gamma, beta, mean, invStd, runMean, runVar []float32) {
	s.check("Norm.Train", y, gamma)
	s.check("Norm.Train", x, beta)
	s.check("Norm.Train", x, mean)
	s.check("Norm.Train", x, invStd)
	if s.N*s.Size == 0 {
		return
	}
	count := float64(s.N * s.Size)
	for c := range s.C {
		var sum, sq float64
		for n := range s.N {
			a, b := vMoments(s.plane(x, n, c))
			sum += a
			sq += b
		}
		m := sum / count
		v := sq/count - m*m
		if v < 0 { // rounding
			v = 0
		}
		mean[c] = float32(m)
		invStd[c] = float32(1 / math.Sqrt(v+float64(s.Eps)))
		for n := range s.N {
			vNormalise(s.plane(y, n, c), s.plane(x, n, c), mean[c], invStd[c]*gamma[c], beta[c])
		}
		if count > 1 {
			v *= count / (count - 1)
		}
		if runMean != nil {
			runMean[c] += s.Momentum * (float32(m) - runMean[c])
		}
		if runVar != nil {
			runVar[c] += s.Momentum * (float32(v) - runVar[c])
		}
	}
}

// Eval normalises x with the running statistics. y may be x.
func (s Norm) Eval(y, x, gamma, beta, runMean, runVar []float32) {
	s.check("Norm.Eval", y, gamma)
	s.check("Norm.Eval", x, beta)
	s.check("Norm.Eval", x, runMean)
	s.check("Norm.Eval", x, runVar)
	for c := range s.C {
		scale := gamma[c] * float32(1/math.Sqrt(float64(runVar[c])+float64(s.Eps)))
		for n := range s.N {
			vNormalise(s.plane(y, n, c), s.plane(x, n, c), runMean[c], scale, beta[c])
		}
	}
}

// Grad is the backward pass of Train, from its x, mean and invStd. It overwrites
// dx (which may be dy), dgamma and dbeta.
func (s Norm) Grad(dx, dgamma, dbeta, dy, x, gamma, mean, invStd []float32) {
	s.check("Norm.Grad", dx, dgamma)
	s.check("Norm.Grad", dy, dbeta)
	s.check("Norm.Grad", x, gamma)
	s.check("Norm.Grad", x, mean)
	s.check("Norm.Grad", x, invStd)
	if s.N*s.Size == 0 {
		return
	}
	count := float64(s.N * s.Size)
	for c := range s.C {
		var sum, dot float64 // Σdy, Σdy·(x−mean)
		m := float64(mean[c])
		for n := range s.N {
			a, b := vSumDot(s.plane(dy, n, c), s.plane(x, n, c))
			sum += a
			dot += b - m*a
		}
		is := float64(invStd[c])
		dgamma[c] = float32(dot * is)
		dbeta[c] = float32(sum)
		// dx = γ/σ·(dy − Σdy/n − (x−mean)/σ²·Σdy·(x−mean)/n)
		k := float64(gamma[c]) * is
		for n := range s.N {
			vNormGrad(s.plane(dx, n, c), s.plane(dy, n, c), s.plane(x, n, c),
				float32(k), mean[c], float32(-k*is*is*dot/count), float32(-k*sum/count))
		}
	}
}

func (s Norm) plane(x []float32, n, c int) []float32 {
	i := (n*s.C + c) * s.Size
	return x[i : i+s.Size]
}

// LayerNorm normalises each of the rows of x (rows × len(gamma)) to mean 0 and
// variance 1, times gamma, plus beta. mean and invStd, of length rows, are kept
// for LayerNormGrad.
//
// J. Ba, J. Kiros, G. Hinton: Layer Normalization. arXiv 1607.06450, 2016.
func LayerNorm(y, x, gamma, beta, mean, invStd []float32, rows int, eps float32) {
	n := len(gamma)
	same("LayerNorm", gamma, beta)
	atLeast("LayerNorm", "x", len(x), rows*n)
	atLeast("LayerNorm", "y", len(y), rows*n)
	atLeast("LayerNorm", "mean", len(mean), rows)
	atLeast("LayerNorm", "invStd", len(invStd), rows)
	for r := range rows {
		x, y := x[r*n:(r+1)*n], y[r*n:(r+1)*n]
		sum, sq := vMoments(x)
		m := sum / float64(n)
		v := sq/float64(n) - m*m
		if v < 0 {
			v = 0
		}
		mean[r] = float32(m)
		invStd[r] = float32(1 / math.Sqrt(v+float64(eps)))
		vNormalise(y, x, mean[r], invStd[r], 0)
		vMul(y, y, gamma)
		vAdd(y, beta)
	}
}

// LayerNormGrad is the backward pass of LayerNorm. It overwrites dx (which may be
// dy), dgamma and dbeta.
func LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, invStd []float32, rows int) {
	n := len(gamma)
	same("LayerNormGrad", gamma, dgamma)
	same("LayerNormGrad", gamma, dbeta)
	atLeast("LayerNormGrad", "dx", len(dx), rows*n)
	atLeast("LayerNormGrad", "dy", len(dy), rows*n)
	atLeast("LayerNormGrad", "x", len(x), rows*n)
	atLeast("LayerNormGrad", "mean", len(mean), rows)
	atLeast("LayerNormGrad", "invStd", len(invStd), rows)
	clear(dgamma)
	clear(dbeta)
	w := getWork()
	defer putWork(w)
	buf := w.floats(2 * n)
	g, xhat := buf[:n], buf[n:]
	for r := range rows {
		x, dy, dx := x[r*n:(r+1)*n], dy[r*n:(r+1)*n], dx[r*n:(r+1)*n]
		vNormalise(xhat, x, mean[r], invStd[r], 0)
		vMulAdd(dgamma, dy, xhat)
		vAdd(dbeta, dy)
		vMul(g, dy, gamma)
		sum, dot := vSumDot(g, xhat)
		is := float64(invStd[r])
		vNormGrad(dx, g, x, invStd[r], mean[r], float32(-is*is*dot/float64(n)), float32(-is*sum/float64(n)))
	}
}

func momentsGo(x []float32) (sum, sq float64) { return sumGo(x), dotGo(x, x) }

func sumDotGo(x, y []float32) (sum, dot float64) { return sumGo(x), dotGo(x, y) }

func normaliseGo(dst, x []float32, mean, scale, shift float32) {
	for i, v := range x {
		dst[i] = float32((v-mean)*scale) + shift
	}
}

// normGradGo: dx = dy·a + (x−mean)·b + c.
func normGradGo(dx, dy, x []float32, a, mean, b, c float32) {
	for i, g := range dy {
		dx[i] = float32(float32(g*a)+float32((x[i]-mean)*b)) + c
	}
}
