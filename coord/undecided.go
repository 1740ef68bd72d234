package coord

import (
	"fmt"
	"maps"
	"slices"

	"star/transport"
)

// undecided begins to wait for the norms of Fires that nobody was given an Apply of, and returns those Applys that some were given and others were
// not, by server.
//
// All shards compute the same norm, to the bit, whoever asks; so whether the coordinator before had decided makes no difference to who has not been told.
// But a shard that was told has no norm any more, so what it was told must be passed on. A server keeps a Fire for a shorter time than the Apply of it, which
// comes later: one that tells of the Fire and not of the Apply was not given that, unless it tells of later ones only (transport.MaxApplied).
func (c *Coordinator) undecided(all map[int64]recall) (map[int][]transport.Apply, error) {
	h := c.takeover
	given, since := map[int64]transport.Apply{}, int64(0)
	for _, st := range h.reports {
		if st == nil || len(st.Applied) == 0 {
			continue
		}
		for _, a := range st.Applied {
			given[a.Seq] = a
		}
		since = max(since, st.Applied[0].Seq)
	}
	late := map[int][]transport.Apply{}
	for _, seq := range slices.Sorted(maps.Keys(all)) {
		f, err := transport.ParseFire(all[seq].header)
		if err != nil || !f.NormFirst || seq > h.seq {
			continue
		}
		a, ok := given[seq]
		switch {
		case !ok && seq < since: // so long ago that nobody can be waiting
			continue
		case !ok:
			if !c.cfg.Norm {
				return nil, &Error{exitDisagree, fmt.Sprintf("fire %d asks for the norm of the gradient first, and this process was started without (--clip)", seq)}
			}
			c.norms[seq] = &normSum{left: len(c.shards), said: make([]bool, len(c.shards)), version: f.Version}
			continue
		}
		for rank, st := range h.reports {
			if st == nil || !c.here(rank) {
				continue
			}
			if _, has := st.fires[seq]; has && !slices.ContainsFunc(st.Applied, func(b transport.Apply) bool { return b.Seq == seq }) {
				late[rank] = append(late[rank], a)
			}
		}
	}
	return late, nil
}

// decide passes on what some were told, and counts the norms that were said too early.
func (c *Coordinator) decide(late map[int][]transport.Apply) error {
	for rank, as := range late {
		p := c.servers[rank]
		for _, a := range as {
			c.send(p, func() error { return transport.Send(p.conn, a, nil) })
		}
	}
	early := c.takeover.norms
	c.takeover.norms = nil
	for _, s := range early {
		if s.by == c.servers[s.by.rank] && !s.by.gone {
			if err := c.norm(s.by, s.event); err != nil {
				return err
			}
		}
	}
	return nil
}
