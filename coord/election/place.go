package election

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"star/internal/flightrecorder"
)

// A member without a folder loses its state when it ends, so a restarted process must not be taken for the same
// member. The others agree that the new process has its place, by a change of the voters (joint consensus, section 4.3
// of Ongaro's thesis), and send it the agreed state. It votes from then on, not before.
//
//	fresh ──► founder: it is the first process of its rank for all others
//	  └──► late: another process of its rank was first ──► admitted, with the next turn, when that place is vacant

// holder is the process that has a place.
type holder struct {
	Life [processIDLen]byte `json:"life"`
	Turn int                `json:"turn"` // 1 for a founder, 2 for its successor, and so on
}

// Numbers of members in the protocol. The lowest bits are those of the place.
const placeBits = 6

func founderID(rank int) uint64 { return uint64(rank) + 1 }

// lateID is the number of a process that replaces another one. No other process has it.
func lateID(rank int, id [processIDLen]byte) uint64 {
	return max(binary.BigEndian.Uint64(id[:])>>placeBits, 1)<<placeBits | founderID(rank)
}

// rankOf is the rank of a number; -1: it has none.
func rankOf(id uint64) int { return int(id&(1<<placeBits-1)) - 1 }

// vacantAfter is how long a member must be silent before another process of its rank can get its place.
const vacantAfter = 3 * time.Second

// votes reports whether a member votes.
func (c *core) votes(id uint64) bool { return slices.Contains(c.conf.Voters, id) }

// vacant reports whether no voter of that place has sent a message lately. Only a leader knows that.
func (c *core) vacant(rank int) bool {
	if c.term == 0 || rank == c.rank {
		return false
	}
	for _, id := range c.conf.Voters {
		if rankOf(id) == rank && c.now-max(c.heard[id], c.since) < vacantAfter {
			return false
		}
	}
	return true
}

// admit proposes that a process gets the place of a silent one.
func (c *core) admit(rank int, life [processIDLen]byte) error {
	id := lateID(rank, life)
	if c.term == 0 || len(c.conf.VotersOutgoing) > 0 || c.votes(id) {
		return errors.New("election: not now")
	}
	context, err := json.Marshal(map[int]holder{rank: {life, max(c.state.Places[rank].Turn, founder) + 1}})
	if err != nil {
		return err
	}
	change := raftpb.ConfChangeV2{Context: context, Changes: []raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeAddNode, NodeID: id}}}
	for _, old := range c.conf.Voters {
		if rankOf(old) == rank {
			change.Changes = append(change.Changes, raftpb.ConfChangeSingle{Type: raftpb.ConfChangeRemoveNode, NodeID: old})
		}
	}
	return c.node.ProposeConfChange(change)
}

// applyMembership applies a change of the voters.
func (c *core) applyMembership(text []byte) (err error) {
	var change raftpb.ConfChangeV2
	if err := change.Unmarshal(text); err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil { // a change that no member proposes
			err = fmt.Errorf("voters: %v", r)
		}
	}()
	c.conf = *c.node.ApplyConfChange(change)
	if len(change.Context) > 0 {
		var now map[int]holder
		if err := json.Unmarshal(change.Context, &now); err != nil {
			return err
		}
		places := map[int]holder{}
		for _, from := range []map[int]holder{c.state.Places, now} {
			for rank, h := range from {
				places[rank] = h
			}
		}
		c.state.Places = places
	}
	// A new member rejects a snapshot in which it does not vote.
	b, err := json.Marshal(c.state)
	if err != nil {
		return err
	}
	if _, err := c.store.CreateSnapshot(c.index, &c.conf, b); err != nil {
		return fmt.Errorf("voters: %w", err)
	}
	return nil
}

// handedOver is the library's mark in a request for votes of a member that the leader has asked to lead.
const handedOver = "CampaignTransfer"

// resign ends the leadership and asks the member with the longest log to lead, at once. It reports false when no other
// member can lead, because without this one there is no majority. Afterwards this member does not rely on promises that
// others have given it, so they may vote before their promises end.
func (c *core) resign() bool {
	next, alive := c.successors()
	if c.term == 0 || alive < len(c.conf.Voters)/2+1 {
		return false
	}
	c.resigned = c.term
	c.node.TransferLeader(next)
	c.judge()
	return true
}

// successors is the live member with the longest log, and the number of other live members.
func (c *core) successors() (best uint64, alive int) {
	var match uint64
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if id == c.self || !c.votes(id) || c.now-c.heard[id] > lease {
			return
		}
		if alive++; best == 0 || p.Match > match {
			best, match = id, p.Match
		}
	})
	return best, alive
}

// Turns of processes that have no place yet, and of founders.
const (
	late    = -1 // it waits for the place of another process
	fresh   = 0  // it connects to the others, to found the group with them
	founder = 1
)

// greeting is the identity that a process sends to the others: the payload of its Hello.
type greeting struct {
	life [processIDLen]byte
	turn int
}

func (g greeting) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, g.life[:]...), uint32(g.turn+1))
}

func parseGreeting(b []byte) (g greeting, err error) {
	if len(b) != processIDLen+4 {
		return g, errors.New("it does not identify its process")
	}
	return greeting{[processIDLen]byte(b), int(binary.BigEndian.Uint32(b[processIDLen:])) - 1}, nil
}

// id is the number of a process in the protocol.
func (g greeting) id(rank int) uint64 {
	if g.turn == fresh || g.turn == founder {
		return founderID(rank)
	}
	return lateID(rank, g.life)
}

// verdict is the answer to a greeting: the last byte of the payload of the Welcome.
type verdict byte

const (
	known    verdict = iota // the process has the place that it names
	another                 // another process has, or had, that place
	unsure                  // the answering process has no place itself
	replaced                // another process has replaced it
)

// caller is a process that asks for a place.
type caller struct {
	life  [processIDLen]byte
	conns int
}

// greet answers a greeting. The first process of a rank that a founder meets is a founder to it, and remains so. Only a
// process that is a founder to all others takes part in the first vote, so no two of one rank do.
func (c *Member) greet(rank int, g greeting) verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, met := c.lives[rank]
	switch {
	case met && old.Life == g.life:
		return known
	case met && g.turn > fresh && g.turn < old.Turn:
		return replaced
	case met && g.turn <= fresh, g.turn == fresh && c.turn > founder:
		return another
	case met || g.turn != fresh || c.turn != fresh:
		return unsure
	}
	c.lives[rank] = holder{g.life, founder}
	return known
}

// connected counts a connection of a process. The function that it returns ends the count.
func (c *Member) connected(rank int, g greeting) func() {
	count := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if g.turn != late {
			c.here[rank] += n
			return
		}
		k := c.callers[rank]
		if n > 0 && k.life != g.life {
			k = caller{life: g.life}
		}
		if k.life == g.life {
			k.conns += n
			c.callers[rank] = k
		}
	}
	count(1)
	return func() { count(-1) }
}

// greeting is this process's own; the channel is closed when it changes.
func (c *Member) greeting() (greeting, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return greeting{c.own, c.turn}, c.turned
}

// become sets this process's turn. The caller has c.mu.
func (c *Member) become(turn int) {
	c.turn = turn
	close(c.turned)
	c.turned = make(chan struct{})
}

// answered processes the answer of another process to mine.
func (c *Member) answered(from int, mine greeting, text []byte) error {
	if len(text) != processIDLen+1 {
		return fmt.Errorf("%s %d does not identify its process", c.cfg.Words.Member, from)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch says := verdict(text[processIDLen]); {
	case mine.turn != c.turn && mine.turn != fresh: // the answer is outdated
	case says == replaced && c.turn > fresh:
		return &ReplacedError{c.cfg.Rank, fmt.Sprintf("%s %d (%s)", c.cfg.Words.Member, from, c.cfg.Members[from]), c.cfg.Words.Member}
	case says == another && c.turn == fresh:
		clear(c.lives) // others may have been replaced, too
		c.become(late)
		return errors.New("another process had this one's place before")
	case says == known && c.turn == fresh:
		h, met := c.lives[from]
		if !met {
			h = holder{[processIDLen]byte(text), founder}
			c.lives[from] = h
		}
		if h.Life != [processIDLen]byte(text) { // it is late, and learns so from the others
			break
		}
		c.agreed[from] = true
		select {
		case c.met <- struct{}{}:
		default:
		}
	}
	return nil
}

// form waits until this process is a founder to all others, or learns that another one had its place: then it returns
// false.
func (c *Member) form(ctx context.Context) (founds bool, err error) {
	site := flightrecorder.Open(fmt.Sprintf("coordinator %d", c.cfg.Rank), "the others that may coordinate", "", "")
	defer site.Close()
	site.Begin(-1, c.cfg.JoinTimeout)
	limit := time.NewTimer(c.cfg.JoinTimeout)
	defer limit.Stop()
	for {
		c.mu.Lock()
		missing := c.others(func(r int) bool { return c.agreed[r] })
		if c.turn == fresh && len(missing) == 0 {
			c.turn = founder // its connections may stay: to the others it already was one
		}
		turn, turned := c.turn, c.turned
		c.mu.Unlock()
		if turn != fresh {
			return turn == founder, nil
		}
		site.Say(fmt.Sprint("missing: ", missing))
		select {
		case <-c.met:
		case <-turned:
		case <-c.in: // of a member that has formed the group already, and repeats it
		case <-limit.C:
			return false, &FormError{c.cfg.JoinTimeout, missing, c.cfg.Words}
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// others lists the other members for which has is false. The caller has c.mu.
func (c *Member) others(has func(rank int) bool) (at []string) {
	for r, addr := range c.cfg.Members {
		if r != c.cfg.Rank && !has(r) {
			at = append(at, fmt.Sprintf("%s %d (%s)", c.cfg.Words.Member, r, addr))
		}
	}
	return at
}

// silent lists the others without a connection to this one.
func (c *Member) silent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.others(func(r int) bool { return c.here[r] > 0 })
}

// admitPause is the time that a new member has to answer before the next one can be admitted.
const admitPause = time.Second

// letIn proposes, if this member leads, that processes which ask for a vacant place get it.
func (c *Member) letIn(core *core) {
	if core.term == 0 || core.now < c.admitAt {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for rank, k := range c.callers {
		if k.conns == 0 || core.votes(lateID(rank, k.life)) || !core.vacant(rank) {
			continue
		}
		if err := core.admit(rank, k.life); err != nil {
			c.log.Debug("could not admit a process yet", "member", rank, "reason", err)
			continue
		}
		c.log.Info("replaced a silent member by another process of its rank", "member", rank)
		c.admitAt = core.now + admitPause
		return
	}
}

// updatePlaces takes over the agreed holders of places.
func (c *Member) updatePlaces(core *core) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rank, h := range core.state.Places {
		switch {
		case rank == c.cfg.Rank && h.Life == c.own && c.turn != h.Turn:
			c.become(h.Turn)
			c.log.Info("got the place of an earlier process of this rank")
		case rank != c.cfg.Rank && c.lives[rank].Turn < h.Turn:
			c.lives[rank] = h
			if c.callers[rank].life == h.Life {
				delete(c.callers, rank)
			}
		}
	}
}
