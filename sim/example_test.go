package sim_test

import (
	"fmt"
	"time"

	"star/modes"
	"star/sim"
)

// Four workers train in virtual time until they have made the progress of 100 synchronous updates; worker 3 takes three
// times as long as the others.
// Synchronous updates wait for it, asynchronous ones do not.
func ExampleRun() {
	for _, mode := range []string{"ssgd", "asgd"} {
		scenario, err := sim.ParseScenario("example.yaml", []byte(`
workers: 4
iteration: 100ms
times: {3: 300ms}
learner: {kind: tally}
target: 100
limit: 1h
`))
		if err != nil {
			panic(err)
		}
		config, err := scenario.Config(nil, 1)
		if err != nil {
			panic(err)
		}
		if config.Plan, err = modes.Parse(mode, 4); err != nil {
			panic(err)
		}
		result, err := sim.Run(config)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: %d updates in %v, %.0f %% of the workers' time waiting\n", mode, result.Updates, result.Time.Round(100*time.Millisecond), 100*result.Waiting)
	}
	// Output:
	// ssgd: 100 updates in 30.1s, 50 % of the workers' time waiting
	// asgd: 341 updates in 10.4s, 0 % of the workers' time waiting
}
