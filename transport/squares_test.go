package transport

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"net"
	"testing"

	"star/transport/wire"
)

func sumSq(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}

// squaresOf is what squares makes of v, which comes in pieces that end there.
func squaresOf(v []float32, ends ...int) (sum uint32, sum2 float64) {
	q := squares{sumSq: sumSq}
	done := 0
	for _, end := range append(ends, len(v)) {
		ready := end
		if end < len(v) {
			ready &^= q.step() - 1
		}
		if ready > done {
			sum = q.more(sum, v[done:ready])
			done = ready
		}
	}
	return sum, q.total(v)
}

// The checksum is Sum, the squares are those of a plain loop, and their bits are the same wherever the stream was cut,
// for values of any size.
func TestSquares(t *testing.T) {
	v := make([]float32, 70_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range v {
		v[i] = float32(r.NormFloat64()) * float32(math.Exp2(float64(r.IntN(40)-20)))
	}
	for from := range 20 {
		if from == 10 { // from here on some that are too small, and at the end too large, to be squared in float32
			for i := range v {
				v[i] *= 1e-22
			}
			v[65_000] = 1e25
		}
		for _, n := range []int{0, 1, 63, 64, 65, 127, 128, 1000, 4096, 16383, 16384, 16385, 60_001} {
			x := v[from : from+n]
			want := sumSq(x)
			sum, whole := squaresOf(x)
			if sum != crc32.ChecksumIEEE(Floats(x)) || math.Abs(whole-want) > 1e-5*want {
				t.Fatalf("%d elements from %d: checksum %08x, squares %v; want %08x, %v", n, from, sum, whole, crc32.ChecksumIEEE(Floats(x)), want)
			}
			cut := []int{r.IntN(n + 1), 0}
			cut[1] = cut[0] + r.IntN(n-cut[0]+1)
			if s, q := squaresOf(x, cut...); s != sum || math.Float64bits(q) != math.Float64bits(whole) {
				t.Errorf("%d elements from %d, cut at %v: %08x, %v; in one piece %08x, %v", n, from, cut, s, q, sum, whole)
			}
		}
	}
}

// One element that is not finite, anywhere, is not lost in the sum; one that is as large or as small as a float32 can
// be is squared as it should.
func TestSquaresAreNotFinite(t *testing.T) {
	for _, n := range []int{1, 64, 300} {
		for i := range n {
			v := make([]float32, n)
			for j := range v {
				v[j] = 1
			}
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				v[i] = float32(bad)
				if _, got := squaresOf(v); got-got == 0 {
					t.Fatalf("%v at %d of %d: squares %v", bad, i, n, got)
				}
			}
			v[i] = math.MaxFloat32
			if _, got := squaresOf(v); math.Abs(got/(math.MaxFloat32*math.MaxFloat32)-1) > 1e-12 {
				t.Fatalf("the largest float32 at %d of %d: squares %v", i, n, got)
			}
			clear(v)
			v[i] = math.SmallestNonzeroFloat32
			if _, got := squaresOf(v); got != math.SmallestNonzeroFloat32*math.SmallestNonzeroFloat32 {
				t.Fatalf("the smallest float32 at %d of %d: squares %v", i, n, got)
			}
		}
	}
}

// ReadSquares is ReadPayload and the squares, over any Conn, with the same bits however the bytes come; it refuses what
// ReadPayload refuses.
func TestReadSquares(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	fresh := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	huge := fresh(50_048)
	huge[len(huge)-1] = 1e25 // its square is beyond float32
	vectors := [][]float32{fresh(50_001), fresh(50_001), huge, fresh(3), fresh(50_001)}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	send, recv := NewConn(near, Limits{}), NewConn(dribble{far, new(int)}, Limits{})
	go func() {
		for _, v := range vectors[:4] {
			Send(send, wire.Push{}, Floats(v))
		}
		SendSummed(send, wire.Push{}, Floats(vectors[4]), 1)
	}()
	for i, v := range vectors {
		got := make([]float32, len(v))
		f, err := recv.Recv()
		if err != nil || f.Kind != wire.KindPush {
			t.Fatal(f.Kind, err)
		}
		if i == 1 {
			if _, err := ReadSquares(recv, got[1:], sumSq); err == nil {
				t.Error("there was room for one element less")
			}
		}
		sum2, err := ReadSquares(recv, got, sumSq)
		_, want := squaresOf(v)
		switch {
		case i == 4:
			if err == nil {
				t.Error("a wrong checksum")
			}
		case err != nil:
			t.Fatal(err)
		case sum2 != want || Sum(Floats(got)) != Sum(Floats(v)):
			t.Errorf("%d elements: squares %v, want %v; the same elements: %v", len(v), sum2, want, Sum(Floats(got)) == Sum(Floats(v)))
		}
	}
}

// dribble is a stream that gives fewer bytes than were asked for, and not whole elements.
type dribble struct {
	net.Conn
	n *int
}

func (d dribble) Read(b []byte) (int, error) {
	*d.n++
	return d.Conn.Read(b[:min(len(b), 1+*d.n*7919%9001)])
}

func BenchmarkSquares(b *testing.B) {
	for _, n := range []int{16 << 10, 256 << 10, 25_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(i % 7)
			}
			b.SetBytes(4 * int64(n))
			for b.Loop() {
				squaresOf(v)
			}
		})
	}
}
