package measure

import (
	"testing"
	"time"

	"star"
)

// The host of a worker is its address without the port, or what a watched rank says before its process.
func TestPaceHosts(t *testing.T) {
	for peer, want := range map[string]string{"10.0.0.7:41000": "10.0.0.7", "[fd00::7]:41000": "fd00::7", "node-a, process 12": "node-a", "node-a": "node-a"} {
		p := NewPace(1, false)
		p.Join(0, peer)
		got := ""
		for step := range int64(400) {
			r := star.Record{Step: step, Compute: 300 * time.Millisecond, Samples: 1}
			if step >= 200 {
				r.Compute *= 2
			}
			for _, line := range p.Observe(time.Duration(step)*400*time.Millisecond, &r) {
				if got = line.Hosts[0]; p.Slow() != line.Says || line.Event != "slow" || line.Parts[1].Now != 0.6 {
					t.Errorf("%q, %+v", p.Slow(), line)
				}
			}
		}
		if got != want {
			t.Errorf("%s: host %q, want %q", peer, got, want)
		}
	}
	none := NewPace(0, false)
	none.Plan("ssgd")
	none.Join(0, "a")
	none.Leave(0)
	if none.Observe(0, &star.Record{}) != nil || none.Slow() != "" {
		t.Error("a job without workers is judged")
	}
}
