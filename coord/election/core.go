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
	Term  uint64 `json:"term"` // of the leadership in which it was proposed
	Rank  int    `json:"rank"` // of its holder
	Begin bool   `json:"begin,omitempty"`
	ID    uint64 `json:"id,omitempty"` // its proposer's own
	Note  []byte `json:"note,omitempty"`
	Add   bool   `json:"add,omitempty"`  // the note is one more, and takes no other's place
	Over  bool   `json:"over,omitempty"` // nothing is left to agree on
}

// agreed is what the entries come to. It is a state machine of its own: the same entries make the same agreed.
type agreed struct {
	Term  uint64         `json:"term"`            // of the last leadership that began
	Rank  int            `json:"rank"`            // of its holder
	Note  []byte         `json:"note"`            // the last one
	Added [][]byte       `json:"added,omitempty"` // to it, in order
	Over  bool           `json:"over,omitempty"`
	Seats map[int]holder `json:"seats,omitempty"` // by rank: who has the place of a founder now
}

// apply takes in an entry. It reports false for one of a leadership that was over when the entry was agreed on.
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

// core is one member's part in the protocol: messages and the time in, messages out. It has no network, no clock and no
// goroutine; only the library's choice of how long to wait for a leader is left to chance.
type core struct {
	self   uint64 // founderID or lateID
	rank   int
	node   *raft.RawNode
	store  *raft.MemoryStorage
	state  agreed
	now    time.Duration // the time, as last told
	until  time.Duration // the lease's end; 0: none
	bound  time.Duration // the end of what this member has promised
	term   uint64        // that of the leadership that this member holds; 0: none
	asked  uint64        // the term in which it proposed to begin one
	nextID uint64
	waits  map[uint64]bool // notes that were proposed in this leadership and are not agreed on yet
	done   []uint64        // those that are, since the last look
	index  uint64          // of the last entry that was applied
	first  uint64          // of the log

	keep  func(raftpb.Message, bool) // writes a record down, synchronously if the flag says so, before anything that follows from it is said; nil: it is kept in memory only
	kept  func()                     // a log was replaced by a snapshot
	short uint64                     // compactAfter

	conf     raftpb.ConfState         // who votes
	heard    map[uint64]time.Duration // when each member was heard of last
	common   time.Duration            // what the clock of all members is ahead of this one's: see follow
	leaderOf uint64                   // the term of the leader that common is of
	led      uint64                   // the term of which since tells
	since    time.Duration            // when this member began to lead
	resigned uint64                   // the term that this member gave up by itself
}

func newCore(rank, members int, log *slog.Logger) (*core, error) {
	var voters []uint64
	for r := range members {
		voters = append(voters, founderID(r))
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
	c, err := coreOf(founderID(rank), store, 1, log)
	if err == nil {
		c.conf, c.index, c.first = start.Metadata.ConfState, 1, 2
	}
	return c, err
}

// newLateCore is the part of a process that comes in the place of one of its rank that has ended. It knows nothing, and votes for nobody, before the
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

// tick tells that a beat has passed.
func (c *core) tick(now time.Duration) {
	c.now = max(c.now, now)
	c.node.Tick()
	if !c.leads() {
		return
	}
	if c.resigned == c.node.BasicStatus().Term { // whoever was asked has not taken over
		if next, _ := c.successors(); next > 0 {
			c.node.TransferLeader(next)
		}
	} else {
		c.node.ReadIndex(question(c.now, c.now+c.common))
	}
}

// question is what a leader asks members every beat, which says when, by its own clock and by that of all members.
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

// follow has this member know the time by the clock of all members, which is the leader's: whoever leads next goes on with it. No wall clock has a part in it. What is
// on its way for longest says least, so of one leader the highest counts.
func (c *core) follow(term uint64, common time.Duration) {
	if ahead := common - c.now; term != c.leaderOf || ahead > c.common {
		c.leaderOf, c.common = term, ahead
	}
}

// campaign tries to be elected at once, where no promise stands against it.
func (c *core) campaign() {
	if c.now >= c.bound {
		c.node.Campaign()
	}
}

// step takes in a message of another member, which said who it is when it connected.
func (c *core) step(from uint64, m raftpb.Message, now time.Duration) error {
	c.now = max(c.now, now)
	switch last := c.node.BasicStatus(); {
	case m.From != from || rankOf(m.To) != c.rank:
		return fmt.Errorf("election: a message from %x to %x on the connection of member %d (%x)", m.From, m.To, rankOf(from), from)
	case raftpb.MessageType_name[int32(m.Type)] == "":
		return fmt.Errorf("election: a message of type %d of member %d, which there is not", m.Type, rankOf(from))
	case m.To != c.self:
		return nil // to who had this place before, or has it now
	case raft.IsLocalMsg(m.Type), m.Type == raftpb.MsgProp:
		return fmt.Errorf("election: a message %v of member %d, which members keep to themselves", m.Type, rankOf(from))
	case m.Term == 0, !sequel(m):
		return fmt.Errorf("election: a message %v of member %d without a term, or with entries that do not follow each other", m.Type, rankOf(from))
	case m.Type == raftpb.MsgHeartbeat && m.Term >= last.Term && m.Commit > c.lastIndex():
		return fmt.Errorf("election: member %d says that %d entries are agreed on, here are %d", rankOf(from), m.Commit, c.lastIndex())
	}
	c.heard[from] = c.now
	switch m.Type {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		if c.now < c.bound && string(m.Context) != handedOver { // it asks again
			return nil
		}
	}
	// What cannot be, a member with other bugs than ours may say all the same: it must not end this process.
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

// sequel says whether the entries of a message follow the one that it names, and each other. The library takes that for granted, and would apply one of a number that
// was agreed on before again and again.
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

// errBroken: the protocol's state is not to be relied on any more.
var errBroken = errors.New("this member takes no part any more")

func (c *core) lastIndex() uint64 {
	i, _ := c.store.LastIndex()
	return i
}

// leads says whether this member is the leader of the protocol, by what it knows.
func (c *core) leads() bool { return c.node.BasicStatus().RaftState == raft.StateLeader }

// leader is the rank of the leader; -1: not known.
func (c *core) leader() int { return rankOf(c.node.BasicStatus().Lead) }

// proposeEntry has members agree on an entry in this leadership, which gets the term, the rank and an ID. done will have the ID.
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

// ready does what is due and returns the messages that are to be sent.
func (c *core) ready() (out []raftpb.Message, err error) {
	for c.node.HasReady() {
		rd := c.node.Ready()
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := c.store.ApplySnapshot(rd.Snapshot); err != nil {
				return out, err
			}
			var state agreed // what the snapshot leaves out is not there any more
			if err := json.Unmarshal(rd.Snapshot.Data, &state); err != nil {
				return out, fmt.Errorf("election: what was agreed on: %w", err)
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
				if err := c.reseat(e.Data); err != nil {
					return out, fmt.Errorf("election: entry %d: %w", e.Index, err)
				}
				continue
			}
			if len(e.Data) == 0 || e.Type != raftpb.EntryNormal {
				continue // of a leader that was elected
			}
			var it entry
			if err := json.Unmarshal(e.Data, &it); err != nil {
				return out, fmt.Errorf("election: entry %d: %w", e.Index, err)
			}
			c.take(it)
		}
		for _, r := range rd.ReadStates {
			if own, _, ok := parseQuestion(r.RequestCtx); ok { // a majority has answered what was asked then
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
		case raftpb.MsgHeartbeatResp: // the question was asked before now
			c.bound = c.now + promise
		case raftpb.MsgAppResp: // as if it had been: who votes may change with it, and a lease rests on those who voted before
			if !m.Reject && m.Index > 0 {
				c.bound = c.now + promise
			}
		}
	}
	return out, nil
}

// take applies an entry that members have agreed on.
func (c *core) take(e entry) {
	if c.state.apply(e) && e.ID > 0 && c.waits[e.ID] && e.Rank == c.rank && e.Term == c.term {
		delete(c.waits, e.ID)
		c.done = append(c.done, e.ID)
	}
}

// judge says whether this member holds a leadership.
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
	case c.state.Term == st.Term && c.state.Rank == c.rank: // with it, everything before it
		c.term = st.Term
	case c.asked < st.Term:
		if c.offer(entry{Term: st.Term, Rank: c.rank, Begin: true}) == nil {
			c.asked = st.Term
		}
	}
}

// compact replaces older entries by what they came to.
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
