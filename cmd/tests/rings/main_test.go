// Package rings tests jobs with all-reduce.
package rings

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
