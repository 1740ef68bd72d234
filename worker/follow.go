package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"star"
	"star/coord/session"
	"star/ps"
	"star/ps/rule"
	"star/train"
	"star/transport/wire"
)

// membership is how a worker joins a job, and joins it again when its coordinator is lost and
// another process takes over: it keeps its model and data, and makes everything else again, like a
// worker that comes back. joins has the Hello that each coordinator receives: only the
// rank, which is kept once it is known, and the progress of a member of a ring change.
// dial is set once the worker has a rank (joining.make).
type membership struct {
	joins session.MemberConfig
	dial  func(ctx context.Context, m *session.Member, views []wire.View) (*ps.Link, error) // the shards
}

// follower is what may lose its coordinator, and find another one. A worker of servers keeps
// nothing that a coordinator needs; a member of a ring tells how far its parameters are, because
// nobody else has them.
type follower interface {
	work(ctx context.Context) error
	leaderless(ctx context.Context, err error) bool
	follow(ctx context.Context, s *membership, why error) error
}

// open reaches every shard. Until it has, the link is the one before, or nil. From here on what the
// coordinator says is heeded: it may be lost meanwhile, or have others hold copies of a shard.
//
// A ring has no shards, and nothing is done. An error: a shard cannot be reached within
// JoinTimeout, or the coordinator is lost meanwhile, which commands.failed then says. The first
// worker of a job sends its parameters (Seed) before this returns.
func (w *worker) open(ctx context.Context, s *membership) error {
	if len(w.member.Welcome.Shards) == 0 {
		return nil
	}
	views, err := w.views(w.member)
	if err != nil {
		return err
	}
	t := &toShards{w: w, views: views, turned: make(chan struct{})}
	w.commands = newCommandStream(w.member, t.turn, t.freeze, w.dismissed)
	link, err := t.reach(w.commands.begin(ctx, 0), func(ctx context.Context, views []wire.View) (*ps.Link, error) {
		return s.dial(ctx, w.member, views)
	})
	w.commands.end()
	if err != nil {
		return err
	}
	w.link = link
	w.linked.Store(link)
	if w.member.Welcome.Seed {
		return w.seed(ctx)
	}
	return nil
}

// seed sends the parameters that the job begins with, and what the program's optimiser remembers, if it has trained before. Errors are those of the model, and of the link: a shard by whose rule
// the job cannot go on from there ends it.
func (w *worker) seed(ctx context.Context) error {
	e, err := experience(ctx, w.model)
	if err != nil {
		return err
	}
	st := rule.State{}
	if e != nil {
		st.Name, st.Steps = e.Rule, e.Steps
		for _, name := range slices.Sorted(maps.Keys(e.Slots)) {
			st.Slots = append(st.Slots, rule.Slot{Name: name, Data: e.Slots[name]})
		}
		w.log.Info("the job goes on from the state of the script's optimiser", "optimizer", e.Rule, "steps", e.Steps)
	}
	return w.link.InitState(ctx, st)
}

// recalled is what the job's optimiser remembers, as shards say it.
func (w *worker) recalled(ctx context.Context) (*train.Experience, error) {
	if w.link == nil {
		return nil, errors.New("this worker has no shards to ask")
	}
	st, err := w.link.State(ctx)
	if err != nil {
		return nil, err
	}
	e := &train.Experience{Rule: st.Name, Steps: st.Steps, Slots: map[string][]float32{}}
	for _, slot := range st.Slots {
		e.Slots[slot.Name] = slot.Data
	}
	return e, nil
}

// answers has a model whose program asks what the job's optimiser remembers be answered by recall.
func answers(m train.Model, recall func(ctx context.Context) (*train.Experience, error)) {
	if m, ok := m.(train.Curious); ok {
		m.Asks(recall)
	}
}

// finishing has the program of the first worker know, before the job is over, what its optimiser remembers. All workers at once would need as many copies of it.
func (w *worker) finishing(ctx context.Context, rel wire.Release) {
	if m, ok := w.model.(train.Curious); ok && rel.Action == wire.Finish && w.rank == 0 {
		m.Over(ctx)
	}
}

// work is the time from Joined to the end of the job, or of the coordinator. Errors are those of
// train.
func (w *worker) work(ctx context.Context) error {
	answers(w.model, w.recalled)
	if err := session.Say(w.member, wire.Joined{Worker: star.Worker(w.rank)}, nil); err != nil {
		return err
	}
	return w.train(ctx)
}

// leaderless says whether a worker that ended with err has lost its coordinator, and there are
// others. ctx is that of looking for another one: when it has ended, nobody looks.
func (w *worker) leaderless(ctx context.Context, err error) bool {
	if err == nil || len(w.job.Coordinators) == 0 || ctx.Err() != nil || w.retired() != nil {
		return false
	}
	var lost *session.LostError
	return errors.As(err, &lost) || w.commands != nil && errors.As(w.commands.failed(), &lost)
}

// follow finds the coordinator after one was lost. What was in hand is void: its batch is handed out again.
//
// Errors are those of session.Join (no process takes over within JoinTimeout; *session.OverError: the job
// has ended meanwhile), and those of open. The step goes on behind what the next coordinator has
// seen of this worker, so that nothing that is still on its way is taken for a later one.
func (w *worker) follow(ctx context.Context, s *membership, why error) error {
	begun := time.Now()
	w.log.Warn("the coordinator is lost; looking for the next one", "step", w.step, "reason", why)
	w.member.Close()
	before := w.link
	if before != nil {
		before.Close() // what is still on these connections will not be taken for a later step
	}
	if w.commands != nil {
		w.commands.orders.Close()
		w.commands = nil
	}
	w.tree.forget()
	s.joins.Rejoins, s.joins.Hello.Rank = true, w.rank
	m, err := session.Join(ctx, s.joins)
	if err != nil {
		return err
	}
	w.member, w.step = m, m.Welcome.Step
	w.sent, w.got, w.start = 0, 0, 0
	m.Beat()
	if err := w.open(ctx, s); err != nil {
		return err
	}
	if err := w.carryOver(before); err != nil {
		return err
	}
	w.log.Info("follows another coordinator", "term", m.Welcome.Term, "version", m.Welcome.Version, "step", w.step, "after", time.Since(begun).Round(time.Millisecond))
	return nil
}

// carryOver begins with what the codec of the link before had left out when the gradients before
// the one in hand had been used: that one is computed again. Otherwise what it has left out would
// be lost with the link.
func (w *worker) carryOver(before *ps.Link) error {
	if before == nil || w.link == nil || w.step < 1 {
		return nil
	}
	r := before.Freeze(w.step-1, false)
	if r == nil { // there is no codec
		return nil
	}
	_, err := w.link.Recall(func(_ int64, dst []float32) error { r.Next(dst); return nil }, r.Pieces)
	return err
}

// onLoss has f called when the coordinator is lost, with the reason. At once, if it is lost
// already. It is for waits that only a shard could end, and that no shard will.
func (b *commandStream) onLoss(f context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandon = f
	b.lostLocked()
}

// lostLocked tells that the coordinator is lost. The lock is held.
func (b *commandStream) lostLocked() {
	var lost *session.LostError
	if b.abandon != nil && errors.As(b.err, &lost) {
		b.abandon(b.err)
	}
}
