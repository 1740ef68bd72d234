package worker

import (
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/job"
)

// A worker without a connection to the outside refuses a job that wants one, and names the setting.
func TestNotConnected(t *testing.T) {
	for setting, j := range map[string]job.Job{
		"cluster":     {Host: job.Host{Cluster: "rack1@127.0.0.1"}},
		"gossip":      {Network: job.Network{Gossip: "127.0.0.1:7075"}},
		"gossip-join": {Network: job.Network{GossipJoin: []string{"127.0.0.1:7075"}}},
		"":            {},
	} {
		c := Config{Job: j}
		c.Defaults()
		err := c.connected()
		if setting == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "--"+setting) || !strings.Contains(err.Error(), "Outside") || job.ExitCode(err) != exitcode.Usage {
			t.Errorf("%s: %v, exit code %d", setting, err, job.ExitCode(err))
		}
	}
}
