package plan

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/cmd/internal/launch"
	"star/coord"
	"star/runlog"
	"star/transport"
)

// apply has the coordinator of a running job carry out the moves of its servers, one after the other: server i of
// the placement is shard i. Moves of other jobs are left alone. What was done is in each move, and in the assignments.
func (p *placeFlags) apply(ctx context.Context, hosts []inventory.Host, r *placeResult) error {
	var mine []*placeMove
	for i := range r.Moves {
		if m := &r.Moves[i]; m.Job == p.job && strings.HasPrefix(m.Task, "ps ") {
			mine = append(mine, m)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	sites := map[string]string{}
	for _, h := range hosts {
		sites[h.Name] = launch.Site{Host: h}.Reach()
	}
	token := string(p.token)
	c, err := console.Reach(ctx, transport.NewTCP(transport.Config{Token: token}), p.job, p.coordinator, token, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Conn.Close()
	for _, m := range mine {
		shard, err := strconv.Atoi(strings.TrimPrefix(m.Task, "ps "))
		if err != nil {
			return fmt.Errorf("%s is no server", m.Task)
		}
		var s coord.Status
		if err := c.Ask(5*time.Second, &s, "status"); err != nil {
			return err
		}
		if err := heldBy(&s, shard, m.From, sites[m.From]); err != nil {
			return fmt.Errorf("%w: the placement of --from is not in force", err)
		}
		moved := new(runlog.Move)
		if err := c.Ask(cli.MoveWait, moved, "move", strconv.Itoa(shard), sites[m.To]); err != nil {
			return fmt.Errorf("%s to host %s: %w", m.Task, m.To, err)
		}
		m.Moved = moved
		for i := range r.Assignments {
			if a := &r.Assignments[i]; a.Job == m.Job && a.Task == m.Task {
				a.Host, a.Why = m.To, m.Why
			}
		}
	}
	return nil
}

// heldBy is an error unless a shard is on a host.
func heldBy(s *coord.Status, shard int, name, address string) error {
	for _, sh := range s.Shards {
		for _, server := range s.Servers {
			if sh.Shard != shard || sh.Server != server.Server {
				continue
			}
			if at, _, _ := net.SplitHostPort(server.Addr); at == address || server.Host == address {
				return nil
			}
			return fmt.Errorf("shard %d is at server %d (%s), not on host %s (%s)", shard, server.Server, server.Addr, name, address)
		}
	}
	return fmt.Errorf("the job has no shard %d", shard)
}
