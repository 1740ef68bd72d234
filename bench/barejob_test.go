package bench

import (
	"os"
	"strings"
	"testing"

	"star/train"
)

// Processes of a bare job compute, exchange and end, however the vector is cut.
func TestBareJob(t *testing.T) {
	cfg := BareJobConfig{
		Command: []string{os.Args[0]}, Model: "mlp:hidden=7", Input: train.Input{Shape: []int{1, 5, 5}, Classes: 3},
		Batch: 2, Workers: 3, Servers: 2, Steps: bareWarm + 5,
	}
	times, err := BareJob(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(times) != 5 {
		t.Errorf("%d steps, want 5", len(times))
	}
	for _, x := range times {
		if x <= 0 {
			t.Errorf("steps of %v s", times)
			break
		}
	}
}

// The servers' parts are whole elements and together the whole vector.
func TestBareParts(t *testing.T) {
	for params := 1; params < 50; params++ {
		for servers := 1; servers < 6; servers++ {
			p, at := bareProcess{Params: params, BareJobConfig: BareJobConfig{Servers: servers}}, 0
			for i := range servers {
				from, to := p.part(i)
				if from != at || to < from || to%4 != 0 {
					t.Fatalf("%d elements on %d servers: part %d is bytes [%d,%d), the one before ends at %d", params, servers, i, from, to, at)
				}
				at = to
			}
			if at != 4*params {
				t.Fatalf("%d elements on %d servers: %d bytes", params, servers, at)
			}
		}
	}
}

// The error of a bare job comes from the process that noticed it.
func TestBareJobFails(t *testing.T) {
	good := BareJobConfig{
		Command: []string{os.Args[0]}, Model: "mlp", Input: train.Input{Shape: []int{1, 5, 5}, Classes: 3}, Batch: 2, Workers: 1, Servers: 1, Steps: 2,
	}
	for want, change := range map[string]func(*BareJobConfig){
		"0 workers":         func(c *BareJobConfig) { c.Workers = 0 },
		"perceptron":        func(c *BareJobConfig) { c.Model = "perceptron" },
		"server 0 said no":  func(c *BareJobConfig) { c.Command = []string{"/bin/false"} },
		"/nowhere":          func(c *BareJobConfig) { c.Command = []string{"/nowhere"} },
		"batches of 0":      func(c *BareJobConfig) { c.Batch = 0 },
		"0 servers, 2 step": func(c *BareJobConfig) { c.Servers = 0 },
	} {
		cfg := good
		change(&cfg)
		if _, err := BareJob(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
