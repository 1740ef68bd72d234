// Package chaos tests star-chaos on whole jobs.
package chaos

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
