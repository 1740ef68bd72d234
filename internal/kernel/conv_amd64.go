//go:build amd64 && !noasm

package kernel

import "unsafe"

// The direct road: the image is copied once into a padded form in which every
// weight meets a shifted view of it, row by row contiguous, and the tiles read
// these views through their table of offsets. Nothing is laid out as columns.
//
// Row h of a padded channel is stride phases of pw elements: element w lies in
// phase w mod stride at w/stride. So output j of a row meets weight kw at
// adjacent elements of one phase, for any stride.

// direct is a convolution of one group in the padded form. Distances are in
// elements.
type direct struct {
	in, h, w       int // image
	kh, kw         int
	stride, dil    int
	padH, padW     int // on the upper and left side
	oh, ow         int
	ph, pw         int  // padded height, and elements of one phase
	flat           bool // the image itself is its padded form and has one long row
	width          width
	vecs, lastLane int // vectors of a row of the output, lanes in use of the last
}

// newDirect reports whether the direct road takes this shape, and how.
func newDirect(in, h, w, kh, kw, stride, dil, padH, padW, oh, ow int) (d direct, ok bool) {
	d = direct{in: in, h: h, w: w, kh: kh, kw: kw, stride: stride, dil: dil, padH: padH, padW: padW, oh: oh, ow: ow}
	if isa == goOnly || padH < 0 || padW < 0 {
		return d, false
	}
	if kh == 1 && kw == 1 && stride == 1 && padH == 0 && padW == 0 {
		// Pointwise: rows do not matter.
		d.flat, d.h, d.w, d.oh, d.ow = true, 1, h*w, 1, oh*ow
	}
	if d.ow < 5 {
		return d, false // most lanes would be idle
	}
	d.ph = (d.oh-1)*stride + (kh-1)*dil + 1
	d.pw = ((d.ow-1)*stride+(kw-1)*dil)/stride + 1
	d.width = widthFor(d.ow)
	lanes := d.width.tile().lanes
	d.vecs = (d.ow + lanes - 1) / lanes
	d.lastLane = d.ow - (d.vecs-1)*lanes
	return d, true
}

func (d *direct) rowPitch() int { return d.stride * d.pw }
func (d *direct) padded() int   { return d.ph * d.rowPitch() } // elements of a channel

// offsets writes where each weight's view begins, in bytes.
func (d *direct) offsets(off []int) {
	i := 0
	for c := range d.in {
		for kh := range d.kh {
			for kw := range d.kw {
				w := kw * d.dil
				off[i] = 4 * (c*d.padded() + kh*d.dil*d.rowPitch() + w%d.stride*d.pw + w/d.stride)
				i++
			}
		}
	}
}

// pad copies an image into padded form.
func (d *direct) pad(dst, x []float32) {
	pitch := d.rowPitch()
	for c := range d.in {
		plane := x[c*d.h*d.w : (c+1)*d.h*d.w]
		for r := range d.ph {
			row := dst[:pitch]
			dst = dst[pitch:]
			h := r - d.padH
			if h < 0 || h >= d.h {
				clear(row)
				continue
			}
			src := plane[h*d.w : (h+1)*d.w]
			if d.stride == 1 {
				n := min(d.w, d.pw-d.padW)
				clear(row[:d.padW])
				copy(row[d.padW:], src[:max(n, 0)])
				clear(row[min(d.padW+max(n, 0), d.pw):])
				continue
			}
			for p := range d.stride {
				phase := row[p*d.pw : (p+1)*d.pw]
				from, to := inside(d.pw, d.w, p-d.padW, d.stride)
				clear(phase[:from])
				clear(phase[to:])
				w := from*d.stride + p - d.padW
				for j := from; j < to; j++ {
					phase[j] = src[w]
					w += d.stride
				}
			}
		}
	}
}

// image multiplies out×k weights with one padded image into y.
func (d *direct) image(y []float32, weights []float32, bias []float32, out int, padded []float32, off []int) {
	ts := d.width.tile()
	k := len(off)
	t := tile{
		ars: uintptr(4 * k), acs: 4, k: k,
		off: unsafe.Pointer(&off[0]),
		crs: uintptr(4 * d.oh * d.ow), alpha: 1, mask: 1<<ts.lanes - 1,
	}
	step := parts(out, ts.rows)
	row := d.rowPitch() * d.stride // between the views of two rows of the output
	// Short rows: each vector of the tile is a row of its own. AVX2 can mask but
	// one vector of a tile, so there the rows must fill theirs.
	if d.vecs == 1 && (d.width != ymm || d.lastLane == ts.lanes) {
		t.bvs, t.cvs = uintptr(4*row), uintptr(4*d.ow)
		t.mask = 1<<d.lastLane - 1
		rows := parts(d.oh, ts.vecs)
		for r := 0; r < d.oh; r += rows {
			t.b = at(padded, r*row)
			d.channels(&t, y, r*d.ow, weights, bias, out, step, min(rows, d.oh-r), d.lastLane)
		}
		return
	}
	t.bvs, t.cvs = uintptr(4*ts.lanes), uintptr(4*ts.lanes)
	vecs := parts(d.vecs, ts.vecs)
	for r := range d.oh {
		for v := 0; v < d.vecs; v += vecs {
			n := ts.lanes
			if v+vecs >= d.vecs {
				n = d.lastLane
			}
			t.b = at(padded, r*row+v*ts.lanes)
			d.channels(&t, y, r*d.ow+v*ts.lanes, weights, bias, out, step, min(vecs, d.vecs-v), n)
		}
	}
}

// channels runs the tile at position pos of every output channel.
func (d *direct) channels(t *tile, y []float32, pos int, weights, bias []float32, out, step, v, lanes int) {
	size := d.oh * d.ow
	for o := 0; o < out; o += step {
		t.a = at(weights, o*t.k)
		t.c = at(y, o*size+pos)
		if bias != nil {
			t.bias = at(bias, o)
		}
		t.run(d.width, min(step, out-o), v, lanes)
	}
}

func (s Conv) forward(y, x, w, bias []float32) {
	oh, ow := s.OutH(), s.OutW()
	in, out := s.In/s.Groups, s.Out/s.Groups
	d, ok := newDirect(in, s.H, s.W, s.KH, s.KW, s.Stride, s.Dilation, s.Pad, s.Pad, oh, ow)
	if !ok {
		s.colForward(y, x, w, bias)
		return
	}
	ws := getWork()
	defer putWork(ws)
	k := in * s.KH * s.KW
	off := grow(&ws.off, k)
	d.offsets(off)
	padded := grow(&ws.pad, in*d.padded())
	for n := range s.N {
		for g := range s.Groups {
			img := x[(n*s.In+g*in)*s.H*s.W : (n*s.In+(g+1)*in)*s.H*s.W]
			if d.flat {
				padded = img
			} else {
				d.pad(padded, img)
			}
			var bg []float32
			if bias != nil {
				bg = bias[g*out:]
			}
			d.image(y[(n*s.Out+g*out)*oh*ow:], w[g*out*k:], bg, out, padded, off)
		}
	}
}

// gradInput is, for stride 1, a convolution of dy with the weights turned round
// and their channels swapped.
func (s Conv) gradInput(dx, dy, w []float32) {
	oh, ow := s.OutH(), s.OutW()
	in, out := s.In/s.Groups, s.Out/s.Groups
	padH, padW := s.Dilation*(s.KH-1)-s.Pad, s.Dilation*(s.KW-1)-s.Pad
	d, ok := newDirect(out, oh, ow, s.KH, s.KW, 1, s.Dilation, padH, padW, s.H, s.W)
	if !ok || s.Stride != 1 {
		s.colGradInput(dx, dy, w)
		return
	}
	ws := getWork()
	defer putWork(ws)
	taps := s.KH * s.KW
	k := out * taps
	off := grow(&ws.off, k)
	d.offsets(off)
	padded := grow(&ws.pad, out*d.padded())
	turned := grow(&ws.a, s.Weights())
	for g := range s.Groups {
		for o := range out {
			for c := range in {
				src := w[((g*out+o)*in+c)*taps:][:taps]
				dst := turned[((g*in+c)*out+o)*taps:][:taps]
				for i, v := range src {
					dst[taps-1-i] = v
				}
			}
		}
	}
	for n := range s.N {
		for g := range s.Groups {
			img := dy[(n*s.Out+g*out)*oh*ow : (n*s.Out+(g+1)*out)*oh*ow]
			if d.flat {
				padded = img
			} else {
				d.pad(padded, img)
			}
			d.image(dx[(n*s.In+g*in)*s.H*s.W:], turned[g*in*k:], nil, in, padded, off)
		}
	}
}

// gradWeight is the inner product of dy's channels with the shifted views, over
// all positions of several images at a time.
func (s Conv) gradWeight(dw, dy, x []float32) {
	oh, ow := s.OutH(), s.OutW()
	in, out := s.In/s.Groups, s.Out/s.Groups
	d, ok := newDirect(in, s.H, s.W, s.KH, s.KW, s.Stride, s.Dilation, s.Pad, s.Pad, oh, ow)
	if !ok {
		s.colGradWeight(dw, dy, x)
		return
	}
	clear(dw[:s.Weights()])
	ws := getWork()
	defer putWork(ws)
	k := in * s.KH * s.KW
	off := grow(&ws.off, k)
	d.offsets(off)
	// As many images at once as stay in the second-level cache with their dy.
	const cache = 1 << 16 // elements
	size := in * d.padded()
	batch := min(s.N, max(1, cache/max(size, out*oh*ow)))
	var padded []float32
	if !d.flat {
		padded = grow(&ws.pad, batch*size)
	}
	t := dots{
		ars: uintptr(4 * oh * ow), rows: d.oh,
		arow: uintptr(4 * d.ow), brow: uintptr(4 * d.rowPitch() * d.stride),
		aimage: uintptr(4 * s.Out * oh * ow), bimage: uintptr(4 * size),
		crs: uintptr(4 * k),
	}
	if d.flat {
		t.bimage = uintptr(4 * s.In * s.H * s.W)
	}
	t.cut(d.width, d.ow)
	step := parts(out, d.width.dotRows())
	for g := range s.Groups {
		for n0 := 0; n0 < s.N; n0 += batch {
			t.images = min(batch, s.N-n0)
			if d.flat {
				padded = x[(n0*s.In+g*in)*s.H*s.W:]
			} else {
				for i := range t.images {
					d.pad(padded[i*size:(i+1)*size], x[((n0+i)*s.In+g*in)*s.H*s.W:])
				}
			}
			for q := 0; q < k; q += 3 {
				v := min(3, k-q)
				t.b = unsafe.Add(at(padded, 0), off[q])
				t.taps(uintptr(off[min(q+1, k-1)]-off[q]), uintptr(off[min(q+2, k-1)]-off[q]))
				for o := 0; o < out; o += step {
					t.a = at(dy, (n0*s.Out+g*out+o)*oh*ow)
					t.c = at(dw, (g*out+o)*k+q)
					t.run(d.width, min(step, out-o), v)
				}
			}
		}
	}
}
