// Package network tests jobs on several hosts, most of them network namespaces, and TLS.
package network

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
