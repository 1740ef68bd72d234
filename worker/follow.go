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
	"star/train/optim"
	"star/transport/wire"
)

// membership is how a worker joins a job, and joins again when its coordinator is lost and another
// process takes over: it keeps its model and data, and sets up everything else again, like a worker
// that returns. joins has the Hello for each coordinator: only the rank, once it is known, and the
// progress of a ring member change. dial is set once the worker has a rank (joining.make).
type membership struct {
	joins session.MemberConfig
	// dial connects to the shards.
	dial func(ctx context.Context, m *session.Member, views []wire.View) (*ps.Link, error)
}

// After a loss, one of two things happens:
//
//	lost ─▶ lostLeader? ── yes ─▶ follow ─▶ Join, open, carryOver ─▶ work
//	             └── no ─▶ the worker ends (joining.ends)
//
// A worker tries until JoinTimeout, and until its process must stop.

// follower is a worker that can lose its coordinator and follow the next one. A worker with servers
// has no state that a coordinator needs; a ring member reports the version of its parameters,
// because only ring members have them.
type follower interface {
	work(ctx context.Context) error
	lostLeader(ctx context.Context, err error) bool
	follow(ctx context.Context, s *membership, why error) error
}

// open connects to every shard. Until then the link is the one before, or nil. From here on the
// coordinator's orders are read: it may be lost meanwhile, or change the holders of a shard's
// copies.
//
// For a ring it does nothing. An error: a shard cannot be reached within JoinTimeout, or the
// coordinator is lost, which commands.failed then reports. The first worker of a job sends its
// parameters (Seed) before open returns.
func (w *worker) open(ctx context.Context, s *membership) error {
	if len(w.member.Welcome.Shards) == 0 {
		return nil
	}
	views, err := w.views(w.member)
	if err != nil {
		return err
	}
	t := &toShards{w: w, views: views, turned: make(chan struct{})}
	w.commands = newCommandStream(w.member, t.turn, t.freeze, w.onOrdersClosed)
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

// seed sends the initial parameters of the job, and the state of the program's optimizer if it has
// trained before. Errors are those of the model, and of the link: a shard with a rule that cannot continue
// from that state ends the job.
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
		w.log.Info("initialised the optimizer from the script's", "optimizer", e.Rule, "steps", e.Steps)
	}
	return w.link.InitState(ctx, st)
}

// recalled returns the state of the job's optimizer, which it asks the shards for, or of this worker's own.
func (w *worker) recalled(ctx context.Context) (*train.Experience, error) {
	if st, ok := w.ownState(); ok {
		return experienceOf(st), nil
	}
	if w.link == nil {
		return nil, errors.New("cannot read the optimizer state: this worker has no shards")
	}
	st, err := w.link.State(ctx)
	if err != nil {
		return nil, err
	}
	got := optim.State{Name: st.Name, Steps: st.Steps}
	for _, slot := range st.Slots {
		got.Slots = append(got.Slots, optim.Slot(slot))
	}
	return experienceOf(got), nil
}

// ownState returns the state of this worker's own optimizer, if its local steps are for outer steps: the job's
// optimizer makes none.
func (w *worker) ownState() (st optim.State, ok bool) {
	if w.stride == nil || !w.outer {
		return st, false
	}
	o, ok := w.stride.Optimizer().(*optim.Optimizer)
	if ok {
		st = o.State()
	}
	return st, ok
}

// experienceOf describes a state for a program. It has the vectors of st.
func experienceOf(st optim.State) *train.Experience {
	e := &train.Experience{Rule: st.Name, Steps: st.Steps, Slots: map[string][]float32{}}
	for _, slot := range st.Slots {
		e.Slots[slot.Name] = slot.Data
	}
	return e
}

// answers has recall answer the questions of a model's program for the state of the job's optimizer.
func answers(m train.Model, recall func(ctx context.Context) (*train.Experience, error)) {
	if m, ok := m.(train.Curious); ok {
		m.Asks(recall)
	}
}

// finishing sends the final optimizer state to the program of the first worker before the job is
// over. Sending it to all workers at once would need as many copies of it.
func (w *worker) finishing(ctx context.Context, rel wire.Release) {
	if m, ok := w.model.(train.Curious); ok && rel.Action == wire.Finish && w.rank == 0 {
		m.Over(ctx)
	}
}

// work runs from Joined to the end of the job, or of the coordinator. Errors are those of train.
func (w *worker) work(ctx context.Context) error {
	answers(w.model, w.recalled)
	if err := session.Say(w.member, wire.Joined{Worker: star.Worker(w.rank)}, nil); err != nil {
		return err
	}
	return w.train(ctx)
}

// lostLeader reports whether a worker that ended with err has lost its coordinator and may look for
// another one. When ctx has ended it does not look.
func (w *worker) lostLeader(ctx context.Context, err error) bool {
	if err == nil || len(w.job.Coordinators) == 0 || ctx.Err() != nil || w.retired() != nil {
		return false
	}
	var lost *session.LostError
	return errors.As(err, &lost) || w.commands != nil && errors.As(w.commands.failed(), &lost)
}

// follow joins the next coordinator after one was lost. The current step is void: its batch is
// handed out again.
//
// Errors are those of session.Join (no process takes over within JoinTimeout; *session.OverError:
// the job has ended meanwhile), and those of open. Steps continue after the last one that the next
// coordinator has seen of this worker, so that late messages cannot be mistaken for later steps.
func (w *worker) follow(ctx context.Context, s *membership, why error) error {
	begun := time.Now()
	w.log.Warn("the coordinator is lost; looking for the next one", "step", w.step, "reason", why)
	w.member.Close()
	before := w.link
	if before != nil {
		before.Close() // late data on these connections must not count for a later step
	}
	if w.commands != nil {
		w.commands.orders.Close()
		w.commands = nil
	}
	w.tree.forget()
	w.stream = nil
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
	w.log.Info("joined another coordinator", "term", m.Welcome.Term, "version", m.Welcome.Version, "step", w.step, "after", time.Since(begun).Round(time.Millisecond))
	return nil
}

// carryOver restores the codec's residual as of the gradients before the current one, which is
// computed again. Otherwise the residual would be lost with the link.
func (w *worker) carryOver(before *ps.Link) error {
	if before == nil || w.link == nil || w.step < 1 {
		return nil
	}
	r := before.Freeze(w.step-1, false)
	if r == nil { // no codec
		return nil
	}
	_, err := w.link.Recall(func(_ int64, dst []float32) error { r.Next(dst); return nil }, r.Pieces)
	return err
}

// onLoss has f called with the reason when the coordinator is lost; at once, if it is already lost.
// It ends waits that only a shard could end otherwise.
func (b *commandStream) onLoss(f context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandon = f
	b.lostLocked()
}

// lostLocked calls abandon if the coordinator is lost. The caller holds the lock.
func (b *commandStream) lostLocked() {
	var lost *session.LostError
	if b.abandon != nil && errors.As(b.err, &lost) {
		b.abandon(b.err)
	}
}
