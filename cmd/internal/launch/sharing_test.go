package launch

import (
	"strings"
	"testing"

	"star/cluster/inventory"
	"star/cluster/placement"
)

// Workers that share a GPU are named before anything starts.
func TestWorkersThatShareAGPU(t *testing.T) {
	shared := &Spread{Hosts: []inventory.Host{{Host: placement.Host{Name: "g", Capacity: placement.Resources{CPU: 4}, GPUs: []float64{1}}}},
		Jobs: []placement.Job{{Name: "star", Workers: []placement.Task{{GPU: 0.5}, {GPU: 0.5}}}}, part: 1}
	var err error
	if shared.Result, err = placement.Place(inventory.Places(shared.Hosts), shared.Jobs, placement.Options{}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(shared.Lines(), "\n"); !strings.Contains(text, "worker 1 does not have GPU 0 of g for itself: ") || !strings.Contains(text, "shares its GPU with star worker 0") {
		t.Errorf("shared: %s", text)
	}
}
