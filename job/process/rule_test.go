package process

import (
	"testing"

	"star/internal/settings"
	"star/job"
	"star/modes/baseline"
	"star/transport/wire"
)

// A given value is what is trained with, also a zero; and what the settings allow the wire can say.
func TestZeroIsARate(t *testing.T) {
	for _, name := range []string{"sgd", "momentum", "nesterov", "adam", "adamw"} {
		_, rate, err := UpdateRule(&job.Job{Rule: job.Rule{Optimizer: name, LR: 0, Momentum: 0.9, Schedule: "constant"}})
		if err != nil || rate.At(0) != 0 {
			t.Errorf("%s with a learning rate of 0: %v, %v", name, rate.At(0), err)
		}
	}
	for _, o := range []baseline.Outer{{Rate: 0}, {Rate: 0, Momentum: 0.9}} {
		if rate, err := Outer(o).Rate(); err != nil || rate.At(0) != 0 {
			t.Errorf("outer %+v: %v, %v", o, rate.At(0), err)
		}
	}
	if settings.MaxMembers != wire.MaxWorkers {
		t.Errorf("settings allow %d workers, the wire %d", settings.MaxMembers, wire.MaxWorkers)
	}
}
