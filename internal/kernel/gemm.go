package kernel

import "fmt"

// Gemm computes C = alpha·op(A)·op(B) + beta·C for row-major matrices: op(A) is
// m×k, op(B) is k×n, C is m×n, and op(X) is X or, with trans, its transpose. lda,
// ldb and ldc are the distances between rows as stored, in elements. beta = 0
// overwrites C without reading it. C must not overlap A or B.
//
// It may be called from many goroutines and uses the calling one only.
//
// The sums over k are float32, in an order that depends on the shape and on the
// implementation ([Name]), not on the values.
func Gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	ra, ca, rb, cb := m, k, k, n
	if transA {
		ra, ca = k, m
	}
	if transB {
		rb, cb = n, k
	}
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("kernel: Gemm: negative size m=%d n=%d k=%d", m, n, k))
	}
	checkMatrix("A", len(a), ra, ca, lda)
	checkMatrix("B", len(b), rb, cb, ldb)
	checkMatrix("C", len(c), m, n, ldc)
	if m == 0 || n == 0 {
		return
	}
	if k == 0 || alpha == 0 {
		scaleRows(m, n, beta, c, ldc)
		return
	}
	gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}

func checkMatrix(name string, length, rows, cols, ld int) {
	if ld < max(cols, 1) {
		panic(fmt.Sprintf("kernel: Gemm: rows of %s have %d columns and are %d elements apart", name, cols, ld))
	}
	if rows > 0 && cols > 0 && length < (rows-1)*ld+cols {
		panic(fmt.Sprintf("kernel: Gemm: %s has %d elements, %d×%d with rows %d apart needs %d", name, length, rows, cols, ld, (rows-1)*ld+cols))
	}
}

func scaleRows(m, n int, beta float32, c []float32, ldc int) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		if beta == 0 {
			clear(row)
		} else if beta != 1 {
			vScale(beta, row)
		}
	}
}

// gemmGo is the plain Go matrix product: op(A)·alpha and four columns of op(B)
// at a time are copied into order, and two rows meet four columns in eight
// registers.
func gemmGo(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	scaleRows(m, n, beta, c, ldc)
	w := getWork()
	defer putWork(w)
	const kc = 256
	for p0 := 0; p0 < k; p0 += kc {
		kb := min(kc, k-p0)
		pa := grow(&w.a, (m+m&1)*kb)
		for i := range m {
			row := pa[i*kb : (i+1)*kb]
			if transA {
				for p := range row {
					row[p] = alpha * a[(p0+p)*lda+i]
				}
			} else {
				for p, v := range a[i*lda+p0 : i*lda+p0+kb] {
					row[p] = alpha * v
				}
			}
		}
		clear(pa[m*kb:])
		pb := grow(&w.b, 4*kb)
		for j0 := 0; j0 < n; j0 += 4 {
			nb := min(4, n-j0)
			if nb < 4 {
				clear(pb)
			}
			if transB {
				for j := range nb {
					for p, v := range b[(j0+j)*ldb+p0 : (j0+j)*ldb+p0+kb] {
						pb[4*p+j] = v
					}
				}
			} else {
				for p := range kb {
					copy(pb[4*p:4*p+nb], b[(p0+p)*ldb+j0:])
				}
			}
			for i := 0; i < m; i += 2 {
				s := tileGo(pa[i*kb:(i+1)*kb], pa[(i+1)*kb:(i+2)*kb], pb)
				for r := range min(2, m-i) {
					row := c[(i+r)*ldc+j0 : (i+r)*ldc+j0+nb]
					for j := range row {
						row[j] += s[4*r+j]
					}
				}
			}
		}
	}
}

func tileGo(a, b, p []float32) (s [8]float32) {
	var c0, c1, c2, c3, d0, d1, d2, d3 float32
	b = b[:len(a)]
	for i, x := range a {
		y := b[i]
		q := p[4*i : 4*i+4 : 4*i+4]
		c0 += x * q[0]
		c1 += x * q[1]
		c2 += x * q[2]
		c3 += x * q[3]
		d0 += y * q[0]
		d1 += y * q[1]
		d2 += y * q[2]
		d3 += y * q[3]
	}
	return [8]float32{c0, c1, c2, c3, d0, d1, d2, d3}
}
