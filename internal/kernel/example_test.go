package kernel_test

import (
	"fmt"

	"star/internal/kernel"
)

// A linear layer keeps its weights as out × in: y = x·Wᵀ, with the rows of x the
// samples.
func ExampleGemm() {
	x := []float32{1, 2, 3, 4, 5, 6} // 2 samples of 3
	w := []float32{1, 0, 0, 0, 1, 0} // 2 outputs of 3
	y := []float32{10, 10, 10, 10}   // the initial value
	kernel.Gemm(false, true, 2, 2, 3, 1, x, 3, w, 3, 1, y, 2)
	fmt.Println(y)
	// Output: [11 12 14 15]
}

func ExampleConv() {
	s := kernel.Conv{N: 1, In: 1, H: 3, W: 3, Out: 1, KH: 3, KW: 3, Pad: 1}
	x := []float32{0, 0, 0, 0, 1, 0, 0, 0, 0}
	w := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	y := make([]float32, s.OutH()*s.OutW())
	s.Forward(y, x, w, nil)
	fmt.Println(y) // cross-correlation: the window comes out turned round
	// Output: [9 8 7 6 5 4 3 2 1]
}

// Rows with label -1 do not count: padding at the end of a sequence, say.
func ExampleSoftmaxXent() {
	logits := []float32{0, 0, 1000, 0, 7, 7}
	grad := make([]float32, len(logits))
	l := kernel.SoftmaxXent(grad, logits, []int32{1, 0, -1}, 2)
	fmt.Printf("%.4f of %d, gradient %v\n", l.Mean(), l.Count, grad)
	// Output: 0.3466 of 2, gradient [0.25 -0.25 0 0 0 0]
}
