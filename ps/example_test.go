package ps_test

import (
	"fmt"

	"star"
	"star/ps"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// A shard of three parameters holds the gradients of two workers until the coordinator names both, and then makes an
// update of their mean.
func ExampleShard() {
	sgd, err := optim.New(optim.Config{Name: "sgd", LR: 0.5}, 3)
	if err != nil {
		panic(err)
	}
	shard := ps.NewShard(3, &rule.Descent{Optimizer: sgd, Schedule: rule.Constant(0.5)}, inPlace{})
	shard.Load([]float32{1, 1, 1}, 0)
	for w, vec := range [][]float32{{1, 2, 3}, {3, 2, 1}} {
		if err := shard.Push(rule.Gradient{Worker: star.Worker(w), Samples: 32, Vec: vec}); err != nil {
			panic(err)
		}
	}
	fire := wire.Fire{Seq: 1, Version: 1, Gradients: []wire.Gradient{{Worker: 0, Weight: 0.5}, {Worker: 1, Weight: 0.5}}}
	if err := shard.Fire(&fire); err != nil {
		panic(err)
	}
	for e, ok := shard.Next(); ok; e, ok = shard.Next() {
		fmt.Println("version", e.Version, "for workers", e.Workers, "is", e.Params)
	}
	// Output:
	// version 1 for workers [0 1] is [0 0 0]
}

// inPlace is the Memory of a shard with parameters that have no other reader: updates overwrite them.
type inPlace struct{}

func (inPlace) Writable(params []float32) []float32 { return params }
func (inPlace) Written()                            {}
func (inPlace) Free([]float32)                      {}
