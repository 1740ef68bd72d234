package council

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// The protocol's clock. A leader is heard of every beat; who has not heard of it for electionTicks beats, and up to as many
// more by chance, tries to take its place. Those are etcd's own defaults for a local network.
const (
	beat          = 100 * time.Millisecond
	electionTicks = 10

	// promise is how long a member that has answered a leader's question votes for nobody else, and does not stand for election itself, by its own clock. The library
	// holds to it only while it knows whom it follows, and forgets that when it stands for election or hears of a later term. Without that it would not be shorter:
	// a ticker may deliver one beat late and the next one on time, and the first comes less than a beat after the answer.
	promise = (electionTicks - 2) * beat

	// lease is how long a leader may rely on nobody else being elected, from the moment in which it sent a question that a
	// majority answered. The beat between the two is for clocks that do not agree on how long a second is.
	lease = promise - beat
)

// compactAfter is how many entries a log has before the older ones are replaced by what they came to.
const compactAfter = 256

// entry is what members agree on, one after the other.
type entry struct {
	Term  uint64 `json:"term"` // of the reign in which it was proposed
	Rank  int    `json:"rank"` // of its holder
	Begin bool   `json:"begin,omitempty"`
	ID    uint64 `json:"id,omitempty"` // its proposer's own
	Note  []byte `json:"note,omitempty"`
	Over  bool   `json:"over,omitempty"` // nothing is left to agree on
}

// agreed is what the entries come to. It is a state machine of its own: the same entries make the same agreed.
type agreed struct {
	Term uint64 `json:"term"` // of the last reign that began
	Rank int    `json:"rank"` // of its holder
	Note []byte `json:"note"` // the last one
	Over bool   `json:"over,omitempty"`
}

// apply takes in an entry. It reports false for one of a reign that was over when the entry was agreed on.
func (a *agreed) apply(e entry) bool {
	switch {
	case e.Begin && e.Term > a.Term:
		a.Term, a.Rank = e.Term, e.Rank
		return true
	case e.Begin, e.Term != a.Term, e.Rank != a.Rank:
		return false
	case e.Over:
		a.Over = true
		return true
	}
	a.Note = e.Note
	return true
}

// core is one member's part in the protocol: messages and the time in, messages out. It has no network, no clock and no
// goroutine; only the library's choice of how long to wait for a leader is left to chance.
type core struct {
	self   uint64 // rank + 1
	node   *raft.RawNode
	store  *raft.MemoryStorage
	state  agreed
	now    time.Duration // the time, as last told
	until  time.Duration // the lease's end; 0: none
	bound  time.Duration // the end of what this member has promised
	term   uint64        // that of the reign that this member holds; 0: none
	asked  uint64        // the term in which it proposed to begin one
	nextID uint64
	waits  map[uint64]bool // notes that were proposed in this reign and are not agreed on yet
	done   []uint64        // those that are, since the last look
	index  uint64          // of the last entry that was applied
	first  uint64          // of the log
}

func newCore(rank, members int, log *slog.Logger) (*core, error) {
	var voters []uint64
	for r := range members {
		voters = append(voters, uint64(r)+1)
	}
	// Everybody begins with the same empty snapshot, in which everybody is a member.
	store := raft.NewMemoryStorage()
	empty, _ := json.Marshal(agreed{Rank: -1})
	start := raftpb.Snapshot{Data: empty, Metadata: raftpb.SnapshotMetadata{Index: 1, Term: 1, ConfState: raftpb.ConfState{Voters: voters}}}
	if err := store.ApplySnapshot(start); err != nil {
		return nil, err
	}
	if err := store.SetHardState(raftpb.HardState{Term: 1, Commit: 1}); err != nil {
		return nil, err
	}
	node, err := raft.NewRawNode(&raft.Config{
		ID: uint64(rank) + 1, ElectionTick: electionTicks, HeartbeatTick: 1, Storage: store, Applied: 1,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 64, CheckQuorum: true, PreVote: true, DisableProposalForwarding: true,
		Logger: logger{log},
	})
	if err != nil {
		return nil, err
	}
	return &core{self: uint64(rank) + 1, node: node, store: store, state: agreed{Rank: -1}, waits: map[uint64]bool{}, index: 1, first: 2}, nil
}

// tick tells that a beat has passed.
func (c *core) tick(now time.Duration) {
	c.now = max(c.now, now)
	c.node.Tick()
	if c.leads() {
		c.node.ReadIndex(binary.BigEndian.AppendUint64(nil, uint64(c.now)))
	}
}

// campaign tries to be elected at once, where no promise stands against it.
func (c *core) campaign() {
	if c.now >= c.bound {
		c.node.Campaign()
	}
}

// step takes in a message of another member, which said who it is when it connected.
func (c *core) step(from int, m raftpb.Message, now time.Duration) error {
	c.now = max(c.now, now)
	switch last := c.node.BasicStatus(); {
	case m.From != uint64(from)+1 || m.To != c.self:
		return fmt.Errorf("council: a message from %d to %d on the connection of member %d", m.From, m.To, from)
	case raft.IsLocalMsg(m.Type), m.Type == raftpb.MsgProp:
		return fmt.Errorf("council: a message %v of member %d, which members keep to themselves", m.Type, from)
	case m.Type == raftpb.MsgHeartbeat && m.Term >= last.Term && m.Commit > c.lastIndex():
		return fmt.Errorf("council: member %d says that %d entries are agreed on, here are %d", from, m.Commit, c.lastIndex())
	case (m.Type == raftpb.MsgVote || m.Type == raftpb.MsgPreVote) && c.now < c.bound:
		return nil // it asks again
	}
	// What cannot be, a member with other bugs than ours may say all the same: it must not end this process.
	var err error
	func() {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("council: message %v of member %d: %v: %w", m.Type, from, r, errBroken)
			}
		}()
		err = c.node.Step(m)
	}()
	if errors.Is(err, raft.ErrProposalDropped) || errors.Is(err, raft.ErrStepPeerNotFound) {
		return nil
	}
	return err
}

// errBroken: the protocol's state is not to be relied on any more.
var errBroken = errors.New("this member takes no part any more")

func (c *core) lastIndex() uint64 {
	i, _ := c.store.LastIndex()
	return i
}

// leads says whether this member is the leader of the protocol, by what it knows.
func (c *core) leads() bool { return c.node.BasicStatus().RaftState == raft.StateLeader }

// leader is the rank of the leader; -1: not known.
func (c *core) leader() int { return int(c.node.BasicStatus().Lead) - 1 }

// propose has members agree on a note in this reign, or that all is over. done will have the ID.
func (c *core) propose(note []byte, over bool) (id uint64, err error) {
	if c.term == 0 {
		return 0, ErrDeposed
	}
	c.nextID++
	if err := c.offer(entry{Term: c.term, Rank: int(c.self) - 1, ID: c.nextID, Note: note, Over: over}); err != nil {
		return 0, err
	}
	c.waits[c.nextID] = true
	return c.nextID, nil
}

func (c *core) offer(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := c.node.Propose(b); err != nil {
		return fmt.Errorf("council: %w", err)
	}
	return nil
}

// ready does what is due and returns the messages that are to be sent.
func (c *core) ready() (out []raftpb.Message, err error) {
	for c.node.HasReady() {
		rd := c.node.Ready()
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := c.store.ApplySnapshot(rd.Snapshot); err != nil {
				return out, err
			}
			if err := json.Unmarshal(rd.Snapshot.Data, &c.state); err != nil {
				return out, fmt.Errorf("council: what was agreed on: %w", err)
			}
			c.index, c.first = rd.Snapshot.Metadata.Index, rd.Snapshot.Metadata.Index+1
		}
		if err := c.store.Append(rd.Entries); err != nil {
			return out, err
		}
		if !raft.IsEmptyHardState(rd.HardState) {
			if err := c.store.SetHardState(rd.HardState); err != nil {
				return out, err
			}
		}
		out = append(out, rd.Messages...)
		for _, e := range rd.CommittedEntries {
			c.index = e.Index
			if len(e.Data) == 0 || e.Type != raftpb.EntryNormal {
				continue // of a leader that was elected
			}
			var it entry
			if err := json.Unmarshal(e.Data, &it); err != nil {
				return out, fmt.Errorf("council: entry %d: %w", e.Index, err)
			}
			c.take(it)
		}
		for _, r := range rd.ReadStates {
			if len(r.RequestCtx) == 8 { // a majority has answered what was asked then
				c.until = max(c.until, time.Duration(binary.BigEndian.Uint64(r.RequestCtx))+lease)
			}
		}
		c.node.Advance(rd)
		c.compact()
	}
	c.judge()
	for _, m := range out {
		switch m.Type {
		case raftpb.MsgSnap:
			c.node.ReportSnapshot(m.To, raft.SnapshotFinish)
		case raftpb.MsgHeartbeatResp: // the question was asked before now
			c.bound = c.now + promise
		}
	}
	return out, nil
}

// take applies an entry that members have agreed on.
func (c *core) take(e entry) {
	if c.state.apply(e) && e.ID > 0 && c.waits[e.ID] && e.Rank == int(c.self)-1 && e.Term == c.term {
		delete(c.waits, e.ID)
		c.done = append(c.done, e.ID)
	}
}

// judge says whether this member holds a reign.
func (c *core) judge() {
	st := c.node.BasicStatus()
	if st.RaftState != raft.StateLeader || c.term > 0 && c.term != st.Term {
		c.term, c.until = 0, 0
		clear(c.waits)
		return
	}
	switch {
	case c.term > 0:
	case c.state.Term == st.Term && c.state.Rank == int(c.self)-1: // with it, everything before it
		c.term = st.Term
	case c.asked < st.Term:
		if c.offer(entry{Term: st.Term, Rank: int(c.self) - 1, Begin: true}) == nil {
			c.asked = st.Term
		}
	}
}

// compact replaces older entries by what they came to.
func (c *core) compact() {
	if c.index-c.first < 2*compactAfter {
		return
	}
	b, err := json.Marshal(c.state)
	if err != nil {
		return
	}
	if _, err := c.store.CreateSnapshot(c.index, nil, b); err != nil {
		return
	}
	if c.store.Compact(c.index-compactAfter) == nil {
		c.first = c.index - compactAfter + 1
	}
}

// holds says whether this member has the lease at that time.
func (c *core) holds(now time.Duration) bool { return c.term > 0 && now < c.until }

// logger gives the library's lines to ours.
type logger struct{ log *slog.Logger }

func (l logger) Debug(v ...any)                   { l.log.Debug(fmt.Sprint(v...)) }
func (l logger) Debugf(format string, v ...any)   { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l logger) Info(v ...any)                    { l.log.Debug(fmt.Sprint(v...)) }
func (l logger) Infof(format string, v ...any)    { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l logger) Warning(v ...any)                 { l.log.Debug(fmt.Sprint(v...)) }
func (l logger) Warningf(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l logger) Error(v ...any)                   { l.log.Warn(fmt.Sprint(v...)) }
func (l logger) Errorf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l logger) Fatal(v ...any)                   { panic(fmt.Sprint(v...)) }
func (l logger) Fatalf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
func (l logger) Panic(v ...any)                   { panic(fmt.Sprint(v...)) }
func (l logger) Panicf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
