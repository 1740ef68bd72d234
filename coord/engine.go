package coord

import (
	"star/coord/engine"
	"star/coord/evaluate"
	"star/modes"
)

// Types of the engine that are part of this package's API.
type (
	Progress = engine.Progress
	Span     = engine.Span
	Scale    = engine.Scale
)

// ResidualPart is the file with a worker's residual: what its codec has left out.
type ResidualPart = evaluate.Residual

// RingPlan returns an error if an all-reduce cannot run p. It names what is unsupported, and an alternative.
func RingPlan(p modes.Plan) error { return engine.RingPlan(p) }

// ScaleFiring is a scale of the update rule (docs/theory.md).
const ScaleFiring = engine.ScaleFiring
