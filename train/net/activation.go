package net

import (
	"math/rand/v2"

	"star/internal/kernel"
)

// An Activation is applied to a layer's result in the same pass.
type Activation int

const (
	Identity Activation = iota // x
	ReLU                       // max(x, 0); NaN stays NaN
	ReLU6                      // min(max(x, 0), 6); NaN stays NaN
)

// forward applies a in place.
func (a Activation) forward(y []float32) {
	switch a {
	case ReLU:
		kernel.ReLU(y, y)
	case ReLU6:
		kernel.ReLU(y, y)
		for i, v := range y {
			if v > 6 {
				y[i] = 6
			}
		}
	}
}

// backward writes the gradient of the input of a into dx, from the gradient and the
// value of the result. dx may be dy.
func (a Activation) backward(dx, dy, y []float32) {
	switch a {
	case Identity:
		copy(dx, dy)
	case ReLU:
		kernel.ReLUGrad(dx, dy, y)
	case ReLU6:
		kernel.ReLUGrad(dx, dy, y)
		for i, v := range y {
			if v >= 6 {
				dx[i] = 0
			}
		}
	}
}

// batchNorm normalises each channel over the batch, with an activation:
//
//	y = act(γ·(x − mean)/√(var + ε) + β)
//
// In training mode mean and variance are the batch's, and move the running ones; in
// evaluation mode they are the running ones. ε = 1e-5, momentum 0.1 and the
// unbiased running variance are PyTorch's.
//
// S. Ioffe, C. Szegedy: Batch Normalization. ICML 2015.
type batchNorm struct {
	shape           kernel.Norm
	train           bool
	out             []int
	gamma, beta     *Param
	runMean, runVar []float32
	mean, invStd    []float32
	act             Activation
	x, y, dx        []float32
	inPlace         bool // the result replaces the input
}

// BatchNorm normalises (C, H, W) or (C). Its running statistics are Buffers.
func BatchNorm(b *Builder, name string, in []int, act Activation) Layer {
	c := in[0]
	return &batchNorm{
		shape:   kernel.Norm{N: b.Batch, C: c, Size: product(in[1:]), Eps: 1e-5, Momentum: 0.1},
		train:   b.Train,
		out:     in,
		act:     act,
		gamma:   b.Own(name+".weight", Constant(1), c),
		beta:    b.Own(name+".bias", Constant(0), c),
		runMean: b.Buffer(name+".running_mean", 0, c),
		runVar:  b.Buffer(name+".running_var", 1, c),
		mean:    make([]float32, c),
		invStd:  make([]float32, c),
		y:       make([]float32, b.Batch*product(in)),
	}
}

func (l *batchNorm) Out() []int       { return l.out }
func (l *batchNorm) Params() []*Param { return []*Param{l.gamma, l.beta} }

func (l *batchNorm) Forward(x []float32) []float32 {
	if l.inPlace {
		l.y = x
	}
	l.x = x
	if l.train {
		l.shape.Train(l.y, x, l.gamma.W, l.beta.W, l.mean, l.invStd, l.runMean, l.runVar)
	} else {
		l.shape.Eval(l.y, x, l.gamma.W, l.beta.W, l.runMean, l.runVar)
	}
	l.act.forward(l.y)
	return l.y
}

func (l *batchNorm) Backward(dy []float32) []float32 {
	if l.dx == nil {
		l.dx = make([]float32, len(l.y))
	}
	l.backward(l.dx, dy)
	return l.dx
}

// backward is Backward with the result in dx.
func (l *batchNorm) backward(dx, dy []float32) {
	if l.act != Identity {
		l.act.backward(dx, dy, l.y)
		dy = dx
	}
	l.shape.Grad(dx, l.gamma.G, l.beta.G, dy, l.x, l.gamma.W, l.mean, l.invStd)
}

// convNorm is a convolution without bias, batch normalisation and an activation. As
// one layer they need one gradient buffer less, and in evaluation one result.
type convNorm struct {
	*conv
	norm *batchNorm
	d    func() []float32
}

// ConvNorm joins a convolution without bias or activation with the batch
// normalisation after it.
func ConvNorm(b *Builder, c Layer, norm string, act Activation) Layer {
	l := &convNorm{conv: c.(*conv), norm: BatchNorm(b, norm, c.Out(), act).(*batchNorm)}
	if l.conv.b != nil || l.conv.act != Identity {
		panic("net: the convolution before " + norm + " has a bias or an activation")
	}
	if b.Train {
		l.d = b.Scratch(len(l.norm.y))
	} else {
		l.norm.inPlace, l.norm.y = true, nil
	}
	return l
}

func (l *convNorm) Params() []*Param { return append(l.conv.Params(), l.norm.Params()...) }

func (l *convNorm) Forward(x []float32) []float32 { return l.norm.Forward(l.conv.Forward(x)) }

func (l *convNorm) Backward(dy []float32) []float32 {
	d := l.d()
	l.norm.backward(d, dy)
	return l.conv.Backward(d) // which takes no scratch memory itself
}

// residual is y = act(body(x) + shortcut(x)).
//
// K. He et al.: Deep Residual Learning for Image Recognition. CVPR 2016.
type residual struct {
	body, shortcut Layer // shortcut is nil for x itself
	act            Activation
	y, dsum        []float32
	skip           bool
}

// Residual adds a shortcut around body: x itself if shortcut is nil.
func Residual(b *Builder, in []int, body, shortcut Layer, act Activation) Layer {
	if n := product(body.Out()); shortcut == nil && n != product(in) || shortcut != nil && n != product(shortcut.Out()) {
		panic("net: the branches of a residual differ in shape")
	}
	l := &residual{body: body, shortcut: shortcut, act: act, y: make([]float32, b.Batch*product(body.Out()))}
	if act != Identity && b.Train {
		l.dsum = make([]float32, len(l.y))
	}
	return l
}

func (l *residual) Out() []int { return l.body.Out() }

func (l *residual) Params() []*Param {
	if l.shortcut == nil {
		return l.body.Params()
	}
	return append(l.body.Params(), l.shortcut.Params()...)
}

func (l *residual) SkipInputGrad() {
	l.skip = true
	skipInputGrad(l.body)
	if l.shortcut != nil {
		skipInputGrad(l.shortcut)
	}
}

func (l *residual) Forward(x []float32) []float32 {
	s := x
	if l.shortcut != nil {
		s = l.shortcut.Forward(x)
	}
	copy(l.y, l.body.Forward(x))
	kernel.Add(l.y, s[:len(l.y)])
	l.act.forward(l.y)
	return l.y
}

func (l *residual) Backward(dy []float32) []float32 {
	if l.act != Identity {
		l.act.backward(l.dsum, dy, l.y)
		dy = l.dsum
	}
	dx := l.body.Backward(dy)
	s := dy
	if l.shortcut != nil {
		s = l.shortcut.Backward(dy)
	}
	if l.skip {
		return nil
	}
	kernel.Add(dx, s)
	return dx
}

// subsample is the parameter-free shortcut between stages of a residual network:
// every second row and column, and channels of zeros for those that are new.
// In the words of He et al. (CVPR 2016, section 3.3) option A.
type subsample struct {
	batch   int
	in, out []int
	stride  int
	y, dx   []float32
}

// Subsample takes every stride-th row and column and pads with channels of zeros.
func Subsample(b *Builder, name string, in []int, channels, stride int) (Layer, error) {
	if len(in) != 3 || channels < in[0] {
		return nil, shapeError(name, in, "wants (channels, height, width) and no fewer channels after it")
	}
	l := &subsample{
		batch: b.Batch, in: in, stride: stride,
		out: []int{channels, (in[1]-1)/stride + 1, (in[2]-1)/stride + 1},
	}
	l.y = make([]float32, b.Batch*product(l.out)) // the new channels stay zero
	return l, nil
}

func (l *subsample) Out() []int       { return l.out }
func (l *subsample) Params() []*Param { return nil }

// each calls f with the offsets of every output that has an input.
func (l *subsample) each(f func(out, in int)) {
	before := (l.out[0] - l.in[0]) / 2 // channels of zeros on both sides
	for n := range l.batch {
		for c := range l.in[0] {
			for h := range l.out[1] {
				o := ((n*l.out[0]+before+c)*l.out[1] + h) * l.out[2]
				i := ((n*l.in[0]+c)*l.in[1] + h*l.stride) * l.in[2]
				for w := range l.out[2] {
					f(o+w, i+w*l.stride)
				}
			}
		}
	}
}

func (l *subsample) Forward(x []float32) []float32 {
	l.each(func(out, in int) { l.y[out] = x[in] })
	return l.y
}

func (l *subsample) Backward(dy []float32) []float32 {
	if l.dx == nil {
		l.dx = make([]float32, l.batch*product(l.in))
	}
	clear(l.dx)
	l.each(func(out, in int) { l.dx[in] = dy[out] })
	return l.dx
}

// dropoutLayer sets each element to zero with probability p and divides the rest by 1−p.
//
// N. Srivastava et al.: Dropout. JMLR 15, 2014.
type dropoutLayer struct {
	p     float64
	out   []int
	mask  []float32
	y, dx []float32
	rng   *rand.Rand
}

// Dropout drops elements while training. With p = 0, and in evaluation mode, there is nothing to do, and
// Dropout returns nil. Its masks continue from step to step, so the same batch
// twice gives two gradients; each batch size has a sequence of its own.
func Dropout(b *Builder, name string, in []int, p float64) Layer {
	if p == 0 || !b.Train {
		return nil
	}
	n := b.Batch * product(in)
	return &dropoutLayer{
		p: p, out: in, rng: generator(b.Seed, name),
		mask: make([]float32, n), y: make([]float32, n), dx: make([]float32, n),
	}
}

func (l *dropoutLayer) Out() []int       { return l.out }
func (l *dropoutLayer) Params() []*Param { return nil }

func (l *dropoutLayer) Forward(x []float32) []float32 {
	keep := float32(1 / (1 - l.p))
	for i := range l.mask {
		l.mask[i] = keep
		if l.rng.Float64() < l.p {
			l.mask[i] = 0
		}
	}
	kernel.Mul(l.y, x, l.mask)
	return l.y
}

func (l *dropoutLayer) Backward(dy []float32) []float32 {
	kernel.Mul(l.dx, dy, l.mask)
	return l.dx
}
