package net

import (
	"fmt"
	"slices"

	"star/train"
)

// features refuses tokens.
func features(in train.Input) error {
	if in.Tokens {
		return fmt.Errorf("it takes features, and the data set has tokens; take lstm or transformer, or another data set")
	}
	return nil
}

func init() {
	register(definition{
		name:  "softmax",
		about: "softmax regression: one linear layer",
		fits:  features,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			return []Layer{Linear(b, "linear", b.Input, b.Vocab, Identity)}, nil
		},
	})
	register(definition{
		name:     "mlp",
		about:    "perceptron with ReLU",
		settings: []setting{{"hidden", []int{256, 128}, "widths of the hidden layers", 1, 1 << 16}},
		fits:     features,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			var layers []Layer
			shape := b.Input
			for i, n := range slices.Concat(s.ints("hidden"), []int{b.Vocab}) {
				act := ReLU
				if i == len(s.ints("hidden")) {
					act = Identity
				}
				l := Linear(b, fmt.Sprintf("fc%d", i+1), shape, n, act)
				layers, shape = append(layers, l), l.Out()
			}
			return layers, nil
		},
	})
}
