package kernel

import "fmt"

// Conv is the shape of a two-dimensional convolution (cross-correlation, as in
// every framework): N samples of In channels of H×W, Out channels of windows
// KH×KW. Stride and Dilation 0 mean 1. Groups 0 means 1; In is depthwise.
//
// Weights are Out × In/Groups × KH × KW.
type Conv struct {
	N, In, H, W           int
	Out, KH, KW           int
	Stride, Pad, Dilation int
	Groups                int
}

// norm fills in what zero means, and panics if the shape makes no sense.
func (s Conv) norm() Conv {
	s.Stride, s.Dilation, s.Groups = max(s.Stride, 1), max(s.Dilation, 1), max(s.Groups, 1)
	if s.N < 0 || s.In < 1 || s.H < 1 || s.W < 1 || s.Out < 1 || s.KH < 1 || s.KW < 1 || s.Pad < 0 ||
		s.In%s.Groups != 0 || s.Out%s.Groups != 0 {
		panic(fmt.Sprintf("kernel: Conv: bad shape %+v", s))
	}
	return s
}

// OutH is the height of the output.
func (s Conv) OutH() int { s = s.norm(); return outSize(s.H, s.KH, s.Stride, s.Pad, s.Dilation) }

// OutW is the width of the output.
func (s Conv) OutW() int { s = s.norm(); return outSize(s.W, s.KW, s.Stride, s.Pad, s.Dilation) }

func outSize(size, k, stride, pad, dilation int) int {
	span := size + 2*pad - dilation*(k-1)
	if span < 1 {
		return 0
	}
	return (span-1)/stride + 1
}

// Weights is the number of weights.
func (s Conv) Weights() int { s = s.norm(); return s.Out * (s.In / s.Groups) * s.KH * s.KW }

func (s Conv) check(op string, x, w, y []float32) {
	atLeast(op, "the input", len(x), s.N*s.In*s.H*s.W)
	atLeast(op, "the weights", len(w), s.Weights())
	atLeast(op, "the output", len(y), s.N*s.Out*s.OutH()*s.OutW())
}

// empty says that the output has no elements: the window does not fit, or there
// are no samples.
func (s Conv) empty() bool { return s.N*s.OutH()*s.OutW() == 0 }

// Forward writes the convolution of x with w, plus bias (nil: none), into y.
func (s Conv) Forward(y, x, w, bias []float32) {
	s = s.norm()
	s.check("Conv.Forward", x, w, y)
	if bias != nil {
		atLeast("Conv.Forward", "the bias", len(bias), s.Out)
	}
	if s.empty() {
		return
	}
	s.forward(y, x, w, bias)
}

// GradInput overwrites dx with the gradient by the input.
func (s Conv) GradInput(dx, dy, w []float32) {
	s = s.norm()
	s.check("Conv.GradInput", dx, w, dy)
	if s.empty() {
		clear(dx[:s.N*s.In*s.H*s.W])
		return
	}
	s.gradInput(dx, dy, w)
}

// GradWeight overwrites dw, and dbias if it is not nil, with the gradients by the
// weights and the bias, summed over the samples.
func (s Conv) GradWeight(dw, dbias, dy, x []float32) {
	s = s.norm()
	s.check("Conv.GradWeight", x, dw, dy)
	if dbias != nil {
		atLeast("Conv.GradWeight", "the bias", len(dbias), s.Out)
		size := s.OutH() * s.OutW()
		for o := range s.Out {
			var sum float64
			for n := range s.N {
				i := (n*s.Out + o) * size
				sum += vSum(dy[i : i+size])
			}
			dbias[o] = float32(sum)
		}
	}
	if s.empty() {
		clear(dw[:s.Weights()])
		return
	}
	s.gradWeight(dw, dy, x)
}

// The road through im2col: any shape, on any implementation of Gemm.

func (s Conv) colForward(y, x, w, bias []float32) {
	oh, ow := s.OutH(), s.OutW()
	size, in, out := oh*ow, s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size)
	for n := range s.N {
		for g := range s.Groups {
			Im2col(col, x[(n*s.In+g*in)*s.H*s.W:], in, s)
			yg := y[(n*s.Out+g*out)*size : (n*s.Out+(g+1)*out)*size]
			beta := float32(0)
			if bias != nil {
				beta = 1
				for o := range out {
					fill(yg[o*size:(o+1)*size], bias[g*out+o])
				}
			}
			Gemm(false, false, out, size, k, 1, w[g*out*k:], k, col, size, beta, yg, size)
		}
	}
}

func (s Conv) colGradInput(dx, dy, w []float32) {
	oh, ow := s.OutH(), s.OutW()
	size, in, out := oh*ow, s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size)
	clear(dx[:s.N*s.In*s.H*s.W])
	for n := range s.N {
		for g := range s.Groups {
			Gemm(true, false, k, size, out, 1, w[g*out*k:], k, dy[(n*s.Out+g*out)*size:], size, 0, col, size)
			Col2im(dx[(n*s.In+g*in)*s.H*s.W:], col, in, s)
		}
	}
}

func (s Conv) colGradWeight(dw, dy, x []float32) {
	oh, ow := s.OutH(), s.OutW()
	size, in, out := oh*ow, s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size)
	clear(dw[:s.Weights()])
	for n := range s.N {
		for g := range s.Groups {
			Im2col(col, x[(n*s.In+g*in)*s.H*s.W:], in, s)
			Gemm(false, true, out, k, size, 1, dy[(n*s.Out+g*out)*size:], size, col, size, 1, dw[g*out*k:], k)
		}
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// Im2col lays the windows of one image of the given channels out as columns: row
// (c·KH+kh)·KW+kw, column oh·OutW+ow of col is the pixel that weight (c, kh, kw)
// meets at output (oh, ow), or 0 in the padding. s says the rest of the shape;
// its N, In, Out and Groups are not used.
func Im2col(col, x []float32, channels int, s Conv) {
	s.Stride, s.Dilation = max(s.Stride, 1), max(s.Dilation, 1)
	oh := outSize(s.H, s.KH, s.Stride, s.Pad, s.Dilation)
	ow := outSize(s.W, s.KW, s.Stride, s.Pad, s.Dilation)
	atLeast("Im2col", "col", len(col), channels*s.KH*s.KW*oh*ow)
	atLeast("Im2col", "x", len(x), channels*s.H*s.W)
	i := 0
	for c := range channels {
		plane := x[c*s.H*s.W : (c+1)*s.H*s.W]
		for kh := range s.KH {
			for kw := range s.KW {
				j0, j1 := inside(ow, s.W, kw*s.Dilation-s.Pad, s.Stride)
				for o := range oh {
					dst := col[i : i+ow]
					i += ow
					h := o*s.Stride + kh*s.Dilation - s.Pad
					if h < 0 || h >= s.H || j0 == j1 {
						clear(dst)
						continue
					}
					clear(dst[:j0])
					clear(dst[j1:])
					src := plane[h*s.W : (h+1)*s.W]
					at := kw*s.Dilation - s.Pad
					if s.Stride == 1 {
						copy(dst[j0:j1], src[at+j0:])
						continue
					}
					for j := j0; j < j1; j++ {
						dst[j] = src[at+j*s.Stride]
					}
				}
			}
		}
	}
}

// Col2im is the transpose of Im2col: it adds each element of col to the pixel it
// came from. x is added to, not overwritten.
func Col2im(x, col []float32, channels int, s Conv) {
	s.Stride, s.Dilation = max(s.Stride, 1), max(s.Dilation, 1)
	oh := outSize(s.H, s.KH, s.Stride, s.Pad, s.Dilation)
	ow := outSize(s.W, s.KW, s.Stride, s.Pad, s.Dilation)
	atLeast("Col2im", "col", len(col), channels*s.KH*s.KW*oh*ow)
	atLeast("Col2im", "x", len(x), channels*s.H*s.W)
	i := 0
	for c := range channels {
		plane := x[c*s.H*s.W : (c+1)*s.H*s.W]
		for kh := range s.KH {
			for kw := range s.KW {
				j0, j1 := inside(ow, s.W, kw*s.Dilation-s.Pad, s.Stride)
				for o := range oh {
					src := col[i : i+ow]
					i += ow
					h := o*s.Stride + kh*s.Dilation - s.Pad
					if h < 0 || h >= s.H || j0 == j1 {
						continue
					}
					dst := plane[h*s.W : (h+1)*s.W]
					at := kw*s.Dilation - s.Pad
					if s.Stride == 1 {
						vAdd(dst[at+j0:at+j1], src[j0:j1])
						continue
					}
					for j := j0; j < j1; j++ {
						dst[at+j*s.Stride] += src[j]
					}
				}
			}
		}
	}
}

// inside is the range of outputs j of n for which at + j·stride lies in [0, size).
func inside(n, size, at, stride int) (from, to int) {
	if at < 0 {
		from = (-at + stride - 1) / stride
	}
	if at < size {
		to = (size-at-1)/stride + 1
	}
	to = min(to, n)
	return min(from, to), to
}
