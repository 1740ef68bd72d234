package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"star/internal/kernel"
)

// MaxRank is the greatest rank of PowerSGD. Vogels et al. use 1 to 4; the work
// grows with the rank, and its square for the orthogonalisation.
const MaxRank = 64

// Tensor is a tensor in a flat vector, row-major from element Offset on.
type Tensor struct {
	Offset int
	Shape  []int
}

// Matrix is a row-major matrix in a flat vector.
type Matrix struct{ Offset, Rows, Cols int }

// Matrices gives the matrices in elements [from, to) of a vector, with offsets
// from from. A tensor of two or more dimensions is a matrix with the rows of its
// first dimension, as in Vogels et al. 2019. Of a tensor that the cut divides,
// the rows that are whole are one.
func Matrices(tensors []Tensor, from, to int) []Matrix {
	var ms []Matrix
	for _, t := range tensors {
		if len(t.Shape) < 2 {
			continue
		}
		rows, cols := t.Shape[0], 1
		for _, d := range t.Shape[1:] {
			cols *= d
		}
		if rows < 1 || cols < 1 {
			continue
		}
		first := 0
		if from > t.Offset {
			first = (from - t.Offset + cols - 1) / cols
		}
		end := rows
		if to < t.Offset+rows*cols {
			end = max(to-t.Offset, 0) / cols
		}
		if first < end {
			ms = append(ms, Matrix{t.Offset + first*cols - from, end - first, cols})
		}
	}
	return ms
}

// factored is a matrix M and its approximation P·Qᵀ. P and Q are stored as their
// columns: p is r×Rows, q is r×Cols.
type factored struct {
	Matrix
	p, q []float32
	seed uint64
}

type span struct{ from, to int }

// lowRank is what the codec and the averager share: which parts of a vector of n
// elements are factored and which are sent as they are.
type lowRank struct {
	n, rank int
	ms      []factored
	raw     []span

	// first is all P and then the raw parts; second is all Q. Between two
	// vectors, second is the start of the next power iteration.
	first, second, rest []float32
	work                []float64 // of the orthogonalisation
}

func newLowRank(n int, matrices []Matrix, rank int, seed uint64) (*lowRank, error) {
	if rank < 1 || rank > MaxRank {
		return nil, fmt.Errorf("compress: powersgd: rank %d is not from 1 to %d", rank, MaxRank)
	}
	l := &lowRank{n: n, rank: rank}
	at, ps, qs, rest, longest := 0, 0, 0, 0, 0
	skip := func(to int) {
		if at < to {
			l.raw = append(l.raw, span{at, to})
			rest += to - at
		}
	}
	for i, m := range matrices {
		if m.Rows < 1 || m.Cols < 1 || m.Offset < at || m.Rows > (n-m.Offset)/m.Cols {
			return nil, fmt.Errorf("compress: powersgd: matrix %d (%d×%d at element %d) overlaps the one before it or ends beyond the %d elements; give the matrices of this slice in order", i, m.Rows, m.Cols, m.Offset, n)
		}
		if (m.Rows+m.Cols)*rank >= m.Rows*m.Cols {
			continue // the factors are no smaller
		}
		skip(m.Offset)
		at = m.Offset + m.Rows*m.Cols
		l.ms = append(l.ms, factored{Matrix: m, seed: mix64(seed + uint64(i)*0x9e3779b97f4a7c15)})
		ps, qs, longest = ps+rank*m.Rows, qs+rank*m.Cols, max(longest, m.Rows)
	}
	skip(n)
	l.first, l.second = make([]float32, ps+rest), make([]float32, qs)
	l.rest, l.work = l.first[ps:], make([]float64, rank*longest)
	ps, qs = 0, 0
	for i := range l.ms {
		m := &l.ms[i]
		m.p, m.q = l.first[ps:ps+rank*m.Rows], l.second[qs:qs+rank*m.Cols]
		ps, qs = ps+len(m.p), qs+len(m.q)
		m.restart()
	}
	return l, nil
}

// restart draws the start of the power iteration again. The numbers are uniform
// and not normal, as in the paper: any distribution with a density does, and
// uniform ones have the same bits on every processor.
func (m *factored) restart() {
	for i := range m.q {
		m.q[i] = float32(draw(m.seed, 0, i))
	}
}

// draw is the i-th number of a stream, in [-1, 1).
func draw(seed uint64, stream, i int) float64 {
	const weyl = 0x9e3779b97f4a7c15
	return float64(int64(mix64(mix64(seed+uint64(stream)*weyl)+uint64(i)*weyl))>>11) * 0x1p-52
}

// project is P ← M·Q.
func (m *factored) project(v []float32, rank int) {
	kernel.Gemm(false, true, rank, m.Rows, m.Cols, 1, m.q, m.Cols, v[m.Offset:], m.Cols, 0, m.p, m.Rows)
}

// refine is Q ← Mᵀ·P.
func (m *factored) refine(v []float32, rank int) {
	kernel.Gemm(false, false, rank, m.Cols, m.Rows, 1, m.p, m.Rows, v[m.Offset:], m.Cols, 0, m.q, m.Cols)
}

// orthogonalise makes the columns of P orthonormal by modified Gram-Schmidt. Of a
// column at least 10^-6 of its length is left or it is replaced, so in float64 no
// more than 10^-10 of orthogonality is lost (Å. Björck: Solving Linear Least
// Squares Problems by Gram-Schmidt Orthogonalization. BIT 7, 1967), less than
// float32 shows. A column that depends on those before it gives way to a random
// one, always the same: a matrix of lower rank keeps a direction in which it can
// grow. Additions are in a fixed order and products are rounded, so that equal P
// give equal results on all processors. A NaN or Inf leaves a NaN in P, and so
// all of Q becomes NaN.
func (m *factored) orthogonalise(work []float64, rank int) {
	for c := range rank {
		v := work[c*m.Rows:][:m.Rows]
		p := m.p[c*m.Rows:][:m.Rows]
		for i, x := range p {
			v[i] = float64(x)
		}
		if !normalise(v, work, m.Rows, c) {
			for try := 1; ; try++ {
				for i := range v {
					v[i] = draw(m.seed, try, c*m.Rows+i)
				}
				if normalise(v, work, m.Rows, c) {
					break
				}
			}
		}
		for i, x := range v {
			p[i] = float32(x)
		}
	}
}

// normalise takes the c columns of work out of v and makes its length 1. It is
// false if next to nothing is left, as of a column that was a combination of the
// others in float32.
func normalise(v, work []float64, rows, c int) bool {
	before := dot(v, v)
	for j := range c {
		u := work[j*rows:][:rows]
		d := dot(u, v)
		for i := range v {
			v[i] -= float64(d * u[i])
		}
	}
	after := dot(v, v)
	if after <= 1e-12*before {
		return false
	}
	s := 1 / math.Sqrt(after)
	for i := range v {
		v[i] *= s
	}
	return true
}

func dot(x, y []float64) float64 {
	var s [4]float64
	for len(x) >= 4 && len(y) >= 4 {
		s[0] += float64(x[0] * y[0])
		s[1] += float64(x[1] * y[1])
		s[2] += float64(x[2] * y[2])
		s[3] += float64(x[3] * y[3])
		x, y = x[4:], y[4:]
	}
	for i := range x {
		s[0] += float64(x[i] * y[i])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

// addProduct adds a·P·Qᵀ to the matrix in v.
func (m *factored) addProduct(v []float32, a float32, q []float32, rank int) {
	for i := range m.Rows {
		row := v[m.Offset+i*m.Cols:][:m.Cols]
		for c := range rank {
			kernel.Axpy(a*m.p[c*m.Rows+i], q[c*m.Cols:][:m.Cols], row)
		}
	}
}

func (l *lowRank) gather(v []float32) {
	rest := l.rest
	for _, s := range l.raw {
		rest = rest[copy(rest, v[s.from:s.to]):]
	}
}

// PowerSGD is low-rank compression as a [Codec], for parameter servers: a sender
// on its own replaces each a×b matrix M of its gradient by P·Qᵀ of rank r, with
//
//	P ← orthonormal(M·Q₋₁),  Q ← Mᵀ·P
//
// one step of subspace iteration from the Q of the gradient before (Vogels et al.
// 2019, algorithm 1), so 4·r·(a+b) bytes in place of 4·a·b. Vectors, and matrices
// that would not become smaller, are sent as they are. A matrix of rank at most
// r arrives whole, up to rounding. It is made for slices of one length and needs
// [Feedback]. Where many senders average, [Averager] is closer to the mean.
//
// On the wire, all float32: P of each matrix, column after column; the values
// that are not in such a matrix; Q of each matrix.
type PowerSGD struct{ l *lowRank }

var powerSGD = Entry{
	Name: "powersgd", Arg: "4", Loss: LeftOut, missing: "rank",
	make: func(name, arg string, s Slice, seed uint64) (Codec, error) {
		rank, err := strconv.Atoi(arg)
		if err != nil || rank < 1 || rank > MaxRank {
			return nil, fmt.Errorf("compress: codec %q: rank %q is not a number from 1 to %d", name, arg, MaxRank)
		}
		if len(s.Tensors) == 0 {
			return nil, fmt.Errorf("compress: codec %q needs the shapes of the tensors, which are not known here", name)
		}
		l, err := newLowRank(s.To-s.From, Matrices(s.Tensors, s.From, s.To), rank, seed)
		if err != nil {
			return nil, err
		}
		return &PowerSGD{l}, nil
	},
	average: func(arg string, e []float32, ms []Matrix, seed uint64) (*Averager, error) {
		rank, _ := strconv.Atoi(arg)
		return AveragerOver(e, ms, rank, seed)
	},
}

func (c *PowerSGD) remember() Memory { return Memory{Warm: append([]float32(nil), c.l.second...)} }

func (c *PowerSGD) recall(m Memory) error { return c.l.recall(m.Warm) }

// Name is powersgd=R.
func (c *PowerSGD) Name() string { return "powersgd=" + strconv.Itoa(c.l.rank) }

// MaxBytes implements Codec. n must be the length that the codec was made for.
func (c *PowerSGD) MaxBytes(n int) int {
	c.own(n)
	return 4 * (len(c.l.first) + len(c.l.second))
}

func (c *PowerSGD) own(n int) {
	if n != c.l.n {
		panic(fmt.Sprintf("compress: %s: %d values given, made for %d", c.Name(), n, c.l.n))
	}
}

// Encode implements Codec.
func (c *PowerSGD) Encode(dst []byte, src []float32) []byte {
	l := c.l
	dst, b := grow(dst, c.MaxBytes(len(src)))
	for i := range l.ms {
		m := &l.ms[i]
		m.project(src, l.rank)
		m.orthogonalise(l.work, l.rank)
		m.refine(src, l.rank)
	}
	l.gather(src)
	putF32(b, l.first)
	putF32(b[4*len(l.first):], l.second)
	for i := range l.ms {
		if m := &l.ms[i]; !kernel.Finite(m.q) {
			m.restart()
		}
	}
	return dst
}

// Decode implements Codec.
func (c *PowerSGD) Decode(dst []float32, src []byte) error {
	if want := c.MaxBytes(len(dst)); len(src) != want {
		return wrongLength(c.Name(), len(src), len(dst), want)
	}
	p, q := src, src[4*len(c.l.first):]
	for i := range c.l.ms {
		m := &c.l.ms[i]
		for row := range m.Rows {
			v := dst[m.Offset+row*m.Cols:][:m.Cols]
			clear(v)
			m.addRow(v, row, 0, c.l.rank, p, q)
		}
		p, q = p[4*len(m.p):], q[4*len(m.q):]
	}
	for _, s := range c.l.raw {
		getF32(dst[s.from:s.to], p)
		p = p[4*(s.to-s.from):]
	}
	return nil
}

// DecodeAdd implements Codec.
func (c *PowerSGD) DecodeAdd(dst []float32, scale float32, src []byte) error {
	if want := c.MaxBytes(len(dst)); len(src) != want {
		return wrongLength(c.Name(), len(src), len(dst), want)
	}
	var piece [1024]float32
	p, q := src, src[4*len(c.l.first):]
	for i := range c.l.ms {
		m := &c.l.ms[i]
		for row := range m.Rows {
			for lo := 0; lo < m.Cols; lo += len(piece) {
				v := piece[:min(len(piece), m.Cols-lo)]
				clear(v)
				m.addRow(v, row, lo, c.l.rank, p, q)
				kernel.Axpy(scale, v, dst[m.Offset+row*m.Cols+lo:][:len(v)])
			}
		}
		p, q = p[4*len(m.p):], q[4*len(m.q):]
	}
	for _, s := range c.l.raw {
		addF32(dst[s.from:s.to], scale, p)
		p = p[4*(s.to-s.from):]
	}
	return nil
}

// addRow adds the columns from lo on of a row of P·Qᵀ to v; p and q begin with
// the P and Q of m as sent.
func (m *factored) addRow(v []float32, row, lo, rank int, p, q []byte) {
	for r := range rank {
		a := math.Float32frombits(binary.LittleEndian.Uint32(p[4*(r*m.Rows+row):]))
		addF32(v, a, q[4*(r*m.Cols+lo):])
	}
}

// Averager is PowerSGD with error feedback for workers that average by
// all-reduce (Vogels et al. 2019, algorithms 1 and 2). A round is
//
//	p := a.Project(grad)   // Δ = grad + e;  P = Δ·Q
//	mean p over the workers, in place
//	q := a.Refine()        // P orthonormal;  Q = Δᵀ·P
//	mean q over the workers, in place
//	a.Reconstruct(dst)     // dst = P·Qᵀ;  e = Δ − P·Qᵀ with the worker's own Q
//
// The mean may be weighted, with weights that are the same for p and q, and may
// be a sum: then dst approximates the sum. Everything is linear in Δ but the
// orthogonalisation, which all do alike on the same bits: so dst is the projection of the mean of all Δ, equal on all
// workers to the bit if the means are, and the mean of all e is the mean of all
// Δ minus dst. (The authors' program keeps Δ − P·Q̄ᵀ with the mean Q̄; the
// sum over the workers is the same, but each e then also holds how the worker
// differs from the others, which grows from step to step.)
//
// Values that are in no matrix worth factoring ride in p and are averaged exactly.
// One goroutine at a time uses an Averager.
type Averager struct {
	l        *lowRank
	residual []float32 // e, between Project and Reconstruct Δ
	own      []float32 // this worker's Q
	phase    int
}

// AveragerOver returns an Averager for vectors of the residual's length, which keeps
// the rest in residual, and begins with its present content.
func AveragerOver(residual []float32, matrices []Matrix, rank int, seed uint64) (*Averager, error) {
	l, err := newLowRank(len(residual), matrices, rank, seed)
	if err != nil {
		return nil, err
	}
	return &Averager{l: l, residual: residual, own: make([]float32, len(l.second))}, nil
}

func (a *Averager) step(name string, phase int) {
	if a.phase != phase {
		panic("compress: Averager: " + name + " out of turn: a round is Project, Refine, Reconstruct")
	}
	a.phase = (phase + 1) % 3
}

// Project begins a round with this worker's gradient, which it does not change.
// A nil grad means zeros: the residual is sent without a new
// gradient. The slice returned is to be averaged in place before Refine.
func (a *Averager) Project(grad []float32) (p []float32) {
	if grad != nil && len(grad) != a.l.n {
		panic(fmt.Sprintf("compress: Averager: %d values given, made for %d", len(grad), a.l.n))
	}
	a.step("Project", 0)
	if grad != nil {
		kernel.Add(a.residual, grad)
	}
	for i := range a.l.ms {
		a.l.ms[i].project(a.residual, a.l.rank)
	}
	a.l.gather(a.residual)
	return a.l.first
}

// Refine continues after p is averaged. The slice returned is to be averaged in
// place before Reconstruct.
func (a *Averager) Refine() (q []float32) {
	a.step("Refine", 1)
	for i := range a.l.ms {
		m := &a.l.ms[i]
		m.orthogonalise(a.l.work, a.l.rank)
		m.refine(a.residual, a.l.rank)
	}
	copy(a.own, a.l.second)
	return a.l.second
}

// Reconstruct ends a round when q is averaged: it overwrites dst with the
// approximate mean and keeps what this worker's share of it left out. A matrix
// with NaN or Inf in it becomes NaN or Inf on all workers, and its residual and
// its Q are drawn again.
func (a *Averager) Reconstruct(dst []float32) {
	if len(dst) != a.l.n {
		panic(fmt.Sprintf("compress: Averager: %d values given, made for %d", len(dst), a.l.n))
	}
	a.step("Reconstruct", 2)
	l, own := a.l, a.own
	for i := range l.ms {
		m := &l.ms[i]
		clear(dst[m.Offset:][:m.Rows*m.Cols])
		m.addProduct(dst, 1, m.q, l.rank)
		m.addProduct(a.residual, -1, own[:len(m.q)], l.rank)
		own = own[len(m.q):]
		if !kernel.Finite(m.q) {
			m.restart()
		}
	}
	rest := l.rest
	for _, s := range l.raw {
		rest = rest[copy(dst[s.from:s.to], rest):]
		clear(a.residual[s.from:s.to])
	}
	if !kernel.Finite(a.residual) {
		zeroNonFinite(a.residual)
	}
}

// Scale is [Feedback.Scale].
func (a *Averager) Scale(s float32) { kernel.Scale(s, a.residual) }

// Residual is the sum of the values that were left out. The slice is shared: it is valid until
// the next call.
func (a *Averager) Residual() []float32 { return a.residual }
