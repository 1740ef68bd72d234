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

// empty reports whether the output has no elements: the window does not fit, or there
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

// columns is how many images share one matrix of columns: enough that a product
// has some hundred columns, as small images alone have not, and the matrix stays
// within the cache.
func (s Conv) columns(k, size int) int {
	const enough, cache = 256, 1 << 18 // columns, elements
	return max(1, min(s.N, (enough+size-1)/size, cache/(k*size)))
}

func (s Conv) colForward(y, x, w, bias []float32) {
	size, in, out := s.OutH()*s.OutW(), s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	batch := s.columns(k, size)
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size*batch)
	sum := grow(&ws.c, out*size*batch)
	for n0 := 0; n0 < s.N; n0 += batch {
		images := min(batch, s.N-n0)
		ld := images * size
		for g := range s.Groups {
			for i := range images {
				im2col(col[i*size:], ld, x[((n0+i)*s.In+g*in)*s.H*s.W:], in, s)
			}
			Gemm(false, false, out, ld, k, 1, w[g*out*k:], k, col, ld, 0, sum, ld)
			for i := range images {
				for o := range out {
					dst := y[((n0+i)*s.Out+g*out+o)*size:][:size]
					src := sum[o*ld+i*size:][:size]
					if bias == nil {
						copy(dst, src)
						continue
					}
					vAddScalar(dst, src, bias[g*out+o])
				}
			}
		}
	}
}

// gather puts the channels of a group of dy side by side: out × images·size.
func (s Conv) gather(dst, dy []float32, n0, images, g, size int) {
	out := s.Out / s.Groups
	for o := range out {
		for i := range images {
			copy(dst[(o*images+i)*size:][:size], dy[((n0+i)*s.Out+g*out+o)*size:])
		}
	}
}

func (s Conv) colGradInput(dx, dy, w []float32) {
	size, in, out := s.OutH()*s.OutW(), s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	batch := s.columns(k, size)
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size*batch)
	side := grow(&ws.c, out*size*batch)
	clear(dx[:s.N*s.In*s.H*s.W])
	for n0 := 0; n0 < s.N; n0 += batch {
		images := min(batch, s.N-n0)
		ld := images * size
		for g := range s.Groups {
			s.gather(side, dy, n0, images, g, size)
			Gemm(true, false, k, ld, out, 1, w[g*out*k:], k, side, ld, 0, col, ld)
			for i := range images {
				col2im(dx[((n0+i)*s.In+g*in)*s.H*s.W:], col[i*size:], ld, in, s)
			}
		}
	}
}

func (s Conv) colGradWeight(dw, dy, x []float32) {
	size, in, out := s.OutH()*s.OutW(), s.In/s.Groups, s.Out/s.Groups
	k := in * s.KH * s.KW
	batch := s.columns(k, size)
	ws := getWork()
	defer putWork(ws)
	col := grow(&ws.pad, k*size*batch)
	side := grow(&ws.c, out*size*batch)
	clear(dw[:s.Weights()])
	for n0 := 0; n0 < s.N; n0 += batch {
		images := min(batch, s.N-n0)
		ld := images * size
		for g := range s.Groups {
			s.gather(side, dy, n0, images, g, size)
			for i := range images {
				im2col(col[i*size:], ld, x[((n0+i)*s.In+g*in)*s.H*s.W:], in, s)
			}
			Gemm(false, true, out, k, ld, 1, side, ld, col, ld, 1, dw[g*out*k:], k)
		}
	}
}

// im2col lays the windows of one image of the given channels out as columns, with rows ld elements apart: row
// (c·KH+kh)·KW+kw, column oh·OutW+ow of col is the pixel that weight (c, kh, kw) meets at output (oh, ow), or 0 in the
// padding. s has the rest of the shape, with no stride and no dilation of 0; its N, In, Out and Groups are not used.
func im2col(col []float32, ld int, x []float32, channels int, s Conv) {
	oh := outSize(s.H, s.KH, s.Stride, s.Pad, s.Dilation)
	ow := outSize(s.W, s.KW, s.Stride, s.Pad, s.Dilation)
	for c := range channels {
		plane := x[c*s.H*s.W : (c+1)*s.H*s.W]
		for kh := range s.KH {
			for kw := range s.KW {
				row := (c*s.KH+kh)*s.KW + kw
				j0, j1 := inside(ow, s.W, kw*s.Dilation-s.Pad, s.Stride)
				for o := range oh {
					dst := col[row*ld+o*ow:][:ow]
					h := o*s.Stride + kh*s.Dilation - s.Pad
					if s.Stride == 1 && ow <= 8 && h >= 0 && h < s.H {
						// Calls of copy and clear would cost more than they do.
						for j := range dst {
							dst[j] = 0
						}
						if j0 < j1 {
							from := h*s.W + kw*s.Dilation - s.Pad + j0
							part := dst[j0:j1]
							for j, v := range plane[from : from+len(part)] {
								part[j] = v
							}
						}
						continue
					}
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

// col2im is the transpose of im2col: it adds each element of col to the pixel that it came from.
func col2im(x, col []float32, ld, channels int, s Conv) {
	oh := outSize(s.H, s.KH, s.Stride, s.Pad, s.Dilation)
	ow := outSize(s.W, s.KW, s.Stride, s.Pad, s.Dilation)
	for c := range channels {
		plane := x[c*s.H*s.W : (c+1)*s.H*s.W]
		for kh := range s.KH {
			for kw := range s.KW {
				row := (c*s.KH+kh)*s.KW + kw
				j0, j1 := inside(ow, s.W, kw*s.Dilation-s.Pad, s.Stride)
				for o := range oh {
					src := col[row*ld+o*ow:][:ow]
					h := o*s.Stride + kh*s.Dilation - s.Pad
					if h < 0 || h >= s.H || j0 == j1 {
						continue
					}
					dst := plane[h*s.W : (h+1)*s.W]
					at := kw*s.Dilation - s.Pad
					if s.Stride == 1 {
						to, from := dst[at+j0:at+j1], src[j0:j1]
						if len(from) > 8 {
							vAdd(to, from)
							continue
						}
						for j, v := range from { // a call would cost more
							to[j] += v
						}
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
