package train_test

import (
	"context"
	"fmt"
	"math"

	"star/train"
)

// A Model of the caller's own separates negative numbers from others. The caller owns the gradient and changes the
// parameters; here plain descent takes the place of a job.
func Example() {
	ctx := context.Background()
	var m train.Model = &line{params: make([]float32, 2)}
	var d train.Data = numbers{}

	var b train.Batch
	if err := d.Fill(&b, []int{0, 3, 4, 7}); err != nil {
		fmt.Println(err)
		return
	}
	gradient := make([]float32, len(m.Params()))
	for range 100 {
		if _, err := m.Grad(ctx, gradient, b); err != nil {
			fmt.Println(err)
			return
		}
		for i, g := range gradient {
			m.Params()[i] -= g
		}
	}
	r, err := m.Eval(ctx, b)
	fmt.Println(m.Layout()[0].Name, m.Layout()[1].Name, r.Correct, "of", r.Count, err)
	// Output:
	// slope bias 4 of 4 <nil>
}

// numbers are -4 to 3. The class of those that are not negative is 1.
type numbers struct{}

func (numbers) Len() int { return 8 }

func (numbers) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Samples = b.X[:0], b.Y[:0], len(indices)
	for _, i := range indices {
		b.X, b.Y = append(b.X, float32(i-4)), append(b.Y, int32(i/4))
	}
	return nil
}

// line is a logistic regression on one number.
type line struct{ params []float32 }

func (m *line) Params() []float32                { return m.params }
func (m *line) Buffers() []float32               { return nil }
func (m *line) BufferLayout() []train.TensorSpec { return nil }
func (m *line) Close() error                     { return nil }

func (m *line) Layout() []train.TensorSpec {
	return []train.TensorSpec{{Name: "slope", Shape: []int{1}}, {Name: "bias", Shape: []int{1}, Offset: 1}}
}

// each calls f with the loss of each sample and its derivative by the score.
func (m *line) each(b train.Batch, f func(x float32, loss, slope float64)) {
	for i, x := range b.X {
		score, y := float64(m.params[0]*x+m.params[1]), float64(b.Y[i])
		f(x, math.Log1p(math.Exp(-math.Abs(score)))+max(score, 0)-y*score, 1/(1+math.Exp(-score))-y)
	}
}

func (m *line) Grad(_ context.Context, grad []float32, b train.Batch) (loss float64, err error) {
	clear(grad)
	m.each(b, func(x float32, l, slope float64) {
		loss += l / float64(b.Samples)
		grad[0] += float32(slope) * x / float32(b.Samples)
		grad[1] += float32(slope) / float32(b.Samples)
	})
	return loss, nil
}

func (m *line) Eval(_ context.Context, b train.Batch) (r train.Result, err error) {
	m.each(b, func(_ float32, loss, slope float64) {
		r.LossSum, r.Count = r.LossSum+loss, r.Count+1
		if math.Abs(slope) < 0.5 {
			r.Correct++
		}
	})
	return r, nil
}
