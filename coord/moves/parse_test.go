package moves

import (
	"fmt"
	"strings"
	"testing"
)

// A server is named by its rank, its host or its address, and must be the only one of that name.
func TestParse(t *testing.T) {
	servers := []Server{{Host: "a", Addr: "10.0.0.1:7"}, {Host: "b", Addr: "10.0.0.2:7"}, {Host: "b", Addr: "10.0.0.3:7"}, {Host: "c", Addr: "10.0.0.4:7", Gone: true}}
	for _, c := range []struct{ args, want string }{
		{"1 2", "1 2"},
		{"1 a", "1 0"},
		{"0 10.0.0.3", "0 2"},
		{"0 10.0.0.2:7", "0 1"},
		{"0 b", `2 servers are at "b" ([1 2]): give the rank of one`},
		{"0 d", `0 servers are at "d"`},
		{"0 c", "server 3 is gone"},
		{"0 4", "server 4 is not one of 0 to 3"},
		{"0 -1", "server -1 is not"},
		{"2 0", `shard "2" is not one of 0 to 1`},
		{"-1 0", `shard "-1" is not`},
		{"x 0", `shard "x" is not`},
		{"0", "want SHARD SERVER"},
	} {
		shard, to, err := Parse(strings.Fields(c.args), 2, servers)
		got := fmt.Sprint(shard, to)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
}

func TestRefuse(t *testing.T) {
	for want, change := range map[string]func(*Asked, *Mover){
		"":                                 func(*Asked, *Mover) {},
		"an all-reduce has no shards":      func(a *Asked, _ *Mover) { a.Sharded = false },
		"in a job with --coordinators":     func(a *Asked, _ *Mover) { a.Replaceable = true },
		"with copies (--replicas)":         func(a *Asked, _ *Mover) { a.Copies = true },
		"shard 3 is moving: one at a time": func(_ *Asked, m *Mover) { m.stage, m.job.Shard = routing, 3 },
		"about to end":                     func(a *Asked, _ *Mover) { a.Ends = true },
		"waits for workers: 1 connected":   func(a *Asked, _ *Mover) { a.Short = "1 connected" },
		"worker 0 is coming":               func(a *Asked, _ *Mover) { a.Coming = 0 },
		"shard 1 is at server 2 already":   func(a *Asked, _ *Mover) { a.Owner = func(shard int) int { return 2 * shard } },
	} {
		a, m := Asked{Sharded: true, Coming: -1, Owner: func(int) int { return 0 }}, Mover{}
		change(&a, &m)
		if err := m.Refuse(1, 2, &a); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
