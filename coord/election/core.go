package election

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

// The protocol's clock. A leader sends a heartbeat every beat. A member without one for electionTicks beats, plus a
// random number of up to as many, starts an election. Those are etcd's defaults for a local network.
const (
	beat          = 100 * time.Millisecond
	electionTicks = 10

	// promise is how long a member that has answered a leader's question grants no vote to another member and does
	// not start an election, by its own clock. The library guarantees that only while it knows its leader, and
	// forgets the leader when it starts an election or receives a later term. Even without that it could not be
	// longer: a ticker may deliver one beat late and the next one on time, and the first comes less than a beat
	// after the answer.
	promise = (electionTicks - 2) * beat

	// lease is how long a leader can rely on no other member being elected, from the time at which it sent a
	// question that a majority has answered. The beat between the two allows for clocks that run at different
	// rates.
	lease = promise - beat
)

// compactAfter is the number of entries of a log after which a snapshot replaces the older ones.
const compactAfter = 256

// entry is one step of the agreement.
type entry struct {
	Term  uint64 `json:"term"` // of the leadership in which it was proposed
	Rank  int    `json:"rank"` // of its holder
	Begin bool   `json:"begin,omitempty"`
	ID    uint64 `json:"id,omitempty"` // its proposer's own
	Note  []byte `json:"note,omitempty"`
	Add   bool   `json:"add,omitempty"`  // the note is appended to the others; else it replaces them
	Over  bool   `json:"over,omitempty"` // the job is over: this is the last entry
}

// agreed is the state after the agreed entries. It is a deterministic state machine: the same entries give the same
// state.
type agreed struct {
	Term   uint64         `json:"term"`            // of the last leadership that began
	Rank   int            `json:"rank"`            // of its holder
	Note   []byte         `json:"note"`            // the last one
	Added  [][]byte       `json:"added,omitempty"` // to it, in order
	Over   bool           `json:"over,omitempty"`
	Places map[int]holder `json:"seats,omitempty"` // by rank: the process that has replaced the founder
}

// apply applies an entry. It reports false for an entry of a leadership that was over when it was agreed on.
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
	case e.Add:
		a.Added = append(a.Added, e.Note)
		return true
	}
	a.Note, a.Added = e.Note, nil
	return true
}

// core is one member's part of the protocol: messages and the time in, messages out. It has no network, no clock and no
// goroutine; only the library's election timeout is random.
//
// Invariants: term is not 0 only while this member leads and its Begin entry was applied. Before bound it grants no
// vote, except to a member that the leader has asked to take over. A record is written (keep) before the messages that
// depend on it are returned.
type core struct {
	self   uint64 // founderID or lateID
	rank   int
	node   *raft.RawNode
	store  *raft.MemoryStorage
	state  agreed
	now    time.Duration // the latest time that it was given
	until  time.Duration // end of the lease; 0: none
	bound  time.Duration // end of this member's promise
	term   uint64        // of the leadership that this member holds; 0: none
	asked  uint64        // the term in which it proposed to begin one
	nextID uint64
	waits  map[uint64]bool // notes of this leadership that are proposed and not agreed on
	done   []uint64        // notes that were agreed on since the last publish
	index  uint64          // of the last entry that was applied
	first  uint64          // of the log

	// keep writes a record before the messages that depend on it are sent, synchronously if the flag says so; nil: the
	// state is in memory only.
	keep  func(raftpb.Message, bool)
	kept  func() // called when a snapshot has replaced a part of the log
	short uint64 // compactAfter

	conf     raftpb.ConfState         // the voters
	heard    map[uint64]time.Duration // by member: time of its last message
	common   time.Duration            // difference of the group's clock to this member's: see follow
	leaderOf uint64                   // the term of the leader that common is from
	led      uint64                   // the term that since belongs to
	since    time.Duration            // when this member began to lead
	resigned uint64                   // the term in which this member resigned
}

func newCore(rank, members int, log *slog.Logger) (*core, error) {
	var voters []uint64
	for r := range members {
		voters = append(voters, founderID(r))
	}
	// All founders begin with the same empty snapshot, in which all of them vote.
	store := raft.NewMemoryStorage()
	empty, _ := json.Marshal(agreed{Rank: -1})
	start := raftpb.Snapshot{Data: empty, Metadata: raftpb.SnapshotMetadata{Index: 1, Term: 1, ConfState: raftpb.ConfState{Voters: voters}}}
	if err := store.ApplySnapshot(start); err != nil {
		return nil, err
	}
	if err := store.SetHardState(raftpb.HardState{Term: 1, Commit: 1}); err != nil {
		return nil, err
	}
	c, err := coreOf(founderID(rank), store, 1, log)
	if err == nil {
		c.conf, c.index, c.first = start.Metadata.ConfState, 1, 2
	}
	return c, err
}

// newLateCore is the part of a process that replaces one of its rank. It has no state, and does not vote before the
// others have agreed that it has the place.
func newLateCore(id uint64, log *slog.Logger) (*core, error) {
	return coreOf(id, raft.NewMemoryStorage(), 0, log)
}

func coreOf(id uint64, store *raft.MemoryStorage, applied uint64, log *slog.Logger) (*core, error) {
	node, err := raft.NewRawNode(&raft.Config{
		ID: id, ElectionTick: electionTicks, HeartbeatTick: 1, Storage: store, Applied: applied,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 64, CheckQuorum: true, PreVote: true, DisableProposalForwarding: true,
		Logger: logger{log},
	})
	if err != nil {
		return nil, err
	}
	return &core{self: id, rank: rankOf(id), node: node, store: store, state: agreed{Rank: -1}, short: compactAfter, waits: map[uint64]bool{}, heard: map[uint64]time.Duration{}}, nil
}

// tick advances the clock by a beat.
func (c *core) tick(now time.Duration) {
	c.now = max(c.now, now)
	c.node.Tick()
	if !c.leads() {
		return
	}
	if c.resigned == c.node.BasicStatus().Term { // the member that was asked has not taken over
		if next, _ := c.successors(); next > 0 {
			c.node.TransferLeader(next)
		}
	} else {
		c.node.ReadIndex(question(c.now, c.now+c.common))
	}
}

// question is the payload of a leader's heartbeat: the time, by its own clock and by the group's.
func question(own, common time.Duration) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(own)), uint64(common))
}

func parseQuestion(b []byte) (own, common time.Duration, ok bool) {
	if len(b) != 16 {
		return 0, 0, false
	}
	own, common = time.Duration(binary.BigEndian.Uint64(b)), time.Duration(binary.BigEndian.Uint64(b[8:]))
	return own, common, own >= 0 && common >= 0
}

// follow updates this member's estimate of the group's clock, which is the leader's: the next leader continues it. It
// does not depend on wall clocks. The message with the shortest delay is the most accurate one, so of one leader the
// highest estimate counts.
func (c *core) follow(term uint64, common time.Duration) {
	if ahead := common - c.now; term != c.leaderOf || ahead > c.common {
		c.leaderOf, c.common = term, ahead
	}
}

// campaign starts an election at once, unless this member's promise forbids it.
func (c *core) campaign() {
	if c.now >= c.bound {
		c.node.Campaign()
	}
}

// step processes a message of another member; from is the identity of its connection.
func (c *core) step(from uint64, m raftpb.Message, now time.Duration) error {
	c.now = max(c.now, now)
	switch last := c.node.BasicStatus(); {
	case m.From != from || rankOf(m.To) != c.rank:
		return fmt.Errorf("election: a message from %x to %x on the connection of member %d (%x)", m.From, m.To, rankOf(from), from)
	case raftpb.MessageType_name[int32(m.Type)] == "":
		return fmt.Errorf("election: a message of type %d of member %d: unknown type", m.Type, rankOf(from))
	case m.To != c.self:
		return nil // for an earlier or later process of this rank
	case raft.IsLocalMsg(m.Type), m.Type == raftpb.MsgProp:
		return fmt.Errorf("election: a message %v of member %d: members must not send it", m.Type, rankOf(from))
	case m.Term == 0, !sequel(m):
		return fmt.Errorf("election: a message %v of member %d without a term, or with entries that do not follow each other", m.Type, rankOf(from))
	case m.Type == raftpb.MsgHeartbeat && m.Term >= last.Term && m.Commit > c.lastIndex():
		return fmt.Errorf("election: member %d reports that %d entries are agreed on; this member has %d", rankOf(from), m.Commit, c.lastIndex())
	}
	c.heard[from] = c.now
	switch m.Type {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		if c.now < c.bound && string(m.Context) != handedOver { // it asks again
			return nil
		}
	}
	// A member with other bugs may send an impossible message: it must not end this process.
	var err error
	func() {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("election: message %v of member %d: %v: %w", m.Type, rankOf(from), r, errBroken)
			}
		}()
		err = c.node.Step(m)
	}()
	if errors.Is(err, raft.ErrProposalDropped) || errors.Is(err, raft.ErrStepPeerNotFound) {
		return nil
	}
	if m.Type == raftpb.MsgHeartbeat && err == nil && c.node.BasicStatus().Lead == from {
		if _, common, ok := parseQuestion(m.Context); ok {
			c.follow(m.Term, common)
		}
	}
	return err
}

// sequel reports whether the entries of a message are consecutive and follow the one that it names. The library assumes
// that, and would apply an entry with the number of an agreed one again and again.
func sequel(m raftpb.Message) bool {
	index, term := m.Index, m.LogTerm
	for _, e := range m.Entries {
		index++
		if m.Type != raftpb.MsgApp || e.Index != index || e.Term < max(term, 1) || e.Term > m.Term {
			return false
		}
		term = e.Term
	}
	return true
}

// errBroken: the protocol's state cannot be relied on any more.
var errBroken = errors.New("this member does not take part any more")

func (c *core) lastIndex() uint64 {
	i, _ := c.store.LastIndex()
	return i
}

// leads reports whether this member is the protocol's leader, as far as it knows.
func (c *core) leads() bool { return c.node.BasicStatus().RaftState == raft.StateLeader }

// leader is the rank of the leader; -1: unknown.
func (c *core) leader() int { return rankOf(c.node.BasicStatus().Lead) }

// proposeEntry proposes an entry of this leadership, and sets its term, rank and ID. done will have the ID.
func (c *core) proposeEntry(e entry) (id uint64, err error) {
	if c.term == 0 {
		return 0, ErrLeadershipLost
	}
	c.nextID++
	e.Term, e.Rank, e.ID = c.term, c.rank, c.nextID
	if err := c.offer(e); err != nil {
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
		return fmt.Errorf("election: %w", err)
	}
	return nil
}

// ready processes what the library has ready and returns the messages to send.
func (c *core) ready() (out []raftpb.Message, err error) {
	for c.node.HasReady() {
		rd := c.node.Ready()
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := c.store.ApplySnapshot(rd.Snapshot); err != nil {
				return out, err
			}
			var state agreed // a new one: fields that the snapshot lacks are empty
			if err := json.Unmarshal(rd.Snapshot.Data, &state); err != nil {
				return out, fmt.Errorf("election: the snapshot's state: %w", err)
			}
			c.state = state
			c.index, c.first = rd.Snapshot.Metadata.Index, rd.Snapshot.Metadata.Index+1
			c.conf = rd.Snapshot.Metadata.ConfState
		}
		if err := c.store.Append(rd.Entries); err != nil {
			return out, err
		}
		if !raft.IsEmptyHardState(rd.HardState) {
			if err := c.store.SetHardState(rd.HardState); err != nil {
				return out, err
			}
		}
		if r, any := record(rd); any && c.keep != nil {
			c.keep(r, rd.MustSync)
		}
		out = append(out, rd.Messages...)
		for _, e := range rd.CommittedEntries {
			c.index = e.Index
			if e.Type == raftpb.EntryConfChangeV2 {
				if err := c.applyMembership(e.Data); err != nil {
					return out, fmt.Errorf("election: entry %d: %w", e.Index, err)
				}
				continue
			}
			if len(e.Data) == 0 || e.Type != raftpb.EntryNormal {
				continue // the empty entry of a new leader
			}
			var it entry
			if err := json.Unmarshal(e.Data, &it); err != nil {
				return out, fmt.Errorf("election: entry %d: %w", e.Index, err)
			}
			c.take(it)
		}
		for _, r := range rd.ReadStates {
			if own, _, ok := parseQuestion(r.RequestCtx); ok { // a majority has answered this question
				c.until = max(c.until, own+lease)
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
		case raftpb.MsgHeartbeatResp: // the question was sent before now
			c.bound = c.now + promise
		case raftpb.MsgAppResp: // like an answer: the voters may change with it, and a lease rests on those of before
			if !m.Reject && m.Index > 0 {
				c.bound = c.now + promise
			}
		}
	}
	return out, nil
}

// take applies an agreed entry.
func (c *core) take(e entry) {
	if c.state.apply(e) && e.ID > 0 && c.waits[e.ID] && e.Rank == c.rank && e.Term == c.term {
		delete(c.waits, e.ID)
		c.done = append(c.done, e.ID)
	}
}

// judge updates whether this member holds a leadership.
func (c *core) judge() {
	st := c.node.BasicStatus()
	if st.RaftState == raft.StateLeader && c.led != st.Term {
		c.led, c.since = st.Term, c.now
	}
	if st.RaftState != raft.StateLeader || c.resigned == st.Term || c.term > 0 && c.term != st.Term {
		c.term, c.until = 0, 0
		clear(c.waits)
		return
	}
	switch {
	case c.term > 0:
	// The Begin entry is applied, and so is every entry before it.
	case c.state.Term == st.Term && c.state.Rank == c.rank:
		c.term = st.Term
	case c.asked < st.Term:
		if c.offer(entry{Term: st.Term, Rank: c.rank, Begin: true}) == nil {
			c.asked = st.Term
		}
	}
}

// compact replaces older entries by a snapshot.
func (c *core) compact() {
	if c.index-c.first < 2*c.short {
		return
	}
	b, err := json.Marshal(c.state)
	if err != nil {
		return
	}
	if _, err := c.store.CreateSnapshot(c.index, &c.conf, b); err != nil {
		return
	}
	if c.store.Compact(c.index-c.short) == nil {
		c.first = c.index - c.short + 1
	}
	if c.kept != nil {
		c.kept()
	}
}

// logger writes the library's log lines to ours.
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
