// Package kubernetes tests deploy/k8s with Kubernetes itself.
package kubernetes

import (
	"testing"

	"star/cmd/tests/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m) }
