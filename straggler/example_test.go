package straggler_test

import (
	"fmt"
	"time"

	"star"
	"star/straggler"
)

// Worker 2 of 3 computes three times as long as the others from step 10 on.
func ExampleDetector() {
	d, err := straggler.New(straggler.Config{Workers: 3})
	if err != nil {
		panic(err)
	}
	for step := range int64(40) {
		for w := range star.Worker(3) {
			compute := 100 * time.Millisecond
			if w == 2 && step >= 10 {
				compute *= 3
			}
			for _, e := range d.Observe(star.Record{Worker: w, Step: step, Compute: compute, Samples: 32, CPU: 1}) {
				fmt.Println(e)
			}
		}
	}
	v, slow := d.Verdict(2)
	fmt.Printf("slow: %v, %.1fx since step %d\n", slow, v.Slowdown, v.Since)
	// Output:
	// w2 3.0x slow since it 10: compute 300 ms, others 100 ms
	// slow: true, 3.0x since step 10
}
