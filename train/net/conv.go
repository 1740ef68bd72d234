package net

import (
	"fmt"
	"math"

	"star/internal/kernel"
)

// A Window is how a convolution or a pooling looks at its input. Zero Stride means
// 1 for a convolution and Size for a pooling.
type Window struct{ Size, Stride, Pad int }

// over is the size of the result along a side of the given length.
func (w Window) over(side int) int { return (side+2*w.Pad-w.Size)/w.Stride + 1 }

// image checks that in is (channels, height, width) and large enough for w.
func image(name string, in []int, w Window) error {
	if len(in) != 3 {
		return shapeError(name, in, "wants (channels, height, width)")
	}
	if in[1]+2*w.Pad < w.Size || in[2]+2*w.Pad < w.Size {
		return shapeError(name, in, fmt.Sprintf("a window of %d does not fit", w.Size))
	}
	return nil
}

// conv is a two-dimensional convolution (cross-correlation) with an optional bias
// and activation. W has shape (out, in/groups, size, size) as in PyTorch.
type conv struct {
	shape    kernel.Conv
	out      []int
	w, b     *Param // b is nil without bias
	act      Activation
	x, y, dx []float32
	dz       func() []float32
	skip     bool
}

// Conv is a convolution with bias.
func Conv(b *Builder, name string, in []int, out int, w Window, act Activation) (Layer, error) {
	init := FanIn(in[0] * w.Size * w.Size)
	l, err := newConv(b, name, in, out, 1, w, act, init)
	if err != nil {
		return nil, err
	}
	l.b = b.Own(name+".bias", init, out)
	return l, nil
}

// HeConv is Conv with weights from N(0, 2/(out·size²)) and a bias of zero, as in
// torchvision's VGG: without batch normalisation a deep stack does not begin to
// learn from smaller weights.
//
// K. He et al.: Delving Deep into Rectifiers. ICCV 2015.
func HeConv(b *Builder, name string, in []int, out int, w Window, act Activation) (Layer, error) {
	l, err := newConv(b, name, in, out, 1, w, act, Normal(math.Sqrt(2/float64(out*w.Size*w.Size))))
	if err != nil {
		return nil, err
	}
	l.b = b.Own(name+".bias", Constant(0), out)
	return l, nil
}

// PlainConv is a convolution without bias: the batch normalisation after it has one.
func PlainConv(b *Builder, name string, in []int, out int, w Window) (Layer, error) {
	return newConv(b, name, in, out, 1, w, Identity, FanIn(in[0]*w.Size*w.Size))
}

// DepthwiseConv is a convolution of each channel for itself, without bias.
func DepthwiseConv(b *Builder, name string, in []int, w Window) (Layer, error) {
	return newConv(b, name, in, in[0], in[0], w, Identity, FanIn(w.Size*w.Size))
}

func newConv(b *Builder, name string, in []int, out, groups int, w Window, act Activation, init Init) (*conv, error) {
	if w.Stride == 0 {
		w.Stride = 1
	}
	if err := image(name, in, w); err != nil {
		return nil, err
	}
	each := in[0] / groups
	l := &conv{
		shape: kernel.Conv{
			N: b.Batch, In: in[0], H: in[1], W: in[2], Out: out, KH: w.Size, KW: w.Size,
			Stride: w.Stride, Pad: w.Pad, Groups: groups,
		},
		out: []int{out, w.over(in[1]), w.over(in[2])},
		act: act,
		w:   b.Own(name+".weight", init, out, each, w.Size, w.Size),
	}
	l.y = make([]float32, b.Batch*product(l.out))
	if act != Identity {
		l.dz = b.Scratch(len(l.y))
	}
	return l, nil
}

func (l *conv) Out() []int     { return l.out }
func (l *conv) SkipInputGrad() { l.skip = true }

func (l *conv) Params() []*Param {
	if l.b == nil {
		return []*Param{l.w}
	}
	return []*Param{l.w, l.b}
}

func (l *conv) Forward(x []float32) []float32 {
	l.x = x
	var bias []float32
	if l.b != nil {
		bias = l.b.W
	}
	l.shape.Forward(l.y, x, l.w.W, bias)
	l.act.forward(l.y)
	return l.y
}

func (l *conv) Backward(dy []float32) []float32 {
	if l.act != Identity {
		dz := l.dz()
		l.act.backward(dz, dy, l.y)
		dy = dz
	}
	var bias []float32
	if l.b != nil {
		bias = l.b.G
	}
	l.shape.GradWeight(l.w.G, bias, dy, l.x)
	if l.skip {
		return nil
	}
	if l.dx == nil {
		l.dx = make([]float32, len(l.x))
	}
	l.shape.GradInput(l.dx, dy, l.w.W)
	return l.dx
}

// maxPool keeps the largest element of each window; NaN counts as larger than all.
type maxPool struct {
	shape kernel.Pool
	out   []int
	arg   []int32
	y, dx []float32
	in    int
	skip  bool
}

// MaxPool is max pooling.
func MaxPool(b *Builder, name string, in []int, w Window) (Layer, error) {
	if w.Stride == 0 {
		w.Stride = w.Size
	}
	if err := image(name, in, w); err != nil {
		return nil, err
	}
	l := &maxPool{
		shape: kernel.Pool{Planes: b.Batch * in[0], H: in[1], W: in[2], K: w.Size, Stride: w.Stride, Pad: w.Pad},
		out:   []int{in[0], w.over(in[1]), w.over(in[2])},
		in:    b.Batch * product(in),
	}
	l.y = make([]float32, b.Batch*product(l.out))
	l.arg = make([]int32, len(l.y))
	return l, nil
}

func (l *maxPool) Out() []int       { return l.out }
func (l *maxPool) Params() []*Param { return nil }
func (l *maxPool) SkipInputGrad()   { l.skip = true }

func (l *maxPool) Forward(x []float32) []float32 {
	l.shape.Max(l.y, l.arg, x)
	return l.y
}

func (l *maxPool) Backward(dy []float32) []float32 {
	if l.skip {
		return nil
	}
	if l.dx == nil {
		l.dx = make([]float32, l.in)
	}
	l.shape.MaxGrad(l.dx, dy, l.arg)
	return l.dx
}

// meanPool is the mean over all positions of a channel.
type meanPool struct {
	channels, size, batch int
	y, dx                 []float32
}

// GlobalAvgPool is the mean of each channel: (C, H, W) becomes (C).
func GlobalAvgPool(b *Builder, name string, in []int) (Layer, error) {
	if err := image(name, in, Window{Size: 1}); err != nil {
		return nil, err
	}
	return &meanPool{channels: in[0], size: in[1] * in[2], batch: b.Batch, y: make([]float32, b.Batch*in[0])}, nil
}

func (l *meanPool) Out() []int       { return []int{l.channels} }
func (l *meanPool) Params() []*Param { return nil }

func (l *meanPool) Forward(x []float32) []float32 {
	kernel.MeanPlanes(l.y, x, l.size)
	return l.y
}

func (l *meanPool) Backward(dy []float32) []float32 {
	if l.dx == nil {
		l.dx = make([]float32, l.batch*l.channels*l.size)
	}
	kernel.MeanPlanesGrad(l.dx, dy, l.size)
	return l.dx
}
