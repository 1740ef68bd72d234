// Package faults tests processes that die, lie, flood and fill disks.
package faults

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
