// Package slurm tests deploy/slurm/star.sbatch with Slurm itself.
package slurm

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
