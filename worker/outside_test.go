package worker

import (
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/member"
)

// A worker without a connection to the outside refuses a job that wants one, and names the setting.
func TestNotConnected(t *testing.T) {
	for setting, job := range map[string]member.Job{
		"cluster":     {Host: member.Host{Cluster: "rack1@127.0.0.1"}},
		"gossip":      {Network: member.Network{Gossip: "127.0.0.1:7075"}},
		"gossip-join": {Network: member.Network{GossipJoin: []string{"127.0.0.1:7075"}}},
		"":            {},
	} {
		c := Config{Job: job}
		c.Defaults()
		err := c.connected()
		if setting == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "--"+setting) || !strings.Contains(err.Error(), "Outside") || member.ExitCode(err) != exitcode.Usage {
			t.Errorf("%s: %v, exit code %d", setting, err, member.ExitCode(err))
		}
	}
}
