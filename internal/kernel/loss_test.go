package kernel

import (
	"math"
	"testing"
)

func xentNaive(x []float64, labels []int32, cols int) (mean float64, count int) {
	for r, y := range labels {
		if y < 0 {
			continue
		}
		row := x[r*cols : (r+1)*cols]
		top := math.Inf(-1)
		for _, v := range row {
			top = math.Max(top, v)
		}
		var s float64
		for _, v := range row {
			s += math.Exp(v - top)
		}
		mean += top + math.Log(s) - row[y]
		count++
	}
	return mean / float64(max(count, 1)), count
}

func TestSoftmaxXentAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, cols := range []int{1, 2, 10, 65} {
			x := random(6*cols, 1)
			labels := []int32{0, -1, int32(cols - 1), int32(cols / 2), -1, 0}
			dx := random(len(x), 2)
			l := SoftmaxXent(dx, x, labels, cols)
			want, count := xentNaive(widen(x), labels, cols)
			if l.Count != count || math.Abs(l.Mean()-want) > 1e-6 {
				t.Fatalf("%d columns: %+v, want mean %v of %d", cols, l, want, count)
			}
			wantNear(t, "dx", dx, gradient(widen(x), func(x []float64) float64 { m, _ := xentNaive(x, labels, cols); return m }), 1e-6)
			if f := SoftmaxXent(nil, x, labels, cols); f != l {
				t.Errorf("without gradient %+v, with %+v", f, l)
			}
			correct := 0
			for r, y := range labels {
				if y >= 0 {
					best, _ := argMax(x[r*cols : (r+1)*cols])
					if best == int(y) {
						correct++
					}
				}
			}
			if l.Correct != correct {
				t.Errorf("correct %d, want %d", l.Correct, correct)
			}
			SoftmaxXent(x, x, labels, cols) // in place
			for i := range x {
				if x[i] != dx[i] {
					t.Fatalf("in place: dx[%d] = %v, want %v", i, x[i], dx[i])
				}
			}
		}
	})
}

// Each row is shifted by its own maximum: gorgonia shifts by another's, and its
// loss is NaN here.
func TestSoftmaxXentOfHugeLogits(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		x := []float32{0, 1, 2, 1000, 3e38, 5, -3e38, 0, 1}
		dx := make([]float32, 9)
		l := SoftmaxXent(dx, x, []int32{2, 1, 2}, 3)
		want, _ := xentNaive(widen(x), []int32{2, 1, 2}, 3)
		if math.Abs(l.Mean()-want) > 1e-6 || !Finite(dx) {
			t.Errorf("mean %v, want %v; gradient %v", l.Mean(), want, dx)
		}
	})
}

func TestSoftmaxXentOfNaN(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			x := []float32{0, 1, 2, 3, bad, 5}
			dx := make([]float32, 6)
			l := SoftmaxXent(dx, x, []int32{0, 0}, 3)
			if l.Sum == l.Sum {
				t.Errorf("%v: loss %v, want NaN", bad, l.Sum)
			}
			if !Finite(dx[:3]) || Finite(dx[3:]) {
				t.Errorf("%v: gradient %v, want NaN in the second row only", bad, dx)
			}
		}
	})
}
