// Package recovery tests jobs that go on after a loss: other coordinators, copies, restarts, preemption, shards that
// move.
package recovery

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
