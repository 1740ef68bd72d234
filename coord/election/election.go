package election

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Config is the settings of a member.
type Config struct {
	Job     string
	Rank    int      // of this member
	Members []string // addresses, by rank; 3 to wire.MaxCandidates
	Network transport.Network

	// Hello identifies this member to the others; Token, Version and Host are used.
	Hello wire.Hello

	// Dir is a folder for the state of this member, so that it is the same member after a restart; empty: the
	// state is in memory. No other process may use the folder.
	Dir   string
	Words Words // what messages call things

	// JoinTimeout is how long members may take to find each other; zero means 2 min.
	JoinTimeout time.Duration
	Log         *slog.Logger // nil: nothing is logged
}

// Words are the names of members and settings in messages.
type Words struct {
	Member  string // "star-ps"
	Does    string // "coordinate the job"
	Members string // "--coordinators"
	Timeout string // "--join-timeout"
	Job     string // "job"
	Named   string // "--job"
}

func (w *Words) fill() {
	*w = Words{cmp.Or(w.Member, "star-ps"), cmp.Or(w.Does, "coordinate the job"), cmp.Or(w.Members, "--coordinators"), cmp.Or(w.Timeout, "--join-timeout"), cmp.Or(w.Job, "job"), cmp.Or(w.Named, "--job")}
}

// ErrLeadershipLost: the leadership is over.
var ErrLeadershipLost = errors.New("another process coordinates the job now, or will")

// FormError: members have not found each other in time.
type FormError struct {
	Timeout time.Duration
	Missing []string
	Words   Words
}

func (e *FormError) Error() string {
	return fmt.Sprintf("the processes that may %s did not all find each other within %v (%s): missing %v (%s)", e.Words.Does, e.Timeout, e.Words.Timeout, e.Missing, e.Words.Members)
}

// ExitCode is that of a join that timed out.
func (e *FormError) ExitCode() int { return exitcode.Lost }

// LateError: a process that is to replace another one of its rank did not get its place in time.
type LateError struct {
	Rank    int
	Timeout time.Duration
	Silent  []string // others without a connection to it
	Words   Words
}

func (e *LateError) Error() string {
	why := "the present holder is alive, or too few members are left to agree"
	if len(e.Silent) > 0 {
		why += fmt.Sprintf("; no connection to %v", e.Silent)
	}
	return fmt.Sprintf("another process was %s %d before, and this one did not get its place within %v (%s): %s", e.Words.Member, e.Rank, e.Timeout, e.Words.Timeout, why)
}

// ExitCode is that of a join that timed out.
func (e *LateError) ExitCode() int { return exitcode.Lost }

// ReplacedError: the others did not hear from this member for so long that they gave its place to another process.
type ReplacedError struct {
	Rank int
	By   string // the member that reports it
	Word string // the word for a member
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("%s reports that another process is %s %d now: this one was silent for %v, and another one was started with that --rank", e.By, e.Word, e.Rank, vacantAfter)
}

// ExitCode is that of two processes with one rank.
func (e *ReplacedError) ExitCode() int { return exitcode.Disagree }

// processIDLen is the length of a number that distinguishes processes of one rank.
const processIDLen = 16 // bytes

// Times of connections between members.
const (
	dialTime  = 2 * time.Second
	sendTime  = 2 * time.Second
	retryTime = 200 * time.Millisecond
	noteTime  = 10 * time.Second       // maximum time for agreement on a note
	handTime  = 3 * time.Second        // maximum time for another member to begin to lead
	fullTime  = 200 * time.Millisecond // between attempts to write to a full disk
	// How long a member stays after the end of the job, for members that may not know of it.
	partTime = 5 * time.Second
)

// Member is one member of the group. Create it with New, pass it connections with Accept, and Run it.
//
// Goroutines: Run owns the core, the leadership and the notes. One goroutine per other member sends to it (speak), and
// one per connection reads from it (Accept); they share the fields below mu with Run.
type Member struct {
	cfg  Config
	log  *slog.Logger
	own  [processIDLen]byte
	disk *disk            // nil: the state is in memory
	was  []raftpb.Message // the records of disk at the start
	full atomic.Pointer[error]
	in   chan input
	done chan struct{} // closed when Run has ended

	mu      sync.Mutex
	lives   map[int]holder // by rank: the process that has the place, as far as this one knows
	turn    int            // of this process
	agreed  map[int]bool   // others that take this process for a founder
	callers map[int]caller // processes that ask for a place
	here    map[int]int    // by rank: connections from it
	met     chan struct{}  // a token when another member has agreed
	turned  chan struct{}  // closed when turn changes

	status      atomic.Pointer[Status]
	leaderships chan *Leadership

	closed chan struct{} // closed when the job is over, as this member knows
	last   []byte        // the last note at that time

	begun      time.Time
	leadership *Leadership // Run's
	notes      map[uint64]chan error
	parts      map[int]bool // others that know that the job is over
	until      time.Time    // when this member ends nevertheless; zero: the job is not over

	admitAt time.Duration // earliest time of the next admission
}

// Status is a member's knowledge of the leadership.
type Status struct {
	Term   int64 // of the protocol: not every term has a leadership
	Leader int   // rank; -1: unknown
	Addr   string
}

// input is an event for the member's goroutine.
type input struct {
	from       int
	id         uint64 // of the process
	msg        raftpb.Message
	bye        bool // the sender knows that the job is over
	note       []byte
	add        bool
	over       bool
	resign     bool
	leadership *Leadership
	answer     chan error // of a note
}

// New creates a member.
func New(cfg Config) (*Member, error) {
	if n := len(cfg.Members); n < 3 || n > wire.MaxCandidates || cfg.Rank < 0 || cfg.Rank >= n {
		return nil, fmt.Errorf("election: member %d of %d: want 3 to %d members, and a rank below that", cfg.Rank, n, wire.MaxCandidates)
	}
	if cfg.JoinTimeout == 0 {
		cfg.JoinTimeout = 2 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Member{
		cfg: cfg, log: cfg.Log, in: make(chan input, 256), done: make(chan struct{}), lives: map[int]holder{}, here: map[int]int{},
		agreed: map[int]bool{}, callers: map[int]caller{}, turned: make(chan struct{}),
		parts: map[int]bool{}, closed: make(chan struct{}), met: make(chan struct{}, 1), leaderships: make(chan *Leadership, 1), begun: time.Now(), notes: map[uint64]chan error{},
	}
	c.cfg.Words.fill()
	rand.Read(c.own[:])
	c.status.Store(&Status{Leader: -1})
	if cfg.Dir == "" {
		return c, nil
	}
	var err error
	if c.disk, c.was, err = openDisk(cfg.Dir, mark{Format: diskFormat, Job: cfg.Job, Rank: cfg.Rank, Members: cfg.Members, Life: c.own}); err != nil {
		return nil, err
	}
	c.own, c.turn = c.disk.mark.Life, c.disk.mark.Turn
	maps.Copy(c.lives, c.disk.mark.Lives)
	return c, nil
}

// Missing lists the other members without a connection to this one.
func (c *Member) Missing() []string { return c.silent() }

// Full is the reason why this member cannot write its state: until it can, it does not take part. Nil: it can.
func (c *Member) Full() error {
	if err := c.full.Load(); err != nil {
		return *err
	}
	return nil
}

// Status is what this member knows at present.
func (c *Member) Status() Status { return *c.status.Load() }

// Closed is closed when members have agreed, as far as this one knows, that the job is over (Leadership.Close).
func (c *Member) Closed() <-chan struct{} { return c.closed }

// Last is the last note that was agreed on, once Closed is closed.
func (c *Member) Last() []byte {
	select {
	case <-c.closed:
		return c.last
	default:
		return nil
	}
}

// Await waits for a leadership of this member that it has not returned before. The error is that of Run, or ctx's.
func (c *Member) Await(ctx context.Context) (*Leadership, error) {
	select {
	case r := <-c.leaderships:
		return r, nil
	case <-c.done:
		return nil, ErrLeadershipLost
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept serves the connection of another member until it ends. payload is that of its Hello.
func (c *Member) Accept(ctx context.Context, conn transport.Conn, h wire.Hello, payload []byte) error {
	defer conn.Close()
	refuse := func(exit int, err error) error {
		c.log.Warn("refused a coordinator candidate", "peer", conn.Peer(), "reason", err)
		transport.Refuse(conn, wire.Reject{Exit: exit, Reason: err.Error()})
		return err
	}
	switch {
	case h.Job != c.cfg.Job:
		return refuse(exitcode.Disagree, fmt.Errorf("this is %s %q, not %q (%s)", c.cfg.Words.Job, c.cfg.Job, h.Job, c.cfg.Words.Named))
	case h.Role != wire.RoleServer || h.Rank < 0 || h.Rank >= len(c.cfg.Members) || h.Rank == c.cfg.Rank:
		return refuse(exitcode.Disagree, fmt.Errorf("%s %d is not one of the %d that may %s, or has this process's rank, %d (%s, --rank)",
			h.Role, h.Rank, len(c.cfg.Members), c.cfg.Words.Does, c.cfg.Rank, c.cfg.Words.Members))
	}
	g, err := parseGreeting(payload)
	if err != nil {
		return refuse(exitcode.Disagree, fmt.Errorf("%s %d: %w", c.cfg.Words.Member, h.Rank, err))
	}
	says := c.greet(h.Rank, g)
	conn.SetPeer(fmt.Sprintf("coordinator %d (%s)", h.Rank, conn.RemoteAddr()))
	conn.SetWriteDeadline(time.Now().Add(sendTime))
	if err := transport.Send(conn, wire.Welcome{Rank: h.Rank}, append(c.own[:], byte(says))); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer c.connected(h.Rank, g)()
	for {
		conn.SetReadDeadline(time.Time{}) // a follower may be silent for long
		f, err := conn.Recv()
		if err != nil {
			return err
		}
		if f.Kind != wire.KindBallot {
			return fmt.Errorf("unexpected %v", f.Kind)
		}
		b, err := wire.ParseBallot(f.Header)
		if err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(dialTime + time.Duration(f.Size>>20)*time.Second))
		text, err := transport.ReadAll(conn, f)
		if err != nil {
			return err
		}
		in := input{from: h.Rank, id: g.id(h.Rank), bye: len(text) == 0}
		if err := in.msg.Unmarshal(text); err != nil || b.From != h.Rank || b.To != c.cfg.Rank {
			err = fmt.Errorf("a ballot from %d to %d on the wrong connection: %v", b.From, b.To, err)
			c.log.Warn("closed the connection of a member of the group", "peer", conn.Peer(), "reason", err)
			return err
		}
		select {
		case c.in <- in:
		case <-c.done:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Run takes part in the group until ctx ends, or until the job is over (Leadership.Close) and the others know it: then
// it returns nil.
func (c *Member) Run(ctx context.Context) (err error) {
	defer close(c.done)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	out := make([]chan raftpb.Message, len(c.cfg.Members))
	for r := range out {
		if r == c.cfg.Rank {
			continue
		}
		out[r] = make(chan raftpb.Message, 128)
		wg.Go(func() {
			if err := c.speak(ctx, r, out[r]); err != nil {
				stop(err)
			}
		})
	}
	founds, err := c.form(ctx)
	if err != nil {
		return err
	}
	var limit <-chan time.Time // for a late process to be admitted
	site := flightrecorder.Open(fmt.Sprintf("coordinator %d", c.cfg.Rank), "the place of an earlier process of its rank", "", "")
	defer site.Close()
	core, err := c.core(ctx, founds)
	if c.disk != nil {
		defer c.disk.Close()
	}
	if err != nil {
		return err
	}
	if !founds && !core.votes(core.self) {
		c.log.Info("asked for the place of an earlier process of this rank")
		limit = time.After(c.cfg.JoinTimeout)
		site.Begin(-1, c.cfg.JoinTimeout)
	}
	defer func() { c.over() }()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-tick.C:
			// Rank 0 starts the first election, so that a job with all processes present has a coordinator at once.
			if n++; c.cfg.Rank == 0 && founds && n <= electionTicks && core.leader() < 0 {
				core.campaign()
			}
			core.tick(time.Since(c.begun))
			c.letIn(core)
		case <-limit:
			return &LateError{c.cfg.Rank, c.cfg.JoinTimeout, c.silent(), c.cfg.Words}
		case m := <-c.in:
			switch {
			case m.leadership != nil:
				c.noteIt(core, m)
			case m.bye:
				c.parts[m.from] = true
			default:
				if err := core.step(m.id, m.msg, time.Since(c.begun)); errors.Is(err, errBroken) {
					return err
				} else if err != nil {
					c.log.Warn("ignored a message", "reason", err)
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		msgs, err := core.ready()
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // the state may not be on disk
			return context.Cause(ctx)
		}
		c.publish(core)
		if limit != nil && core.votes(core.self) {
			limit = nil
			site.End()
		}
		for _, m := range msgs {
			select {
			case out[rankOf(m.To)] <- m:
			default: // the protocol sends it again
			}
		}
		if core.state.Over && c.part(out) {
			return nil
		}
	}
}

// core is this member's part of the protocol: a new one, or the one on its disk.
func (c *Member) core(ctx context.Context, founds bool) (core *core, err error) {
	c.mu.Lock()
	turn, lives := c.turn, maps.Clone(c.lives)
	c.mu.Unlock()
	id := founderID(c.cfg.Rank)
	if turn != founder {
		id = lateID(c.cfg.Rank, c.own)
	}
	kept := c.disk != nil && c.disk.mark.Turn != fresh // the disk has a member's state
	switch {
	case kept:
		if core, err = restore(id, c.was, c.log); err != nil {
			err = &DiskError{fmt.Errorf("%s: damaged: %w; remove the folder, and the member gets the state of the others", c.disk.Path, err), exitcode.Corrupt}
		}
		c.was = nil
	case founds:
		core, err = newCore(c.cfg.Rank, len(c.cfg.Members), c.log)
	default:
		core, err = newLateCore(id, c.log)
	}
	if err != nil || c.disk == nil {
		return core, err
	}
	if !kept {
		c.disk.mark.Turn, c.disk.mark.Lives = turn, lives
		if turn != founder {
			c.disk.mark.Lives = nil
		}
		if err := c.disk.rewrite(core.store); err != nil {
			return nil, err
		}
	}
	core.keep = func(r raftpb.Message, sync bool) { c.persist(ctx, core, func() error { return c.disk.write(r, sync) }) }
	core.kept = func() {
		if c.disk.Size > 2*c.disk.base+rewriteAt {
			if err := c.disk.rewrite(core.store); err != nil { // the longer file is valid, too
				c.log.Warn("could not rewrite the state file", "reason", err)
			}
		}
	}
	return core, nil
}

// persist writes, and tries again until it succeeds. Until then this member leads no group and answers no message, and
// the others continue without it.
func (c *Member) persist(ctx context.Context, core *core, write func() error) {
	for {
		err := write()
		if err == nil {
			if c.full.Swap(nil) != nil {
				c.log.Info("wrote the state file again")
			}
			return
		}
		if c.full.Swap(&err) == nil {
			c.log.Error("could not write the state file: this member does not take part until it can", "reason", err)
			core.resigned = core.node.BasicStatus().Term
			c.over()
		}
		select {
		case <-time.After(fullTime):
		case <-ctx.Done():
			return
		}
	}
}

// part announces to the others that this member knows that the job is over. It reports true when no other member needs
// it any more to learn that: all know it, or have left.
func (c *Member) part(out []chan raftpb.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := true
	for r, q := range out {
		if r == c.cfg.Rank {
			continue
		}
		select {
		case q <- raftpb.Message{}:
		default:
		}
		all = all && (c.parts[r] || c.here[r] == 0)
	}
	return all || time.Now().After(c.until)
}

// speak sends messages to one member, and reconnects when its connection ends. Only a refusal is an error.
func (c *Member) speak(ctx context.Context, to int, queue <-chan raftpb.Message) error {
	h := c.cfg.Hello
	h.Service, h.Role, h.Job, h.Rank, h.Addr = wire.ServiceElection, wire.RoleServer, c.cfg.Job, c.cfg.Rank, c.cfg.Members[c.cfg.Rank]
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, dialTime)
		mine, turned := c.greeting()
		conn, _, text, err := transport.Open(limited, c.cfg.Network, c.cfg.Members[to], h, mine.append(nil))
		cancel()
		if err == nil {
			if err = c.answered(to, mine, text); err == nil {
				err = c.send(ctx, conn, to, turned, queue)
			}
			conn.Close()
		}
		var refused *transport.RejectError
		var replaced *ReplacedError
		switch {
		case errors.As(err, &refused):
			return fmt.Errorf("election: %w", err)
		case errors.As(err, &replaced):
			return replaced
		}
		c.log.Debug("no connection to a member of the group", "member", to, "addr", c.cfg.Members[to], "reason", err)
		nap := time.NewTimer(retryTime)
		select {
		case <-nap.C:
		case <-ctx.Done():
		}
		nap.Stop()
		for drained := false; !drained; { // old messages are useless
			select {
			case <-queue:
			default:
				drained = true
			}
		}
	}
	return nil
}

// send sends messages over a connection until it ends, or until this process's greeting there is outdated.
func (c *Member) send(ctx context.Context, conn transport.Conn, to int, turned <-chan struct{}, queue <-chan raftpb.Message) error {
	over := make(chan error, 1)
	go func() { // the other side sends nothing: this waits for the end of the connection
		_, err := conn.Recv()
		over <- err
	}()
	defer func() { conn.Close(); <-over }()
	var text []byte
	for {
		select {
		case m := <-queue:
			n := m.Size()
			if m.From == 0 { // not a message of the protocol: see part
				n = 0
			}
			text = slices.Grow(text[:0], n)[:n]
			if n > 0 {
				if _, err := m.MarshalTo(text); err != nil {
					return err
				}
			}
			conn.SetWriteDeadline(time.Now().Add(sendTime))
			if err := transport.Send(conn, wire.Ballot{From: c.cfg.Rank, To: to}, text); err != nil {
				return err
			}
		case err := <-over:
			over <- err
			return err
		case <-turned:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// publish makes the new state of core visible to other goroutines.
func (c *Member) publish(core *core) {
	if core.state.Over && c.until.IsZero() { // before Close returns
		c.until = time.Now().Add(partTime)
		c.last = slices.Clone(core.state.Note)
		close(c.closed)
	}
	c.updatePlaces(core)
	st := Status{Term: int64(core.node.BasicStatus().Term), Leader: core.leader()}
	if st.Leader >= 0 {
		st.Addr = c.cfg.Members[st.Leader]
	}
	if old := c.status.Load(); *old != st {
		c.status.Store(&st)
		c.log.Debug("leader changed", "member", st.Leader, "term", st.Term)
	}
	if r := c.leadership; r != nil && core.term != uint64(r.Term) {
		c.over()
	}
	if core.term > 0 && c.leadership == nil && !core.state.Over {
		c.leadership = &Leadership{Term: int64(core.term), Rank: c.cfg.Rank, Note: slices.Clone(core.state.Note), Added: slices.Clone(core.state.Added), c: c, common: core.common, over: make(chan struct{})}
		select {
		case <-c.leaderships: // one that Await has not returned, and that is over
		default:
		}
		c.leaderships <- c.leadership
	}
	if c.leadership != nil {
		c.leadership.until.Store(int64(core.until))
	}
	for _, id := range core.done {
		if answer := c.notes[id]; answer != nil {
			answer <- nil
			delete(c.notes, id)
		}
	}
	core.done = core.done[:0]
}

// over ends the present leadership.
func (c *Member) over() {
	if c.leadership == nil {
		return
	}
	c.leadership.until.Store(0)
	close(c.leadership.over)
	c.leadership = nil
	for id, answer := range c.notes {
		answer <- ErrLeadershipLost
		delete(c.notes, id)
	}
}

func (c *Member) noteIt(core *core, m input) {
	if c.leadership != m.leadership {
		m.answer <- ErrLeadershipLost
		return
	}
	if m.resign {
		if !core.resign() {
			m.answer <- errAlone
			return
		}
		c.notes[0] = m.answer // answered with ErrLeadershipLost at the end of the leadership: no note has that number
		return
	}
	id, err := core.proposeEntry(entry{Note: m.note, Add: m.add, Over: m.over})
	if err != nil {
		m.answer <- err
		return
	}
	c.notes[id] = m.answer
}

// Leadership is the period in which this member coordinates.
type Leadership struct {
	Term int64
	Rank int
	Note []byte // the last one of earlier leaderships; nil: there was none

	Added [][]byte // to the note, in order

	c      *Member
	common time.Duration // difference of the group's clock to this member's
	until  atomic.Int64  // the lease's end, since c.begun; 0: it is over
	over   chan struct{}
}

// Over is closed when the leadership has ended.
func (r *Leadership) Over() <-chan struct{} { return r.over }

// Held reports whether no other member can coordinate now.
func (r *Leadership) Held() bool { return time.Since(r.c.begun) < time.Duration(r.until.Load()) }

// Clock is the time by a clock that all members share. It continues from leader to leader, independently of the hosts'
// wall clocks, with an error of a beat and the delay of a message. It began about when the group did.
func (r *Leadership) Clock() time.Duration { return time.Since(r.c.begun) + r.common }

// Hold waits until Held, or returns ErrLeadershipLost when the leadership has ended. A leader without answers of a
// majority loses its leadership after a second or two, so the wait is short.
func (r *Leadership) Hold() error {
	for !r.Held() {
		select {
		case <-r.over:
			return ErrLeadershipLost
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// SetNote replaces all notes by one that every later leadership has, once SetNote returns nil. After an error it may
// have it or not.
func (r *Leadership) SetNote(note []byte) error { return r.propose(input{note: note}) }

// Add appends a note that later leaderships have, until the next SetNote. The error is like that of SetNote.
func (r *Leadership) Add(more []byte) error { return r.propose(input{note: more, add: true}) }

// Close has members agree that the job is over: there will be no more leaderships, and each member ends when it and the
// others know that. The error is like that of SetNote. When it returns nil, Closed is closed here.
func (r *Leadership) Close() error { return r.propose(input{over: true}) }

// HandOver ends this leadership in favour of another member, which begins one within moments, and waits for that. The
// error is the reason why no other member leads; if it is errAlone, this member still does.
func (r *Leadership) HandOver() error {
	if err := r.propose(input{resign: true}); !errors.Is(err, ErrLeadershipLost) {
		return err
	}
	for end := time.Now().Add(handTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if st := r.c.Status(); st.Leader >= 0 && st.Leader != r.Rank {
			return nil
		}
	}
	return fmt.Errorf("election: no other member has taken over within %v", handTime)
}

var errAlone = errors.New("too few other members are connected")

func (r *Leadership) propose(m input) error {
	m.leadership, m.answer = r, make(chan error, 1)
	limit := time.NewTimer(noteTime)
	defer limit.Stop()
	site := flightrecorder.Open(fmt.Sprintf("coordinator %d", r.Rank), "the others to agree on a change", "", "")
	defer site.Close()
	site.Begin(-1, noteTime)
	select {
	case r.c.in <- m:
	case <-r.over:
		return ErrLeadershipLost
	case <-limit.C:
		return fmt.Errorf("election: this member did not accept a note within %v", noteTime)
	}
	select {
	case err := <-m.answer:
		return err
	case <-r.over:
		return ErrLeadershipLost
	case <-limit.C:
		return fmt.Errorf("election: the others did not agree on a note within %v", noteTime)
	}
}
