package net_test

import (
	"context"
	"fmt"

	"star/train"
	"star/train/net"
)

// A model is two vectors: parameters that the caller overwrites, and a gradient.
func Example() {
	spec, err := net.Parse("mlp:hidden=16")
	if err != nil {
		fmt.Println(err)
		return
	}
	spec.Input = train.Input{Shape: []int{2}, Classes: 2}
	spec.Seed = 1
	model, err := net.Build(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	fmt.Println(model)

	xor := train.Batch{
		X:       []float32{0, 0, 0, 1, 1, 0, 1, 1},
		Y:       []int32{0, 1, 1, 0},
		Samples: 4,
	}
	ctx := context.Background()
	gradient := make([]float32, len(model.Params()))
	for range 400 {
		if _, err := model.Grad(ctx, gradient, xor); err != nil {
			fmt.Println(err)
			return
		}
		for i, g := range gradient {
			model.Params()[i] -= 0.5 * g
		}
	}
	r, err := model.Eval(ctx, xor)
	fmt.Println(r.Correct, "of", r.Count, err)
	// Output:
	// mlp:hidden=16, 82 parameters in 4 tensors, features [2], 2 classes
	// 4 of 4 <nil>
}
