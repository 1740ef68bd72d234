package server

import (
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/job"
)

// A server without a connection to the outside refuses a job that wants one, and names the setting. Server 0 asks no
// gossip where the coordinator is.
func TestNotConnected(t *testing.T) {
	join := job.Network{GossipJoin: []string{"127.0.0.1:7075"}}
	for _, c := range []struct {
		job     job.Job
		setting string
	}{
		{job.Job{Host: job.Host{Cluster: "rack1@127.0.0.1"}}, "cluster"},
		{job.Job{Network: job.Network{Gossip: "127.0.0.1:7075"}}, "gossip"},
		{job.Job{Rank: 1, Network: join}, "gossip-join"},
		{job.Job{Network: join}, ""},
		{job.Job{}, ""},
	} {
		c.job.Workers = 1
		err := Check(Config{Job: c.job})
		if c.setting == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "--"+c.setting) || !strings.Contains(err.Error(), "Outside") || job.ExitCode(err) != exitcode.Usage {
			t.Errorf("%s: %v, exit code %d", c.setting, err, job.ExitCode(err))
		}
	}
}
