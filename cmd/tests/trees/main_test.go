// Package trees tests jobs that add gradients up on their way.
package trees

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
