package price_test

import (
	"fmt"
	"time"

	"star/modes"
	"star/modes/price"
)

// One of eight workers is twice as slow as the rest. Waiting for any seven lets
// an update take 600 ms and not 1200, at a mean staleness of 8/7 - 1.
func ExamplePaceOf() {
	times := make([]time.Duration, 8)
	for w := range times {
		times[w] = 600 * time.Millisecond
	}
	times[7] = 1200 * time.Millisecond
	for _, mode := range []string{"ssgd", "x=7", "asgd", "backup=1", "groups=0-6/7"} {
		p, err := modes.Parse(mode, 8)
		if err != nil {
			fmt.Println(err)
			return
		}
		pc, err := price.PaceOf(p, times)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%-12s every %v, staleness %.2f\n", p, pc.Interval, pc.Staleness)
	}
	// Output:
	// ssgd         every 1.2s, staleness 0.00
	// x=7          every 600ms, staleness 0.14
	// asgd         every 80ms, staleness 7.00
	// backup=1     every 600ms, staleness 0.00
	// groups=0-6/7 every 400ms, staleness 0.60
}
