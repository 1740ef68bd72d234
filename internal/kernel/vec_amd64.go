//go:build amd64 && !noasm

package kernel

import "unsafe"

// The callers have checked that the lengths agree.

func ptr(x []float32) *float32 { return unsafe.SliceData(x) }

func vAdd(dst, x []float32) {
	if isa >= avx2 {
		add256(ptr(dst), ptr(x), len(dst))
		return
	}
	addGo(dst, x)
}

func vMul(dst, x, y []float32) {
	if isa >= avx2 {
		mul256(ptr(dst), ptr(x), ptr(y), len(dst))
		return
	}
	mulGo(dst, x, y)
}

func vMulAdd(dst, x, y []float32) {
	if isa >= avx2 {
		mulAdd256(ptr(dst), ptr(x), ptr(y), len(dst))
		return
	}
	mulAddGo(dst, x, y)
}

func vAxpy(alpha float32, x, dst []float32) {
	if isa >= avx2 {
		axpy256(ptr(x), ptr(dst), len(x), alpha)
		return
	}
	axpyGo(alpha, x, dst)
}

func vScale(alpha float32, x []float32) {
	if isa >= avx2 {
		scale256(ptr(x), len(x), alpha)
		return
	}
	scaleGo(alpha, x)
}

func vAddScalar(dst, x []float32, s float32) {
	if isa >= avx2 {
		addScalar256(ptr(dst), ptr(x), len(dst), s)
		return
	}
	addScalarGo(dst, x, s)
}

func vDot(x, y []float32) float64 {
	if isa >= avx2 {
		return dot256(ptr(x), ptr(y), len(x))
	}
	return dotGo(x, y)
}

func vSumSq(x []float32) float64 {
	if isa >= avx2 {
		return sumSq256(ptr(x), len(x))
	}
	return dotGo(x, x)
}

func vSum(x []float32) float64 {
	if isa >= avx2 {
		return sum256(ptr(x), len(x))
	}
	return sumGo(x)
}

func vMoments(x []float32) (sum, sq float64) {
	if isa >= avx2 {
		return moments256(ptr(x), len(x))
	}
	return momentsGo(x)
}

func vSumDot(x, y []float32) (sum, dot float64) {
	if isa >= avx2 {
		return sumDot256(ptr(x), ptr(y), len(x))
	}
	return sumDotGo(x, y)
}

func vFinite(x []float32) bool {
	if isa >= avx2 {
		return finite256(ptr(x), len(x))
	}
	return finiteGo(x)
}

func vReLU(dst, x []float32) {
	if isa >= avx2 {
		relu256(ptr(dst), ptr(x), len(dst))
		return
	}
	reluGo(dst, x)
}

func vReLUGrad(dx, dy, y []float32) {
	if isa >= avx2 {
		reluGrad256(ptr(dx), ptr(dy), ptr(y), len(dx))
		return
	}
	reluGradGo(dx, dy, y)
}

func vExp(dst, x []float32) {
	if isa >= avx2 {
		exp256(ptr(dst), ptr(x), len(dst))
		return
	}
	expGo(dst, x)
}

func vTanh(dst, x []float32) {
	if isa >= avx2 {
		tanh256(ptr(dst), ptr(x), len(dst))
		return
	}
	tanhGo(dst, x)
}

func vSigmoid(dst, x []float32) {
	if isa >= avx2 {
		sigmoid256(ptr(dst), ptr(x), len(dst))
		return
	}
	sigmoidGo(dst, x)
}

func vGELU(dst, x []float32) {
	if isa >= avx2 {
		gelu256(ptr(dst), ptr(x), len(dst))
		return
	}
	geluGo(dst, x)
}

func vGELUGrad(dx, dy, x []float32) {
	if isa >= avx2 {
		geluGrad256(ptr(dx), ptr(dy), ptr(x), len(dx))
		return
	}
	geluGradGo(dx, dy, x)
}

func vNormalise(dst, x []float32, mean, scale, shift float32) {
	if isa >= avx2 {
		normalise256(ptr(dst), ptr(x), len(dst), mean, scale, shift)
		return
	}
	normaliseGo(dst, x, mean, scale, shift)
}

func vNormGrad(dx, dy, x []float32, a, mean, b, c float32) {
	if isa >= avx2 {
		normGrad256(ptr(dx), ptr(dy), ptr(x), len(dx), a, mean, b, c)
		return
	}
	normGradGo(dx, dy, x, a, mean, b, c)
}

func vSGD(w, g []float32, lr, decay float32) {
	if isa >= avx2 {
		sgd256(ptr(w), ptr(g), len(w), lr, decay)
		return
	}
	sgdGo(w, g, lr, decay)
}

func vMomentum(w, g, v []float32, lr, mu, rest, decay float32) {
	if isa >= avx2 {
		momentum256(ptr(w), ptr(g), ptr(v), len(w), lr, mu, rest, decay)
		return
	}
	momentumGo(w, g, v, lr, mu, rest, decay)
}

func vNesterov(w, g, v []float32, lr, mu, rest, decay float32) {
	if isa >= avx2 {
		nesterov256(ptr(w), ptr(g), ptr(v), len(w), lr, mu, rest, decay)
		return
	}
	nesterovGo(w, g, v, lr, mu, rest, decay)
}

func vAccelerate(sum, g, w, v []float32, mu, gain, decay float32) {
	if isa >= avx2 {
		accelerate256(ptr(sum), ptr(g), ptr(w), ptr(v), len(sum), mu, gain, decay)
		return
	}
	accelerateGo(sum, g, w, v, mu, gain, decay)
}

func vForesee(sum, g, v []float32, mu, gain float32) {
	if isa >= avx2 {
		foresee256(ptr(sum), ptr(g), ptr(v), len(sum), mu, gain)
		return
	}
	foreseeGo(sum, g, v, mu, gain)
}

func vFade(v, g []float32, mu float32) {
	if isa >= avx2 {
		fade256(ptr(v), ptr(g), len(v), mu)
		return
	}
	fadeGo(v, g, mu)
}

func vAdam(w, g, m, v []float32, c *adamConsts) {
	if isa >= avx2 {
		adam256(ptr(w), ptr(g), ptr(m), ptr(v), len(w), c.beta1, c.rest1, c.beta2, c.rest2, c.rate, c.root, c.eps, c.keep, c.decay)
		return
	}
	adamGo(w, g, m, v, c)
}

func vMax2x2(y []float32, arg []int32, r0, r1 []float32, base int) {
	if isa >= avx2 {
		max2x2x256(ptr(y), unsafe.SliceData(arg), ptr(r0), ptr(r1), len(y), int32(base), int32(len(r0)))
		return
	}
	max2x2Go(y, arg, r0, r1, base)
}
