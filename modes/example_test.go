package modes_test

import (
	"fmt"

	"star/modes"
)

// Four workers under SSGD. Worker 2 is slow; the plan changes while others wait
// for it, and the two that wait go at once.
func ExampleBarrier() {
	b := modes.NewBarrier(modes.SSGD(4), 4, 0)
	fmt.Println(b.Arrive(0), b.Arrive(3), "waiting for", b.Missing())
	fmt.Println(b.Install(modes.XOrder(4, 2)))
	// Output:
	// [] [] waiting for [1 2]
	// [{1 [0 3] [] [] [] [] false}]
}
