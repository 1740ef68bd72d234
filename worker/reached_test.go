package worker

import (
	"testing"

	"star/job"
	"star/transport/wire"
)

// A worker that listens on every interface tells others the one that leads to the coordinator: they could not come to
// [::]. Beside the coordinator that is its host, as each reader knows it.
func TestReached(t *testing.T) {
	for _, c := range []struct {
		coordinator, addr, want string
		others                  []string
		advertise               string
	}{
		{"127.0.0.1:7070", "[::]:4000,0.0.0.0:4001", ":4000,:4001", nil, ""}, // loopback would lead others to themselves
		{"127.0.1.1:7070", "[::]:4000", ":4000", nil, ""},
		{"127.0.0.1:7070", "10.1.2.3:4000,[::]:4001", "10.1.2.3:4000,:4001", nil, ""},
		{"127.0.0.1:7070", "127.0.0.1:4000", "127.0.0.1:4000", nil, ""},
		{"127.0.0.1:7070", "[::]:4000,127.0.0.1:4001", "node-a:4000,node-a:4001", nil, "node-a:7075"},
		{"127.0.0.1:7070", "", "", nil, ""}, // in no tree
		{"gone.invalid:7070", "[::]:4000", "127.0.0.1:4000", []string{"gone.invalid:7070", "127.0.0.1:7070"}, ""},
		{"gone.invalid:7070", "[::]:4000", "", nil, ""},
	} {
		j := &joining{Config: &Config{Job: job.Job{Network: job.Network{Coordinator: c.coordinator, Coordinators: c.others, Advertise: c.advertise}}}, hello: wire.Hello{Addr: c.addr}}
		got, err := j.reached(t.Context())
		if got != c.want || (err != nil) != (c.addr != "" && c.want == "") {
			t.Errorf("%q, on the way to %s: %q, %v, want %q", c.addr, c.coordinator, got, err, c.want)
		}
	}
}
