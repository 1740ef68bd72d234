package coord_test

import (
	"star/coord"
	"star/coord/pilot"
	"star/modes"
)

func init() {
	coord.RealPilot = func(workers int) coord.Pilot {
		// no parts of batches: the workers of these tests make whole ones
		p, err := pilot.New(pilot.Config{Workers: workers, Batch: 4, Plan: modes.SSGD(workers)})
		if err != nil {
			panic(err)
		}
		return p
	}
}
