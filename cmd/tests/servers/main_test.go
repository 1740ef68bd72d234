// Package servers tests jobs with parameter servers: modes, resuming, codecs, baselines.
package servers

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
