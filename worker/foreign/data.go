package foreign

import (
	"cmp"
	"fmt"

	"star/train"
)

// Data is the data set of a program as the agent knows it: the number of its samples. A batch has
// sample numbers in Tokens.
type Data struct {
	name string
	n    int
}

// Train is the training set of the program.
func (m *Model) Train() *Data { return &Data{m.about.Data, int(m.about.Samples)} }

// Test is the test set of the program.
func (m *Model) Test() *Data { return &Data{m.about.Data, int(m.about.Tests)} }

// Name returns the program's name for the data.
func (d *Data) Name() string { return cmp.Or(d.name, "data of the program") }

// Len returns the number of samples. A test set may have none.
func (d *Data) Len() int { return d.n }

// Input says that samples are numbers.
func (d *Data) Input() train.Input {
	return train.Input{Shape: []int{1}, Classes: max(d.n, 1), Tokens: true}
}

// Fill puts the sample numbers into b. A number out of range is an error.
func (d *Data) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Samples = nil, nil, len(indices)
	b.Tokens = b.Tokens[:0]
	for _, i := range indices {
		if i < 0 || i >= d.n {
			return fmt.Errorf("foreign: %s has no sample %d: it has %d", d.name, i, d.n)
		}
		b.Tokens = append(b.Tokens, int32(i))
	}
	return nil
}
