package kernel

import "math"

// SGD writes w − lr·(g + decay·w) into w.
func SGD(w, g []float32, lr, decay float32) {
	same("SGD", w, g)
	vSGD(w, g, lr, decay)
}

// Momentum is one step of SGD with momentum mu as PyTorch defines it, v being
// the velocity:
//
//	d = g + decay·w
//	v = mu·v + (1−damp)·d
//	w = w − lr·v            or, if nesterov,  w − lr·(d + mu·v)
//
// PyTorch starts with v = d and not (1−damp)·d: pass damp = 0 on the first step.
// I. Sutskever et al.: On the importance of initialization and momentum in deep
// learning. ICML 2013 (with PyTorch's placing of lr).
func Momentum(w, g, v []float32, lr, mu, damp, decay float32, nesterov bool) {
	same("Momentum", w, g)
	same("Momentum", w, v)
	if nesterov {
		vNesterov(w, g, v, lr, mu, 1-damp, decay)
		return
	}
	vMomentum(w, g, v, lr, mu, 1-damp, decay)
}

// Accelerate takes a gradient into a velocity of its own, and adds gain times that to a sum:
//
//	v = mu·v + (g + decay·w)
//	sum = sum + gain·v
func Accelerate(sum, g, w, v []float32, mu, gain, decay float32) {
	same("Accelerate", sum, g)
	same("Accelerate", sum, w)
	same("Accelerate", sum, v)
	vAccelerate(sum, g, w, v, mu, gain, decay)
}

// Foresee adds to a sum what [Accelerate] without decay does, and leaves the velocity to [Fade]: both together give the
// bits that it gives.
//
//	sum = sum + gain·(mu·v + g)
func Foresee(sum, g, v []float32, mu, gain float32) {
	same("Foresee", sum, g)
	same("Foresee", sum, v)
	vForesee(sum, g, v, mu, gain)
}

// Fade takes a gradient into a velocity:
//
//	v = mu·v + g
func Fade(v, g []float32, mu float32) {
	same("Fade", v, g)
	vFade(v, g, mu)
}

// AdamStep is what an Adam step needs beside the vectors.
type AdamStep struct {
	LR, Beta1, Beta2, Eps float32
	Decay                 float32 // weight decay
	Decoupled             bool    // AdamW: w shrinks by LR·Decay; else Decay·w joins the gradient
	Step                  int64   // counts from 1
}

// Adam is one step of Adam or AdamW as PyTorch defines them, m and v being the
// running means of the gradient and of its square:
//
//	g += decay·w  (Adam)   or   w −= lr·decay·w  (AdamW)
//	m = β₁·m + (1−β₁)·g
//	v = β₂·v + (1−β₂)·g²
//	w −= lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
//
// D. Kingma, J. Ba: Adam. ICLR 2015. I. Loshchilov, F. Hutter: Decoupled Weight
// Decay Regularization. ICLR 2019.
func Adam(w, g, m, v []float32, s AdamStep) {
	c := s.consts(w, g, m, v)
	vAdam(w, g, m, v, &c)
}

// AdamPart is [Adam] of a gradient with that share of the samples of a round, 0 < share ≤ 1. v estimates what it would
// if gradients were the means of rounds: with independent gradients of one mean, those have the second moment
//
//	share·E g² + (1−share)·(E g)²
//
// and the mean of g is taken from m. For steps of the length of a round's, LR is share times as large.
func AdamPart(w, g, m, v []float32, s AdamStep, share float32) {
	c := s.consts(w, g, m, v)
	mean := float32(1 / (1 - math.Pow(float64(s.Beta1), float64(s.Step))))
	for i, x := range w {
		d := g[i] + float32(c.decay*x)
		x = float32(x * c.keep)
		a := float32(c.beta1*m[i]) + float32(c.rest1*d)
		e := float32(a * mean)
		square := float32(share*float32(d*d)) + float32((1-share)*float32(e*e))
		b := float32(c.beta2*v[i]) + float32(c.rest2*square)
		m[i], v[i] = a, b
		den := float32(float32(math.Sqrt(float64(b)))*c.root) + c.eps
		w[i] = x - float32(float32(c.rate*a)/den)
	}
}

func (s *AdamStep) consts(w, g, m, v []float32) adamConsts {
	same("Adam", w, g)
	same("Adam", w, m)
	same("Adam", w, v)
	if s.Step < 1 {
		panic("kernel: Adam: Step counts from 1")
	}
	c := adamConsts{
		beta1: s.Beta1, rest1: float32(1 - float64(s.Beta1)),
		beta2: s.Beta2, rest2: float32(1 - float64(s.Beta2)),
		rate: float32(float64(s.LR) / (1 - math.Pow(float64(s.Beta1), float64(s.Step)))),
		root: float32(1 / math.Sqrt(1-math.Pow(float64(s.Beta2), float64(s.Step)))),
		eps:  s.Eps, keep: 1, decay: s.Decay,
	}
	if s.Decoupled {
		c.decay, c.keep = 0, float32(1-float64(s.LR)*float64(s.Decay))
	}
	return c
}

// adamConsts is read by the assembly.
type adamConsts struct {
	beta1, rest1, beta2, rest2 float32
	rate, root, eps            float32
	keep, decay                float32
}

func sgdGo(w, g []float32, lr, decay float32) {
	for i, x := range w {
		d := g[i] + float32(decay*x)
		w[i] = x - float32(lr*d)
	}
}

func momentumGo(w, g, v []float32, lr, mu, rest, decay float32) {
	for i, x := range w {
		d := g[i] + float32(decay*x)
		u := float32(mu*v[i]) + float32(rest*d)
		v[i] = u
		w[i] = x - float32(lr*u)
	}
}

func nesterovGo(w, g, v []float32, lr, mu, rest, decay float32) {
	for i, x := range w {
		d := g[i] + float32(decay*x)
		u := float32(mu*v[i]) + float32(rest*d)
		v[i] = u
		d += float32(mu * u)
		w[i] = x - float32(lr*d)
	}
}

func accelerateGo(sum, g, w, v []float32, mu, gain, decay float32) {
	for i, x := range g {
		d := x + float32(decay*w[i])
		u := float32(mu*v[i]) + d
		v[i] = u
		sum[i] += float32(gain * u)
	}
}

func foreseeGo(sum, g, v []float32, mu, gain float32) {
	for i, x := range g {
		u := float32(mu*v[i]) + x
		sum[i] += float32(gain * u)
	}
}

func fadeGo(v, g []float32, mu float32) {
	for i, x := range g {
		v[i] = float32(mu*v[i]) + x
	}
}

func adamGo(w, g, m, v []float32, c *adamConsts) {
	for i, x := range w {
		d := g[i] + float32(c.decay*x)
		x = float32(x * c.keep)
		a := float32(c.beta1*m[i]) + float32(c.rest1*d)
		b := float32(c.beta2*v[i]) + float32(c.rest2*float32(d*d))
		m[i], v[i] = a, b
		den := float32(float32(math.Sqrt(float64(b)))*c.root) + c.eps
		w[i] = x - float32(float32(c.rate*a)/den)
	}
}
