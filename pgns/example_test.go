package pgns_test

import (
	"fmt"

	"star/pgns"
)

// Four workers have computed gradients of 32 samples each, at the same parameters. The norms of the gradients and of
// their mean say how noisy they are, and so how much of a larger batch is wasted.
func ExampleEstimator() {
	e, err := pgns.New(pgns.Config{})
	if err != nil {
		panic(err)
	}
	update := pgns.Update{Sum2: 1.75} // |ḡ|²
	for _, norm2 := range []float64{2.4, 2.6, 2.5, 2.5} {
		update.Gradients = append(update.Gradients, pgns.Gradient{Norm2: norm2, Samples: 32, Weight: 0.25})
	}
	if _, err := e.Observe(update); err != nil {
		panic(err)
	}
	n := e.Noise()
	fmt.Printf("|G|² %.2f, tr Σ %.1f: noise scale %.1f samples\n", n.Grad2, n.Var, n.Scale)
	fmt.Printf("an update of 128 samples makes %.2f of the progress of an exact gradient\n", 1/(1+n.Scale/128))
	// Output:
	// |G|² 1.50, tr Σ 32.0: noise scale 21.3 samples
	// an update of 128 samples makes 0.86 of the progress of an exact gradient
}
