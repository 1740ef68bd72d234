package main

import (
	"strings"
	"testing"

	"star/cluster/inventory"
	"star/cluster/placement"
)

// Workers that share a GPU are named before anything starts.
func TestWorkersThatShareAGPU(t *testing.T) {
	shared := &spread{hosts: []inventory.Host{{Host: placement.Host{Name: "g", Capacity: placement.Resources{CPU: 4}, GPUs: []float64{1}}}},
		jobs: []placement.Job{{Name: "star", Workers: []placement.Task{{GPU: 0.5}, {GPU: 0.5}}}}, part: 1}
	var err error
	if shared.result, err = placement.Place(inventory.Places(shared.hosts), shared.jobs, placement.Options{}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(shared.lines(), "\n"); !strings.Contains(text, "worker 1 does not have GPU 0 of g for itself: ") || !strings.Contains(text, "shares its GPU with star worker 0") {
		t.Errorf("shared: %s", text)
	}
}
