package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	gonet "net"
	"slices"
	"time"

	"star"
	"star/allreduce"
	"star/coord/session"
	"star/job"
	"star/job/process"
	"star/ps/rule"
	"star/train"
	"star/train/optim"
	"star/transport"
	"star/transport/wire"
)

// ringWorker is a worker of an all-reduce: it has the parameters and the optimizer itself, and makes
// the same updates as every other member of the ring. As a rider it gets the parameters from its
// parent.
//
// Its states:
//
//	            Ring with this worker as member (join)
//	   ┌────────────────────────────────────────────────────┐
//	   │                                                    ▼
//	rider ◀── Ring without it as member ── member ◀──▶ member, of another generation
//	   │                                     │
//	   │ the parent is lost (orphan)         │ a collective operation fails
//	   ▼                                     ▼
//	waits for a Ring                      broken: skips orders until a Ring with Now
//
// Invariants: a member has group set and version ≥ 0, a rider has neither. All members of a
// generation run the same collective operations in the same order. A version is made by all members
// or is repeated by the next ring; it is never made twice by one member.
//
// It executes a sequence of orders (work): a Ring has it form a ring with others (ringform.go); a
// Release has it make a version (ringround.go) or, as a rider, send a gradient to its parent
// (rider.go); a Save has it write a checkpoint. An order that fails because of others is not an
// error of the worker: mend interprets it. ring is the newest that was joined; group is nil while it
// rides, and while a ring is formed.
type ringWorker struct {
	*worker
	tcp *transport.TCP
	tls *tls.Config
	// hello is sent to parents.
	hello wire.Hello
	// costs is nil if not measured.
	costs *allreduce.Model

	// meet is where the first member of a ring listens.
	meet *sharedListener
	// relay serves riders.
	relay *riderRelay

	replicated

	// turns is the number of updates of a batch.
	turns int64

	ring wire.Ring
	// group is nil while this worker is not a member.
	group *allreduce.Group
	// counted is the part of group's traffic that is in records.
	counted allreduce.Traffic
	// broken: the ring has failed; only a new one helps.
	broken bool
	// marks exchanges with all members which riders were carried.
	marks []int64
	// last are the tallies of the last versions, which the coordinator may have missed.
	last []wire.Tally
	// parent is used as a rider.
	parent     parent
	riderBatch riderBatch
	// orphan is why the parent was lost.
	orphan error
	// ended is the end of the last round.
	ended time.Time

	// metadata of the last release, for the next coordinator.
	metadata []byte

	// riding is nil if riders' gradients are treated as the members'.
	riding *riderMomentum
	// part is for rounds that are closed.
	part partial
	// guard is nil with --poison off.
	guard *guard

	// commit makes version commits from the sum in grad, while others may lack the sum (settled);
	// nil: no such step.
	commit  func(context.Context) error
	commits int64

	// codec is nil if gradients are not compressed.
	codec *allreduce.Compressor
	// tuned is the version at which it was chosen.
	tuned int64
}

// replicated is the state that every member of a ring has, identical bit for bit after each version;
// a hash of params checks that at evaluations. Either opt and rule are set, or updates.
type replicated struct {
	params []float32
	opt    *optim.Optimizer
	rule   *rule.Descent
	// updates: the model makes the updates itself.
	updates train.Updater
	// outward makes outer steps: rule, or one that does nothing else.
	outward *rule.Descent

	// version is that of parameters and optimizer; -1: they are incomplete.
	version int64
	// samples applied until version: the clock of schedules.
	samples int64
}

// ringPatience is how long a collective operation may make no progress before the ring counts as
// broken. The others may still be computing, so it must be longer than any iteration; the
// coordinator detects lost members much earlier.
const ringPatience = 10 * time.Minute

// ringReach is how long a member tries to connect to a listening member before it reports a fault.
// The coordinator then forms the ring again, and removes one of the two if they still cannot
// connect. A listener that is only busy answers sooner.
const ringReach = 5 * time.Second

// newRingWorker opens the listeners, before the Hello announces their addresses. samples is the
// size of the training set.
//
// Errors are *job.SettingError for the address, the transport or the file of the cost model. The two
// listeners are for members (plain connections, which package allreduce secures itself) and for
// riders (frames).
func newRingWorker(job *job.Job, samples int, tcp *transport.TCP, all *process.Links, log *slog.Logger) (*ringWorker, error) {
	addr, err := process.ListenAddress(job)
	if err != nil {
		return nil, err
	}
	model, err := costModel(job)
	if err != nil {
		return nil, err
	}
	if model != nil {
		log.Info("cost model loaded", "file", job.RingModel, "ranks", measuredRanks(model), "samples", len(model.Samples), "tcp", model.TCP)
	}
	if err := checkTransport(job.Transport, tcp.TLS != nil); err != nil {
		return nil, job.Invalid("allreduce-transport", err)
	}
	w := &ringWorker{guard: newGuard(job.Poison, samples), tcp: tcp, tls: tcp.TLS, replicated: replicated{version: -1}, costs: model, parent: parent{all: all}}
	l, err := gonet.Listen("tcp", addr)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	w.meet = newSharedListener(l)
	riders, err := tcp.Listen(addr)
	if err != nil {
		w.meet.close()
		return nil, job.Invalid("listen", err)
	}
	w.relay = newRiderRelay(&process.Counted{Listener: riders, Links: all}, tcp.Config, job.Name, log)
	return w, nil
}

// checkTransport rejects transports that cannot connect members: shared memory and Unix sockets work
// only within a host, and TLS is used because the network between hosts is not trusted.
func checkTransport(kind string, tls bool) error {
	if tls && kind != job.Auto && kind != "tcp" {
		return fmt.Errorf("%s works only within a host, and TLS only over tcp; remove it, or --tls-cert and --tls-key", kind)
	}
	return nil
}

// CheckRing checks the cost model of a ring's collective operations before any worker starts. Errors
// are those of Run.
func CheckRing(job job.Job) error {
	_, err := costModel(&job)
	return err
}

// costModel reads the file of --allreduce-model; nil without one, or with servers: then the built-in
// model is used. An error names the file, with exit code 66 if it does not exist, 65 if it is
// invalid.
func costModel(j *job.Job) (*allreduce.Model, error) {
	if j.RingModel == "" || j.Arch != job.AllReduce {
		return nil, nil
	}
	m, err := allreduce.LoadModel(j.RingModel)
	if err != nil {
		return nil, job.FileError(fmt.Errorf("--allreduce-model %s: %w", j.RingModel, err), allreduce.ErrModel)
	}
	return m, nil
}

// measuredRanks returns the numbers of ranks for which a model has samples.
func measuredRanks(m *allreduce.Model) []int {
	var ns []int
	for _, s := range m.Samples {
		if !slices.Contains(ns, s.Ranks) {
			ns = append(ns, s.Ranks)
		}
	}
	slices.Sort(ns)
	return ns
}

// addresses returns the addresses for the Hello: that of meet and that of relay, separated by a
// comma. The coordinator rejects a worker without both.
func (w *ringWorker) addresses() string {
	return w.meet.Addr().String() + "," + w.relay.addr
}

// close closes all connections and listeners. Peers that wait for this worker fail at once. It must
// not be called during an operation.
func (w *ringWorker) close() {
	w.meet.close()
	w.relay.close()
	w.parent.close()
	if w.group != nil {
		w.group.Close()
	}
}

// train is the loop of a worker of a ring, with the results of worker.train. The parameters come
// from the seed or the checkpoint; otherwise they are missing until a ring has agreed (load).
func (w *ringWorker) train(ctx context.Context, base *worker, hello wire.Hello) error {
	w.worker, w.hello = base, hello
	w.hello.Service, w.hello.Rank, w.hello.Addr = wire.ServiceRing, w.rank, ""
	w.average = w.averageBuffers
	w.params = w.model.Params()
	w.relay.begin(w.params)
	if err := w.load(ctx); err != nil {
		return err
	}
	if w.version >= 0 {
		w.relay.change(w.version, func() {})
	}
	return w.work(ctx)
}

// work runs from Joined to the end of the job, or of the coordinator.
//
// Orders of a failed ring are skipped until an order forms another one at once; the coordinator
// knows of the failure from this worker's Fault or from another's. nil: the coordinator has stopped
// the job.
func (w *ringWorker) work(ctx context.Context) error {
	defer w.endStream()
	if err := session.Say(w.member, wire.Joined{Worker: star.Worker(w.rank)}, nil); err != nil {
		return err
	}
	w.commands = newCommandStream(w.member, nil, nil, w.onOrdersClosed)
	answers(w.model, w.recalled)
	w.late = func() bool {
		_, closed := w.commands.closing(w.ring.Generation, w.version)
		return closed
	}
	w.cpu = process.CPUTime()
	w.ended = time.Now()
	for {
		o, err := w.order(ctx)
		if err != nil {
			return err
		}
		if o.Kind == wire.KindRelease && o.Release.Action == wire.Stop {
			return nil
		}
		if o.Kind == wire.KindRelease && len(o.Payload) > 0 {
			w.metadata = o.Payload
		}
		if w.broken && (o.Kind != wire.KindRing || !o.Ring.Now) {
			continue // an order of the failed ring
		}
		op := w.commands.begin(ctx, max(w.ring.Generation, o.Ring.Generation))
		switch o.Kind {
		case wire.KindRing:
			err = w.join(op, o.Ring)
		case wire.KindSave:
			err = w.save(op, o.Save)
		case wire.KindRelease:
			if w.group != nil {
				err = w.round(op, o.Release)
			} else {
				err = w.ride(op, o.Release)
			}
		}
		cause := context.Cause(op)
		w.commands.end()
		if w.retires(err) {
			continue
		}
		if err = w.mend(ctx, cause, err); err != nil {
			return err
		}
	}
}

// follow joins the next coordinator after one was lost. It keeps parameters and optimizer, and
// reports their version; the ring is given up. The version counts only if the next coordinator
// continues from it: otherwise the parameters come from the others, as for a new worker.
func (w *ringWorker) follow(ctx context.Context, s *membership, why error) error {
	w.broken = true
	w.leaveGroup(ctx)
	w.parent.close()
	w.parent.addr, w.riderBatch, w.orphan = "", riderBatch{}, nil
	w.part.forget()
	w.ring, w.broken = wire.Ring{}, false
	enrol := *s.joins.Enrol
	enrol.Stand = &session.Stand{Version: w.version, Step: w.step, Metadata: w.metadata, Told: w.last}
	s.joins.Enrol = &enrol
	if err := w.worker.follow(ctx, s, why); err != nil {
		return err
	}
	if !w.member.Welcome.Seed && w.member.Welcome.Step > 0 { // the others continued without this one
		w.version = -1
		w.last = nil
	}
	return nil
}

// order waits for the next order. For a rider without a parent the wait is limited: the coordinator
// detects the loss of the parent within DeadAfter, and names another one. After ten seconds more the
// error is a *job.LostError.
func (w *ringWorker) order(ctx context.Context) (session.Order, error) {
	if w.orphan != nil {
		limited, cancel := context.WithTimeoutCause(ctx, w.job.DeadAfter+10*time.Second, &job.LostError{Err: w.orphan})
		defer cancel()
		ctx, w.orphan = limited, nil
	}
	return w.commands.next(ctx)
}

// load creates the optimizer, and loads parameters and state from the checkpoint of a job that
// resumes, if this worker has it.
//
// Errors: of the optimizer's settings; a *job.SettingError if the job's workers make their own
// updates and this model does not; of the checkpoint; a *job.DisagreeError if the checkpoint is of
// another version than the job's and not older. Afterwards version is −1 if the parameters will come
// from others.
func (w *ringWorker) load(ctx context.Context) error {
	cfg, rate, err := process.UpdateRule(w.job)
	if err != nil {
		return err
	}
	j := *w.job
	j.Workers, j.Batch = w.member.Welcome.Workers, equal(w.job, w.member.Welcome)
	made, err := process.MakeBaseline(&j)
	if err != nil {
		return err
	}
	_, w.part.live = made.Rule.(rule.LiveSpec)
	if cfg.Name == optim.DANA && made.Rule == nil && made.Local == nil {
		w.riding = newRiderMomentum(len(w.params), cfg.Momentum, w.job.Clip, w.relay.free)
	}
	cfg = cfg.Shared()     // members always make their updates together
	if made.Local != nil { // the job's own optimizer makes the local steps
		cfg = process.Outer(made.Local.Outer)
		if rate, err = cfg.Rate(); err != nil {
			return err
		}
	}
	if cfg.Name == optim.Own {
		own, ok := w.model.(train.Updater)
		if !ok {
			return w.job.Invalid("optimizer", fmt.Errorf("the job's workers make their own updates, and this worker's model does not"))
		}
		w.updates, w.programs = own, &programSteps{model: own}
		w.outward = &rule.Descent{}
	} else {
		if w.opt, err = optim.New(process.Shaped(cfg, w.model.Layout()), len(w.params)); err != nil {
			return w.job.Invalid("optimizer", err)
		}
		w.rule = &rule.Descent{Optimizer: w.opt, Schedule: rate, Clip: w.job.Clip, Unit: cfg.Unit()}
		w.outward = w.rule
	}
	at := w.member.Welcome.Version
	switch {
	case at > 0 && w.member.Welcome.Step > 0: // the ring is ahead of every checkpoint
		w.log.Info("joined a running job: waiting for the parameters of another worker", "version", at)
		return nil
	case at == 0:
		w.version = 0 // all workers make the same ones from the seed
		return w.experienced(ctx, cfg)
	case w.job.Resume == "":
		w.log.Info("started without --resume: waiting for the parameters of another worker")
		return nil
	}
	c, err := process.OpenCheckpoint(w.job.Resume, w.log)
	if err != nil {
		return err
	}
	m := c.Manifest()
	if m.Version < at && m.Params == int64(len(w.params)) { // others have continued since
		w.log.Info("ignored an older checkpoint: waiting for the parameters of another worker", "checkpoint", m.Version, "version", at)
		return nil
	}
	if m.Version != at || m.Params != int64(len(w.params)) {
		return &job.DisagreeError{Err: fmt.Errorf("cannot use --resume %s: the checkpoint has version %d of %d parameters, the job resumes at version %d of %d; give every worker the same checkpoint",
			w.job.Resume, m.Version, m.Params, at, len(w.params))}
	}
	params, err := process.Restore(c, wire.ShardInfo{To: m.Params}, func(st optim.State) error {
		if w.updates != nil {
			return w.setState(ctx, st)
		}
		return process.SetRuleState(w.rule, st)
	})
	if err != nil {
		return err
	}
	copy(w.params, params)
	w.version, w.samples, w.legacy = m.Version, m.Samples, c.Residuals()
	return nil
}

// experienced initialises the optimizer, configured by c, with the state of the model's optimizer.
// Of several workers the first one's counts (begins). An error: the state does not fit.
func (w *ringWorker) experienced(ctx context.Context, c optim.Config) error {
	e, err := experience(ctx, w.model)
	if err != nil || e == nil || w.updates != nil {
		return err
	}
	st, err := process.BeginState(e, c)
	if err != nil {
		return w.job.Invalid("optimizer", err)
	}
	return w.opt.SetState(st)
}

// recalled returns the state of the job's optimizer, which each member of the ring has, or of this member's own.
func (w *ringWorker) recalled(context.Context) (*train.Experience, error) {
	if st, ok := w.ownState(); ok {
		return experienceOf(st), nil
	}
	if w.rule == nil || w.version < 0 || w.group == nil {
		return nil, errors.New("cannot read the optimizer state: this worker is not a member of the ring")
	}
	st, err := process.Recalled(w.rule)
	if err != nil {
		return nil, err
	}
	return experienceOf(st), nil
}

// experience returns the state of the optimizer of a model that was trained before; nil: it was
// not.
func experience(ctx context.Context, m train.Model) (*train.Experience, error) {
	if m, ok := m.(train.Experienced); ok {
		return m.Experience(ctx)
	}
	return nil, nil
}

// mend interprets an error of an order. cause is why the order was given up, if it was.
//
// nil: the worker continues, and waits for the next order. It reports a failed ring to the
// coordinator, with the member that it suspects, if it suspects a single one; the coordinator finds
// the cause from the reports of all members. An error is the worker's own: of its model, data or
// settings, or the loss of the coordinator.
func (w *ringWorker) mend(ctx context.Context, cause, err error) error {
	var peer *allreduce.Error
	var link *parentError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(cause, errSuperseded):
		w.log.Debug("gave up an order", "generation", w.ring.Generation, "err", err)
		w.broken = w.group != nil || w.broken
		return nil
	case errors.As(err, &link):
		w.log.Warn("lost the parent; waiting for another one", "err", err)
		w.parent.close()
		w.orphan = err
		return nil
	case errors.As(err, &peer) || errors.Is(err, errRing):
		w.broken = true
		suspect := -1
		if peer != nil && peer.Rank >= 0 && peer.Rank < len(w.ring.Members) && int(w.ring.Members[peer.Rank]) != w.rank {
			suspect = int(w.ring.Members[peer.Rank])
		}
		w.log.Warn("ring failed", "generation", w.ring.Generation, "err", err)
		return session.Say(w.member, wire.Fault{
			Worker: star.Worker(w.rank), Generation: w.ring.Generation, Suspect: suspect, Reason: err.Error(),
		}, nil)
	}
	return err
}

// errRing: the ring cannot be used, and no member is known to be the cause.
var errRing = errors.New("ring")

// save writes a checkpoint of all parameters, concurrently with the training, from a copy. m.Seq is
// 0 for the member that writes the parameters; other members write only their codec's residual. A
// write error is reported to the coordinator and is not returned: the training continues without the
// checkpoint.
func (w *ringWorker) save(ctx context.Context, m wire.Save) error {
	if m.Seq > 0 {
		w.saveLeft(m)
		return nil
	}
	if m.Version != w.version {
		return fmt.Errorf("%w: cannot save version %d: the worker has version %d", errRing, m.Version, w.version)
	}
	// The state comes first: for a program with exchanged gradients it also updates the parameters.
	st, err := w.state(ctx)
	if w.retires(err) {
		return session.Say(w.member, wire.Saved{ID: m.ID, Err: err.Error()}, nil)
	} else if err != nil {
		return err
	}
	params, st := slices.Clone(w.params), process.Copied(st)
	w.saves.Go(func() {
		text, err := process.WriteShard(process.CheckpointDir(w.job, m.ID), wire.ShardInfo{To: int64(len(params))}, m.Version, params, st)
		said := wire.Saved{ID: m.ID}
		if err != nil {
			said.Err = err.Error()
		}
		if err := session.Say(w.member, said, text); err != nil {
			w.log.Debug("could not report a written checkpoint", "err", err)
		}
	})
	return nil
}
