package compress

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"star/internal/kernel"
)

// product is a rows×cols matrix of the given rank, plus noise of relative size eps.
func product(rows, cols, rank int, eps float32, seed uint64) []float32 {
	a, b := randoms(rows*rank, seed), randoms(rank*cols, seed+1)
	m := randoms(rows*cols, seed+2)
	for i := range rows {
		for j := range cols {
			s := m[i*cols+j] * eps * 0.01
			for k := range rank {
				s += a[i*rank+k] * b[k*cols+j]
			}
			m[i*cols+j] = s
		}
	}
	return m
}

func norm(x []float32) float64 { return math.Sqrt(kernel.SumSq(x)) }

func difference(a, b []float32) float64 {
	d := slices.Clone(a)
	kernel.Axpy(-1, b, d)
	return norm(d)
}

func TestMatrices(t *testing.T) {
	tensors := []Tensor{{0, []int{4, 3}}, {12, []int{5}}, {17, []int{2, 3, 2}}, {29, []int{0, 7}}, {29, []int{3, 1}}}
	for _, c := range []struct {
		from, to int
		want     string
	}{
		{0, 32, "[{0 4 3} {17 2 6} {29 3 1}]"},
		{0, 12, "[{0 4 3}]"},
		{1, 32, "[{2 3 3} {16 2 6} {28 3 1}]"},
		{3, 11, "[{0 2 3}]"},
		{4, 8, "[]"},
		{4, 24, "[{2 2 3} {13 1 6}]"},
		{12, 17, "[]"},
		{18, 30, "[{5 1 6} {11 1 1}]"},
		{32, 32, "[]"},
	} {
		if got := fmt.Sprint(Matrices(tensors, c.from, c.to)); got != c.want {
			t.Errorf("elements [%d, %d): %s, want %s", c.from, c.to, got, c.want)
		}
	}
}

func TestLowRankRefuses(t *testing.T) {
	for _, c := range []struct {
		say  string
		ms   []Matrix
		rank int
	}{
		{"rank 0", nil, 0},
		{"rank 65", nil, 65},
		{"matrix 0", []Matrix{{-1, 10, 10}}, 1},
		{"matrix 0", []Matrix{{1, 10, 100}}, 1},
		{"matrix 0", []Matrix{{0, 0, 10}}, 1},
		{"matrix 0", []Matrix{{0, 10, -1}}, 1},
		{"matrix 0", []Matrix{{0, math.MaxInt, math.MaxInt}}, 1},
		{"matrix 0", []Matrix{{1001, 1, 1}}, 1},
		{"matrix 1", []Matrix{{0, 20, 20}, {399, 20, 20}}, 1},
	} {
		if _, err := newPowerSGD(1000, c.ms, c.rank, 1); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("rank %d of %v: error %v, want %q", c.rank, c.ms, err, c.say)
		}
		if _, err := newAverager(1000, c.ms, c.rank, 1); err == nil {
			t.Errorf("rank %d of %v: newAverager gives no error", c.rank, c.ms)
		}
	}
}

// TestLowRankIsExact: a matrix of rank at most r arrives whole, and what is not a
// matrix arrives to the bit. The tolerance is for sums of 2000 float32 products.
func TestLowRankIsExact(t *testing.T) {
	for _, rank := range []int{1, 2, 4} {
		for _, of := range []int{0, 1, 2, 4} {
			if of > rank {
				continue
			}
			v := slices.Concat(randoms(7, 1), product(40, 30, of, 0, 3), randoms(5, 2), product(50, 2000, of, 0, 9), randoms(3, 4))
			ms := []Matrix{{7, 40, 30}, {1212, 50, 2000}}
			c, err := newPowerSGD(len(v), ms, rank, 1)
			if err != nil {
				t.Fatal(err)
			}
			got := decoded(t, c, v)
			for _, m := range ms {
				want := v[m.Offset:][:m.Rows*m.Cols]
				if d := difference(got[m.Offset:][:m.Rows*m.Cols], want); !(d <= 1e-4*norm(want)) {
					t.Errorf("rank %d of a matrix of rank %d: off by %v of %v", rank, of, d, norm(want))
				}
			}
			for _, s := range []span{{0, 7}, {1207, 1212}, {len(v) - 3, len(v)}} {
				if !slices.Equal(got[s.from:s.to], v[s.from:s.to]) {
					t.Errorf("rank %d: vector at %d did not arrive as it was", rank, s.from)
				}
			}
			if want := 4 * (rank*(40+30+50+2000) + 15); c.MaxBytes(len(v)) != want {
				t.Errorf("rank %d: %d bytes, want %d", rank, c.MaxBytes(len(v)), want)
			}
		}
	}
}

// TestPowerIterationFindsTheBest: the same matrix again and again is approximated
// as well as the singular value decomposition allows (Eckart and Young 1936).
func TestPowerIterationFindsTheBest(t *testing.T) {
	const rows, cols, rank = 60, 45, 3
	v := product(rows, cols, 5, 0.05, 7)
	d := mat.NewDense(rows, cols, nil)
	for i, x := range v {
		d.Set(i/cols, i%cols, float64(x))
	}
	var svd mat.SVD
	if !svd.Factorize(d, mat.SVDNone) {
		t.Fatal("gonum found no singular values")
	}
	best := 0.0
	for _, s := range svd.Values(nil)[rank:] {
		best += s * s
	}
	best = math.Sqrt(best)
	c, err := newPowerSGD(len(v), []Matrix{{0, rows, cols}}, rank, 1)
	if err != nil {
		t.Fatal(err)
	}
	first := difference(decoded(t, c, v), v)
	for range 200 {
		c.Encode(nil, v)
	}
	last := difference(decoded(t, c, v), v)
	if !(last <= 1.0001*best && last >= 0.9999*best) {
		t.Errorf("after 200 iterations the error is %v, the best is %v", last, best)
	}
	if first < 1.001*best {
		t.Errorf("the first error %v is already the best %v: this test shows nothing", first, best)
	}
}

// reference is a round of PowerSGD for all workers in float64, in the words of
// Vogels et al. 2019, algorithms 1 and 2, for one matrix; q is cols×rank.
type reference struct {
	rows, cols, rank int
	e                []*mat.Dense
	q                *mat.Dense
}

func (r *reference) round(gs [][]float32) *mat.Dense {
	n := float64(len(gs))
	p := mat.NewDense(r.rows, r.rank, nil)
	for w, g := range gs {
		for i, x := range g {
			r.e[w].Set(i/r.cols, i%r.cols, r.e[w].At(i/r.cols, i%r.cols)+float64(x))
		}
		var mq mat.Dense
		mq.Mul(r.e[w], r.q)
		mq.Scale(1/n, &mq)
		p.Add(p, &mq)
	}
	// Gram-Schmidt, column by column.
	for c := range r.rank {
		v := mat.Col(nil, c, p)
		for j := range c {
			u := mat.Col(nil, j, p)
			d := mat.Dot(mat.NewVecDense(r.rows, u), mat.NewVecDense(r.rows, v))
			for i := range v {
				v[i] -= d * u[i]
			}
		}
		length := mat.Norm(mat.NewVecDense(r.rows, v), 2)
		for i := range v {
			p.Set(i, c, v[i]/length)
		}
	}
	mean := mat.NewDense(r.cols, r.rank, nil)
	for w := range gs {
		var q, back mat.Dense
		q.Mul(r.e[w].T(), p)
		back.Mul(p, q.T())
		r.e[w].Sub(r.e[w], &back)
		q.Scale(1/n, &q)
		mean.Add(mean, &q)
	}
	r.q = mean
	var out mat.Dense
	out.Mul(p, mean.T())
	return &out
}

// average is the all-reduce: all workers get the same bits.
func average(bufs [][]float32) {
	for i := range bufs[0] {
		var s float32
		for _, b := range bufs {
			s += b[i]
		}
		for _, b := range bufs {
			b[i] = s / float32(len(bufs))
		}
	}
}

// exchange is a round over all workers; each gets its own result.
func exchange(as []*Averager, gs [][]float32) [][]float32 {
	ps, qs, outs := make([][]float32, len(as)), make([][]float32, len(as)), make([][]float32, len(as))
	for w, a := range as {
		ps[w] = a.Project(gs[w])
	}
	average(ps)
	for w, a := range as {
		qs[w] = a.Refine()
	}
	average(qs)
	for w, a := range as {
		outs[w] = make([]float32, len(a.Residual()))
		a.Reconstruct(outs[w])
	}
	return outs
}

func averagers(t testing.TB, workers, n int, ms []Matrix, rank int) []*Averager {
	as := make([]*Averager, workers)
	for w := range as {
		var err error
		if as[w], err = newAverager(n, ms, rank, 42); err != nil {
			t.Fatal(err)
		}
	}
	return as
}

func TestAveragerIsThePaper(t *testing.T) {
	const rows, cols, rank, workers = 24, 31, 3, 4
	as := averagers(t, workers, rows*cols, []Matrix{{0, rows, cols}}, rank)
	ref := &reference{rows: rows, cols: cols, rank: rank, q: mat.NewDense(cols, rank, nil)}
	for i, x := range as[0].l.second {
		ref.q.Set(i%cols, i/cols, float64(x))
	}
	for range workers {
		ref.e = append(ref.e, mat.NewDense(rows, cols, nil))
	}
	for s := range uint64(10) {
		var gs [][]float32
		for w := range uint64(workers) {
			gs = append(gs, product(rows, cols, 5, 0.1, 100*s+w))
		}
		want := ref.round(gs)
		for w, out := range exchange(as, gs) {
			off, size := 0.0, 0.0
			for i, x := range out {
				d := float64(x) - want.At(i/cols, i%cols)
				off, size = off+d*d, size+want.At(i/cols, i%cols)*want.At(i/cols, i%cols)
			}
			if !(math.Sqrt(off) <= 1e-4*math.Sqrt(size)) {
				t.Errorf("step %d: worker %d is off by %v of %v", s, w, math.Sqrt(off), math.Sqrt(size))
			}
			off, size = 0, 0
			for i, x := range as[w].Residual() {
				e := ref.e[w].At(i/cols, i%cols)
				off, size = off+(float64(x)-e)*(float64(x)-e), size+e*e
			}
			if !(math.Sqrt(off) <= 1e-4*math.Sqrt(size)) {
				t.Errorf("step %d: the residual of worker %d is off by %v of %v", s, w, math.Sqrt(off), math.Sqrt(size))
			}
		}
	}
}

// TestAveragerLosesNothing: all workers have the same bits, the mean of what is
// left is the mean of what was given minus what came out, and it does not grow.
func TestAveragerLosesNothing(t *testing.T) {
	const n, workers, steps = 5 + 20*50 + 9 + 30*12, 3, 60
	as := averagers(t, workers, n, []Matrix{{5, 20, 50}, {1014, 30, 12}}, 2)
	given, out := make([]float64, n), make([]float64, n)
	var residual float64
	for s := range uint64(steps) {
		var gs [][]float32
		for w := range uint64(workers) {
			g := randoms(n, 100*s+w)
			gs = append(gs, g)
			for i, x := range g {
				given[i] += float64(x) / workers
			}
		}
		outs := exchange(as, gs)
		for w := range outs {
			if !bitsEqual(outs[w], outs[0]) {
				t.Fatalf("step %d: workers 0 and %d have different results", s, w)
			}
		}
		for i, x := range outs[0] {
			out[i] += float64(x)
		}
		if s == steps/2 {
			residual = norm(as[0].Residual())
		}
	}
	worst := 0.0
	for i := range given {
		left := 0.0
		for _, a := range as {
			left += float64(a.Residual()[i]) / workers
		}
		worst = max(worst, math.Abs(out[i]+left-given[i]))
	}
	if !(worst <= 1e-5) {
		t.Errorf("sent + left is off by %v", worst)
	}
	if last := norm(as[0].Residual()); !(last <= 3*residual) {
		t.Errorf("the residual grew from %v to %v in %d steps", residual, last, steps/2)
	}
	if !slices.Equal(as[0].Residual()[:5], make([]float32, 5)) {
		t.Error("a part that is averaged exactly left a residual")
	}
}

// TestAveragerOutlivesNaN: all workers see it, and only in that matrix, and in the next round no worker does.
func TestAveragerOutlivesNaN(t *testing.T) {
	const n = 4 + 20*20 + 20*20
	as := averagers(t, 2, n, []Matrix{{4, 20, 20}, {404, 20, 20}}, 2)
	for _, bad := range []float32{float32(math.NaN()), inf} {
		gs := [][]float32{randoms(n, 1), randoms(n, 2)}
		gs[1][100] = bad
		for w, out := range exchange(as, gs) {
			if kernel.Finite(out[100:101]) || !kernel.Finite(out[:4]) || !kernel.Finite(out[404:]) {
				t.Errorf("worker %d: %v at 100 arrived as %v, or elsewhere", w, bad, out[100])
			}
		}
		for w, out := range exchange(as, [][]float32{randoms(n, 1), randoms(n, 2)}) {
			if !kernel.Finite(out) || !kernel.Finite(as[w].Residual()) {
				t.Errorf("worker %d: %v is still there a round later", w, bad)
			}
		}
	}
}

func TestAveragerOrder(t *testing.T) {
	for name, wrong := range map[string]func(a *Averager){
		"Refine":             func(a *Averager) { a.Refine() },
		"Reconstruct":        func(a *Averager) { a.Reconstruct(make([]float32, 9)) },
		"Project":            func(a *Averager) { a.Project(nil); a.Project(nil) },
		"made for 9":         func(a *Averager) { a.Project(make([]float32, 8)) },
		"made for 9 (again)": func(a *Averager) { a.Project(nil); a.Refine(); a.Reconstruct(make([]float32, 8)) },
	} {
		func() {
			defer func() {
				say, _, _ := strings.Cut(name, " (")
				if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "compress: ") || !strings.Contains(p, say) {
					t.Errorf("%s: panic %q", name, p)
				}
			}()
			wrong(averagers(t, 1, 9, nil, 1)[0])
		}()
	}
}

func TestOrthogonalColumns(t *testing.T) {
	const rows, rank = 100, 6
	m := factored{Matrix: Matrix{0, rows, 50}, p: randoms(rows*rank, 1), seed: 5}
	// Nearly parallel, parallel and zero columns.
	for i := range rows {
		m.p[rows+i] = m.p[i] * (1 + 1e-3*m.p[2*rows+i])
		m.p[3*rows+i] = -2 * m.p[i]
		m.p[4*rows+i] = 0
	}
	m.orthogonalise(make([]float64, rows*rank), rank)
	for a := range rank {
		for b := range a + 1 {
			want := 0.0
			if a == b {
				want = 1
			}
			if d := kernel.Dot(m.p[a*rows:][:rows], m.p[b*rows:][:rows]); !(math.Abs(d-want) <= 1e-6) {
				t.Errorf("columns %d and %d: inner product %v, want %v", a, b, d, want)
			}
		}
	}
}

// TestLowRankTrains is gradient descent on |A·W − B|² by two workers with
// different data, at rank 1.
func TestLowRankTrains(t *testing.T) {
	const d, samples, steps, rate = 24, 40, 600, 0.3
	target := randoms(d*d, 1)
	var xs [2][]float32
	for w := range xs {
		xs[w] = randoms(samples*d, uint64(w)+10)
		kernel.Scale(100, xs[w])
	}
	as := averagers(t, 2, d*d, []Matrix{{0, d, d}}, 1)
	w := make([]float32, d*d)
	for range steps {
		var gs [][]float32
		for i := range as {
			diff, pred, g := slices.Clone(w), make([]float32, samples*d), make([]float32, d*d)
			kernel.Axpy(-1, target, diff)
			kernel.Gemm(false, false, samples, d, d, 1, xs[i], d, diff, d, 0, pred, d)
			kernel.Gemm(true, false, d, d, samples, 1./samples, xs[i], d, pred, d, 0, g, d)
			gs = append(gs, g)
		}
		kernel.Axpy(-rate/8, exchange(as, gs)[0], w)
	}
	if left := difference(w, target) / norm(target); !(left <= 0.1) {
		t.Errorf("after %d steps %.3f of the distance is left", steps, left)
	}
}

// newPowerSGD is for slices of n values that contain the given matrices, in order.
func newPowerSGD(n int, matrices []Matrix, rank int, seed uint64) (*PowerSGD, error) {
	l, err := newLowRank(n, matrices, rank, seed)
	return &PowerSGD{l}, err
}

// newAverager is AveragerOver with a residual of zeros.
func newAverager(n int, matrices []Matrix, rank int, seed uint64) (*Averager, error) {
	return AveragerOver(make([]float32, n), matrices, rank, seed)
}
