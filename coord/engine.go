package coord

import (
	"star/coord/engine"
	"star/coord/evaluate"
	"star/modes"
)

// Progress, Span and Scale are the engine's.
type (
	Progress = engine.Progress
	Span     = engine.Span
	Scale    = engine.Scale
)

// ResidualPart is a worker's file of what its codec has left out.
type ResidualPart = evaluate.Residual

// RingPlan says whether p can be done by all-reduce. The error says what a ring cannot do, and what
// to take instead.
func RingPlan(p modes.Plan) error { return engine.RingPlan(p) }

// Scales of the update rule (docs/theory.md).
const (
	ScaleRound  = engine.ScaleRound
	ScaleFiring = engine.ScaleFiring
	ScaleDamped = engine.ScaleDamped

	ScaleWorkers = engine.ScaleWorkers
)
