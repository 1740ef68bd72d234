package server

import (
	"testing"

	"star/job"
)

// A server that listens everywhere and finds the coordinator on its own host is reached where the coordinator is, and
// not on loopback.
func TestAdvertise(t *testing.T) {
	for _, c := range []struct {
		job  job.Job
		addr string
		want string
	}{
		{job.Job{Rank: 1, Network: job.Network{Coordinator: "127.0.0.1:7070"}}, "[::]:7071", ":7071"},
		{job.Job{Rank: 0, Network: job.Network{Coordinator: "127.0.0.1:7070"}}, "0.0.0.0:7070", ":7070"},
		{job.Job{Rank: 1, Network: job.Network{Coordinator: "127.0.0.1:7070"}}, "10.0.0.1:7071", "10.0.0.1:7071"},
		{job.Job{Rank: 1, Network: job.Network{Coordinator: "127.0.0.1:7070"}}, "127.0.0.1:7071", "127.0.0.1:7071"},
		{job.Job{Rank: 1, Network: job.Network{Coordinator: "127.0.0.1:7070", Advertise: "a:1"}}, "[::]:7071", "a:1"},
		{job.Job{Rank: 1, Network: job.Network{Coordinator: "127.0.0.1:7070", Coordinators: []string{"127.0.0.1:7070"}}}, "[::]:7071", "127.0.0.1:7071"},
	} {
		got, err := (&server{job: &Config{Job: c.job}}).advertise(t.Context(), c.addr)
		if got != c.want || err != nil {
			t.Errorf("star-ps %d at %s, coordinator %s: reached at %s, %v, want %s", c.job.Rank, c.addr, c.job.Coordinator, got, err, c.want)
		}
	}
}

// As long as the coordinator's name is unknown there is no address: the name of a host would not be found in a cluster
// with a DNS of services only.
func TestAdvertiseNameUnknown(t *testing.T) {
	job := job.Job{Rank: 1, Network: job.Network{Coordinator: "no-such-host.invalid:7070"}}
	if got, err := (&server{job: &Config{Job: job}}).advertise(t.Context(), "[::]:7071"); err == nil {
		t.Errorf("reached at %s, want an error", got)
	}
}
