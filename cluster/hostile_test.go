package cluster

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// Whatever one process says to the service, the jobs of others keep their places, the account stays one of numbers, and
// the next question is answered.
func TestHostileProcesses(t *testing.T) {
	for _, empty := range transporttest.Messages {
		if testing.Short() && empty.Kind() != wire.KindUsage {
			continue
		}
		t.Run(empty.Kind().String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := begin(t, ten())
				defer b.stop()
				b.pair("honest", 4, 100*time.Millisecond, 200*time.Millisecond)
				rest(2 * time.Second)
				if s := b.job("honest").State; s == "none" {
					t.Fatal("the honest job is not there")
				}
				fields := map[string]any{"Job": "evil", "Life": "1", "Rank": 0, "Host": "h", "Workers": 2, "Servers": 1, "CPU": 1., "In": 1., "Out": 1., "ID": 1, "Mode": "asgd", "Timeout": time.Second, "Seq": 1}
				for name, m := range transporttest.Absurd(transporttest.Fill(empty, fields)) {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					c, _, _, err := transport.Open(ctx, b.pipe, addr, wire.Hello{Service: wire.ServiceCluster, Role: wire.RoleServer, Job: "rack1"}, nil)
					cancel()
					if err != nil {
						t.Fatalf("before %s: %v", name, err)
					}
					if empty.Kind() != wire.KindEnlist && empty.Kind() != wire.KindHello {
						transport.Send(c, transporttest.Fill(wire.Enlist{}, fields), nil)
					}
					if empty.Kind() == wire.KindAsk || empty.Kind() == wire.KindYield {
						transport.Send(c, transporttest.Fill(wire.Usage{}, fields), nil)
					}
					transport.Send(c, m, nil)
					rest(7 * time.Second) // Gather, and a usage of the honest ones
					st := b.status()
					if _, err := json.Marshal(st); err != nil {
						t.Fatalf("after %s the status cannot be written: %v", name, err)
					}
					if j := b.job("honest"); j.State == "none" || len(j.Members) != 3 || j.Delay != 0 {
						t.Fatalf("after %s the honest job is %+v", name, j)
					}
					for _, h := range st.Hosts {
						if h.Use.CPU != nil && !(*h.Use.CPU >= 0 && *h.Use.CPU < 1e19) || h.Others.CPU != nil && !(*h.Others.CPU >= 0 && *h.Others.CPU < 1e19) {
							t.Fatalf("after %s host %s uses %v, others %v", name, h.Host, *h.Use.CPU, *h.Others.CPU)
						}
					}
					c.Close()
					rest(time.Second)
				}
			})
		})
	}
}
