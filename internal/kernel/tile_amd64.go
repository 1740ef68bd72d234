//go:build amd64 && !noasm

package kernel

import "unsafe"

// tile is one small product, read by the assembly:
//
//	C = alpha·(bias + A·B) + beta·C
//
// for r rows and v vectors. B is indirect: row p begins off[p] bytes after b, so
// that the same code multiplies by a matrix, by packed panels, and by the shifted
// views of an image that a convolution is made of (Dukhan 2019). Distances are
// in bytes.
type tile struct {
	a        unsafe.Pointer
	ars, acs uintptr // between rows and columns of A
	b        unsafe.Pointer
	off      unsafe.Pointer // *int, k of them
	bvs      uintptr        // between the vectors of a row of B
	c        unsafe.Pointer
	crs, cvs uintptr        // between rows and vectors of C
	bias     unsafe.Pointer // one for each row, or nil
	k        int            // at least 1
	alpha    float32
	beta     float32 // 0: C is not read
	mask     uint32  // AVX-512: lanes in use of every vector but the last
	tail     uint32  // lanes in use of the last vector
	lanes    unsafe.Pointer
}

// dots is r inner products with v vectors, over images of rows, added to C.
// Distances are in bytes.
type dots struct {
	a              unsafe.Pointer
	ars            uintptr // between the r operands
	b              unsafe.Pointer
	tap1, tap2     uintptr // from the first of the v operands to the others
	vectors        int     // whole vectors in a row
	tail           uint32  // lanes in use of the vector after them; 0: no such vector
	lanes          unsafe.Pointer
	rows           int
	arow, brow     uintptr // between rows
	images         int
	aimage, bimage uintptr // between images
	//lint:ignore U1000 scratch of the assembly
	i int
	//lint:ignore U1000 scratch of the assembly; they run past the end and must not be pointers
	acur, bcur uintptr
	c          unsafe.Pointer
	crs        uintptr // between the rows of C; its columns are adjacent
}

// laneTable holds, from element 8−n on, a mask of n lanes for AVX2.
var laneTable = [16]int32{-1, -1, -1, -1, -1, -1, -1, -1}

func lanes256(n int) unsafe.Pointer { return unsafe.Pointer(&laneTable[8-n]) }

// size of the largest tile, and the lanes of its vectors.
type tileSize struct{ rows, vecs, lanes int }

func (w width) tile() tileSize {
	return [...]tileSize{ymm: {6, 2, 8}, ymm32: {8, 3, 8}, zmm: {8, 3, 16}}[w]
}

// width is the kind of vector a tile is made of.
type width int

const (
	ymm   width = iota // AVX2: 8 lanes, 16 registers, only the last vector may be partial
	ymm32              // AVX-512: 8 lanes, 32 registers, all masked
	zmm                // AVX-512: 16 lanes, 32 registers, all masked
)

// widthFor is the best for rows of n elements.
func widthFor(n int) width {
	switch {
	case isa < avx512:
		return ymm
	case n <= 8:
		return ymm32
	}
	return zmm
}

// run computes t for r rows and v vectors, and the last one has n lanes in use.
func (t *tile) run(w width, r, v, n int) {
	t.tail = 1<<n - 1
	switch {
	case w == zmm:
		tile512z(t, r, v)
	case w == ymm32:
		tile512y(t, r, v)
	case n == 8:
		tile256(t, r, v)
	default:
		t.lanes = lanes256(n)
		tile256m(t, r, v)
	}
}

func at(x []float32, i int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(x)), 4*i)
}

// parts cuts n elements into the fewest, most even parts of at most size, and
// returns the length of the parts; the last may be smaller.
func parts(n, size int) int {
	if n <= size {
		return n
	}
	count := (n + size - 1) / size
	return (n + count - 1) / count
}

const (
	blockK = 320 // rows of B in a panel: 320×48×4 = 60 KiB, streamed from L2
	blockN = 768 // columns of packed B: 960 KiB at most; a multiple of every panel's width
	blockM = 512 // rows of packed A
)

func gemmTiled(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	w := widthFor(n)
	if transB && !transA && m <= 8 && alpha == 1 && k >= 32 {
		scaleRows(m, n, beta, c, ldc)
		gemmDots(m, n, k, a, lda, b, ldb, c, ldc)
		return
	}
	ts := w.tile()
	// Even panels: 64 columns are two of 32, not one of 48 and one of 16.
	nr := parts((n+ts.lanes-1)/ts.lanes, ts.vecs) * ts.lanes
	packB := transB || m > 4*ts.rows && k*n > 1<<14
	packA := n > 2*nr && m > 1 && (!transA && lda%512 == 0 && k > 128 || transA && lda > 1024)

	ws := getWork()
	defer putWork(ws)
	kb := parts(k, blockK)
	off := grow(&ws.off, kb)
	rowB := ldb
	if packB {
		rowB = nr
	}
	for p := range off {
		off[p] = 4 * rowB * p
	}
	t := tile{off: unsafe.Pointer(&off[0]), bvs: uintptr(4 * ts.lanes), crs: uintptr(4 * ldc), cvs: uintptr(4 * ts.lanes), alpha: alpha, mask: 1<<ts.lanes - 1}
	nb, mb := n, m
	if packB {
		nb = min(n, blockN)
	}
	if packA {
		mb = min(m, blockM)
	}
	for p0 := 0; p0 < k; p0 += kb {
		t.k = min(kb, k-p0)
		t.beta = beta
		if p0 > 0 {
			t.beta = 1
		}
		for jc := 0; jc < n; jc += nb {
			jn := min(nb, n-jc)
			if packB {
				packPanels(grow(&ws.b, (jn+nr-1)/nr*nr*t.k), b, ldb, transB, p0, t.k, jc, jn, nr)
			}
			for ic := 0; ic < m; ic += mb {
				in := min(mb, m-ic)
				if packA {
					// A's panels are B's of the transposed product, 8 wide.
					packPanels(grow(&ws.a, (in+ts.rows-1)/ts.rows*8*t.k+64), a, lda, !transA, p0, t.k, ic, in, ts.rows)
				}
				step := parts(in, ts.rows)
				if packA {
					step = ts.rows
				}
				for j := 0; j < jn; j += nr {
					jw := min(nr, jn-j)
					v := (jw + ts.lanes - 1) / ts.lanes
					if packB {
						t.b = at(ws.b, j*t.k)
					} else {
						t.b = at(b, p0*ldb+jc+j)
					}
					for i := 0; i < in; i += step {
						switch {
						case packA:
							t.a, t.ars, t.acs = at(ws.a, i*t.k), 4, uintptr(4*ts.rows)
						case transA:
							t.a, t.ars, t.acs = at(a, p0*lda+ic+i), 4, uintptr(4*lda)
						default:
							t.a, t.ars, t.acs = at(a, (ic+i)*lda+p0), uintptr(4*lda), 4
						}
						t.c = at(c, (ic+i)*ldc+jc+j)
						t.run(w, min(step, in-i), v, jw-(v-1)*ts.lanes)
					}
				}
			}
		}
	}
}

// packPanels copies rows p0…p0+k and columns j0…j0+n of op(B) into panels of
// width columns, each k × width. What a panel has beyond n is left as it is.
func packPanels(dst, b []float32, ldb int, trans bool, p0, k, j0, n, width int) {
	for j := 0; j < n; j += width {
		jw := min(width, n-j)
		panel := dst[j*k:]
		if !trans {
			src := b[p0*ldb+j0+j:]
			for p := range k {
				copy(panel[p*width:p*width+jw], src[p*ldb:])
			}
			continue
		}
		q, k8 := 0, k&^7
		for ; q+8 <= jw && k8 > 0; q += 8 {
			transpose8(&panel[q], uintptr(4*width), &b[(j0+j+q)*ldb+p0], uintptr(4*ldb), k8/8)
			for i := range 8 {
				src := b[(j0+j+q+i)*ldb+p0:]
				for p := k8; p < k; p++ {
					panel[p*width+q+i] = src[p]
				}
			}
		}
		for ; q < jw; q++ {
			for p, v := range b[(j0+j+q)*ldb+p0 : (j0+j+q)*ldb+p0+k] {
				panel[p*width+q] = v
			}
		}
	}
}

// gemmDots adds A·Bᵀ to C by inner products: both are read along their rows and
// nothing is packed, which pays when A has few rows.
func gemmDots(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	w := widthFor(k)
	d := dots{ars: uintptr(4 * lda), rows: 1, images: 1, crs: uintptr(4 * ldc)}
	d.taps(uintptr(4*ldb), uintptr(8*ldb))
	d.cut(w, k)
	step := parts(m, w.dotRows())
	for j := 0; j < n; j += 3 {
		for i := 0; i < m; i += step {
			d.a, d.b, d.c = at(a, i*lda), at(b, j*ldb), at(c, i*ldc+j)
			d.run(w, min(step, m-i), min(3, n-j))
		}
	}
}

func (w width) dotRows() int {
	if w == ymm {
		return 3
	}
	return 8
}

func (d *dots) taps(one, two uintptr) { d.tap1, d.tap2 = one, two }

// cut sets the vectors of a row of n elements.
func (d *dots) cut(w width, n int) {
	lanes := w.tile().lanes
	d.vectors, d.tail, d.lanes = n/lanes, 1<<(n%lanes)-1, lanes256(n%lanes%8)
}

func (d *dots) run(w width, r, v int) {
	switch w {
	case zmm:
		dots512z(d, r, v)
	case ymm32:
		dots512y(d, r, v)
	default:
		dots256(d, r, v)
	}
}
