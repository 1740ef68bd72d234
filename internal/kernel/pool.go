package kernel

import "fmt"

// Pool is the shape of a two-dimensional pooling over Planes images (samples ×
// channels) of H×W: windows of K×K, Stride apart (0 means K), with Pad rows and
// columns around that never win. As in PyTorch, Pad is at most K/2.
type Pool struct {
	Planes, H, W   int
	K, Stride, Pad int
}

// OutH is the height of the output.
func (p Pool) OutH() int { return p.out(p.H) }

// OutW is the width of the output.
func (p Pool) OutW() int { return p.out(p.W) }

func (p Pool) stride() int {
	if p.Stride == 0 {
		return p.K
	}
	return p.Stride
}

func (p Pool) out(size int) int {
	if p.K < 1 || p.Stride < 0 || p.Pad < 0 || p.Pad > p.K/2 {
		panic(fmt.Sprintf("kernel: Pool: bad window %+v", p))
	}
	if size+2*p.Pad < p.K {
		return 0
	}
	return (size+2*p.Pad-p.K)/p.stride() + 1
}

// Max writes the largest element of each window into y, and its position,
// as an index into its plane, into arg. The first of equals wins; a NaN wins
// over everything. Every index is valid, for any values.
func (p Pool) Max(y []float32, arg []int32, x []float32) {
	oh, ow := p.OutH(), p.OutW()
	atLeast("Pool.Max", "x", len(x), p.Planes*p.H*p.W)
	atLeast("Pool.Max", "y", len(y), p.Planes*oh*ow)
	atLeast("Pool.Max", "arg", len(arg), p.Planes*oh*ow)
	for n := range p.Planes {
		x := x[n*p.H*p.W : (n+1)*p.H*p.W]
		y, arg := y[n*oh*ow:(n+1)*oh*ow], arg[n*oh*ow:(n+1)*oh*ow]
		if p.K == 2 && p.stride() == 2 && p.Pad == 0 {
			for i := range oh {
				vMax2x2(y[i*ow:(i+1)*ow], arg[i*ow:(i+1)*ow], x[2*i*p.W:(2*i+1)*p.W], x[(2*i+1)*p.W:(2*i+2)*p.W], 2*i*p.W)
			}
			continue
		}
		for i := range oh {
			h0 := i*p.stride() - p.Pad
			h1 := min(h0+p.K, p.H)
			h0 = max(h0, 0)
			for j := range ow {
				w0 := j*p.stride() - p.Pad
				w1 := min(w0+p.K, p.W)
				w0 = max(w0, 0)
				best := h0*p.W + w0
				top := x[best]
				for h := h0; h < h1; h++ {
					for w := w0; w < w1; w++ {
						if v := x[h*p.W+w]; v > top || v != v && top == top {
							best, top = h*p.W+w, v
						}
					}
				}
				y[i*ow+j], arg[i*ow+j] = top, int32(best)
			}
		}
	}
}

// max2x2Go pools two rows in windows of two by two; base is the index of r0 in its
// plane.
func max2x2Go(y []float32, arg []int32, r0, r1 []float32, base int) {
	arg = arg[:len(y)]
	width := len(r0)
	for j := range y {
		i := 2 * j
		top, best := r0[i], i
		if v := r0[i+1]; v > top || v != v && top == top {
			top, best = v, i+1
		}
		if v := r1[i]; v > top || v != v && top == top {
			top, best = v, i+width
		}
		if v := r1[i+1]; v > top || v != v && top == top {
			top, best = v, i+width+1
		}
		y[j], arg[j] = top, int32(base+best)
	}
}

// MaxGrad adds dy to the elements that Max chose and writes zero elsewhere: dx is
// overwritten.
func (p Pool) MaxGrad(dx, dy []float32, arg []int32) {
	oh, ow := p.OutH(), p.OutW()
	atLeast("Pool.MaxGrad", "dx", len(dx), p.Planes*p.H*p.W)
	atLeast("Pool.MaxGrad", "dy", len(dy), p.Planes*oh*ow)
	atLeast("Pool.MaxGrad", "arg", len(arg), p.Planes*oh*ow)
	clear(dx[:p.Planes*p.H*p.W])
	for n := range p.Planes {
		dx := dx[n*p.H*p.W : (n+1)*p.H*p.W]
		dy, arg := dy[n*oh*ow:(n+1)*oh*ow], arg[n*oh*ow:(n+1)*oh*ow]
		for i, g := range dy {
			dx[arg[i]] += g
		}
	}
}

// MeanPlanes writes the mean of each plane of size elements of x into dst: global
// average pooling.
func MeanPlanes(dst, x []float32, size int) {
	atLeast("MeanPlanes", "x", len(x), len(dst)*size)
	for i := range dst {
		dst[i] = float32(vSum(x[i*size:(i+1)*size]) / float64(size))
	}
}

// MeanPlanesGrad spreads each element of dy evenly over its plane of dx.
func MeanPlanesGrad(dx, dy []float32, size int) {
	atLeast("MeanPlanesGrad", "dx", len(dx), len(dy)*size)
	for i, g := range dy {
		g /= float32(size)
		plane := dx[i*size : (i+1)*size]
		for j := range plane {
			plane[j] = g
		}
	}
}
