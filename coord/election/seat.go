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

// A member that ends has forgotten what it has agreed to, so nobody may take it for the same one when it is started again. Its place is kept: the others
// agree that another process has it, by a change of who votes (joint consensus, section 4.3 of Ongaro's thesis), and send that process what they have
// agreed on. It votes from then on, not before.

// holder is the process that has a place.
type holder struct {
	Life [processIDLen]byte `json:"life"`
	Turn int                `json:"turn"` // a founder's is 1, that of who has its place after it 2
}

// Numbers of members in the protocol. The lowest bits are those of a place.
const placeBits = 6

func founderID(rank int) uint64 { return uint64(rank) + 1 }

// lateID is the number of a process that comes in the place of another one. No other process has it.
func lateID(rank int, id [processIDLen]byte) uint64 {
	return max(binary.BigEndian.Uint64(id[:])>>placeBits, 1)<<placeBits | founderID(rank)
}

// rankOf is the place that a number belongs to; -1: of none.
func rankOf(id uint64) int { return int(id&(1<<placeBits-1)) - 1 }

// vacantAfter is how long a member is not heard of before another process of its rank may have its place.
const vacantAfter = 3 * time.Second

// seated says whether a member votes.
func (c *core) seated(id uint64) bool { return slices.Contains(c.conf.Voters, id) }

// vacant says whether nobody is heard of who votes for that place, as far as this member, if it leads, can tell.
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

// admit has members agree that a process has the place of one that is not heard of any more.
func (c *core) admit(rank int, who [processIDLen]byte) error {
	id := lateID(rank, who)
	if c.term == 0 || len(c.conf.VotersOutgoing) > 0 || c.seated(id) {
		return errors.New("election: not now")
	}
	context, err := json.Marshal(map[int]holder{rank: {who, max(c.state.Seats[rank].Turn, founder) + 1}})
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

// reseat applies a change of who votes.
func (c *core) reseat(text []byte) (err error) {
	var change raftpb.ConfChangeV2
	if err := change.Unmarshal(text); err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil { // a change that no member makes
			err = fmt.Errorf("who votes: %v", r)
		}
	}()
	c.conf = *c.node.ApplyConfChange(change)
	if len(change.Context) > 0 {
		var now map[int]holder
		if err := json.Unmarshal(change.Context, &now); err != nil {
			return err
		}
		seats := map[int]holder{}
		for _, from := range []map[int]holder{c.state.Seats, now} {
			for rank, h := range from {
				seats[rank] = h
			}
		}
		c.state.Seats = seats
	}
	// A newcomer refuses to begin with anything in which it does not vote.
	b, err := json.Marshal(c.state)
	if err != nil {
		return err
	}
	if _, err := c.store.CreateSnapshot(c.index, &c.conf, b); err != nil {
		return fmt.Errorf("who votes: %w", err)
	}
	return nil
}

// handedOver is what the library says in a request for votes by whom the leader has asked to lead.
const handedOver = "CampaignTransfer"

// resign gives the leadership up and asks the member that is best informed to lead, at once. It reports false when nobody else can: without this member there
// is no majority. Afterwards nobody relies on what members have promised to this one, so that they may vote before the promise ends.
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

// successors is the member that is best informed, of others that are there, and how many they are.
func (c *core) successors() (best uint64, alive int) {
	var match uint64
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if id == c.self || !c.seated(id) || c.now-c.heard[id] > lease {
			return
		}
		if alive++; best == 0 || p.Match > match {
			best, match = id, p.Match
		}
	})
	return best, alive
}

// Turns of processes that have no place yet, and of those that had them first.
const (
	late    = -1 // it waits for the place of another one
	fresh   = 0  // it looks for the others, to found the group with them
	founder = 1
)

// greeting is what a process says of itself to the others: the payload of its Hello.
type greeting struct {
	life [processIDLen]byte
	turn int
}

func (g greeting) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, g.life[:]...), uint32(g.turn+1))
}

func parseGreeting(b []byte) (g greeting, err error) {
	if len(b) != processIDLen+4 {
		return g, errors.New("it does not say which process it is")
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

// verdict is what a process says to another one that greets it: the last byte of the payload of its Welcome.
type verdict byte

const (
	known    verdict = iota // you have the place that you say
	another                 // another process has, or had, the one that you want
	unsure                  // I have no place myself
	replaced                // another process has it by now
)

// caller is a process that wants a place.
type caller struct {
	life  [processIDLen]byte
	conns int
}

// greet judges what a process says of itself. The first process of a rank that a founder meets is a founder to it, and remains so: only who is one to all
// others takes part in the first vote, so that no two of one rank do.
func (c *Member) greet(rank int, who greeting) verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, met := c.lives[rank]
	switch {
	case met && old.Life == who.life:
		return known
	case met && who.turn > fresh && who.turn < old.Turn:
		return replaced
	case met && who.turn <= fresh, who.turn == fresh && c.turn > founder:
		return another
	case met || who.turn != fresh || c.turn != fresh:
		return unsure
	}
	c.lives[rank] = holder{who.life, founder}
	return known
}

// connected notes that a process has made a connection. The function that it returns notes its end.
func (c *Member) connected(rank int, who greeting) func() {
	count := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if who.turn != late {
			c.here[rank] += n
			return
		}
		k := c.callers[rank]
		if n > 0 && k.life != who.life {
			k = caller{life: who.life}
		}
		if k.life == who.life {
			k.conns += n
			c.callers[rank] = k
		}
	}
	count(1)
	return func() { count(-1) }
}

// greeting is what this process says of itself; the channel is closed when that is true no more.
func (c *Member) greeting() (greeting, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return greeting{c.own, c.turn}, c.turned
}

// become gives this process its turn. The caller has c.mu.
func (c *Member) become(turn int) {
	c.turn = turn
	close(c.turned)
	c.turned = make(chan struct{})
}

// answered takes in what another process has said to mine.
func (c *Member) answered(from int, mine greeting, text []byte) error {
	if len(text) != processIDLen+1 {
		return fmt.Errorf("%s %d does not say which process it is", c.cfg.Words.Member, from)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch says := verdict(text[processIDLen]); {
	case mine.turn != c.turn && mine.turn != fresh: // something else is true by now
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
		if h.Life != [processIDLen]byte(text) { // it will hear that it is late
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

// form waits until this process is a founder to all others, or is told that another one had its place: then it returns false.
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
			c.turn = founder // its connections may stay: to others it was one
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
		case <-c.in: // of somebody who is further than we are, and says it again
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

// silent lists the others that have no connection to this one.
func (c *Member) silent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.others(func(r int) bool { return c.here[r] > 0 })
}

// admitPause is how long a newcomer has to answer before the next attempt to let somebody in.
const admitPause = time.Second

// letIn has members agree, if this one leads, that processes which ask for a place that is vacant have it.
func (c *Member) letIn(core *core) {
	if core.term == 0 || core.now < c.admitAt {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for rank, k := range c.callers {
		if k.conns == 0 || core.seated(lateID(rank, k.life)) || !core.vacant(rank) {
			continue
		}
		if err := core.admit(rank, k.life); err != nil {
			c.log.Debug("a process is not let in yet", "member", rank, "reason", err)
			continue
		}
		c.log.Info("a process gets the place of one that is not heard of any more", "member", rank)
		c.admitAt = core.now + admitPause
		return
	}
}

// seats takes over who has which place, as members have agreed.
func (c *Member) seats(core *core) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rank, h := range core.state.Seats {
		switch {
		case rank == c.cfg.Rank && h.Life == c.own && c.turn != h.Turn:
			c.become(h.Turn)
			c.log.Info("has the place of a process that was of this rank before")
		case rank != c.cfg.Rank && c.lives[rank].Turn < h.Turn:
			c.lives[rank] = h
			if c.callers[rank].life == h.Life {
				delete(c.callers, rank)
			}
		}
	}
}
