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

// ringWorker is a worker of an all-reduce: it has the parameters and the optimiser
// itself, and makes the same updates as every other member of the ring. As a rider it
// has the parameters from its parent.
//
// Its life is a sequence of orders (work): a Ring has it form one with others (ringform.go), a
// Release has it make a version (ringround.go) or, as a rider, bring a gradient to its parent
// (rider.go), a Save has it write a checkpoint. An order that fails because of others is no error
// of the worker: mend says what it means. ring is the newest that was taken up; group is nil while
// it rides, and while a ring is formed.
type ringWorker struct {
	*worker
	tcp   *transport.TCP
	tls   *tls.Config
	hello wire.Hello       // for parents
	costs *allreduce.Model // nil: not measured

	meet  *meeting    // where a ring is formed, if we are its first member
	relay *riderRelay // where riders come

	replicated

	turns int64 // updates of a batch

	ring       wire.Ring
	group      *allreduce.Group  // nil: not a member
	counted    allreduce.Traffic // of group, in records
	broken     bool              // our ring has failed: only another one helps
	marks      []int64           // what became of riders, for all members
	last       []wire.Tally      // of the last versions: the coordinator may not have heard of them
	parent     parent            // as a rider
	riderBatch riderBatch
	orphan     error     // why the parent is lost
	ended      time.Time // of the last round

	metadata []byte // of the last release, for whoever coordinates next

	riding *riderMomentum // nil: riders' gradients are as the members'
	part   partial        // with rounds that are closed
	guard  *guard         // nil: --poison off

	commit  func(context.Context) error // makes the version of the sum in grad, while others may lack the sum (settled); nil: no such step
	commits int64                       // that version

	codec *allreduce.Compressor // nil: gradients go as they are
	tuned int64                 // version at which it was chosen
}

// replicated is what every member of a ring has. After each version it is the same on all of them,
// bit for bit; that is checked at evaluations, by a hash of params. One of opt with rule, and
// updates is set.
type replicated struct {
	params  []float32
	opt     *optim.Optimizer // nil: updates
	rule    *rule.Descent    // nil: updates
	updates train.Updater    // the model makes the updates itself; nil: it does not

	version int64 // of parameters and optimiser; -1: they are not whole
	samples int64 // applied until version: the clock of schedules
}

// ringPatience is how long no byte may move in a collective operation before the ring
// counts as broken. Members that compute are waited for in it, so it must be longer than
// any iteration; who is gone is found by the coordinator, and much earlier.
const ringPatience = 10 * time.Minute

// ringReach is how long a member tries to connect to another one whose address it knows, and which
// listens, before it says so. The coordinator has the ring formed again, and takes leave of one of
// the two if they still cannot.
// So long a listener that is only busy does not take.
const ringReach = 5 * time.Second

// newRingWorker opens the places where others come, before the coordinator is told of them. It
// learns from so many samples.
//
// Errors are *job.SettingError of the address, the transport or the file of the cost model. The
// two places are for members (plain connections, which package allreduce secures itself) and for
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
		log.Info("cost model", "file", job.RingModel, "ranks", measuredRanks(model), "samples", len(model.Samples), "tcp", model.TCP)
	}
	if err := checkTransport(job.Transport, tcp.TLS != nil); err != nil {
		return nil, job.Invalid("allreduce-transport", err)
	}
	w := &ringWorker{guard: newGuard(job.Poison, samples), tcp: tcp, tls: tcp.TLS, replicated: replicated{version: -1}, costs: model, parent: parent{all: all}}
	l, err := gonet.Listen("tcp", addr)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	w.meet = newMeeting(l)
	riders, err := tcp.Listen(addr)
	if err != nil {
		w.meet.close()
		return nil, job.Invalid("listen", err)
	}
	w.relay = newRiderRelay(&process.Counted{Listener: riders, Links: all}, tcp.Config, job.Name, log)
	return w, nil
}

// checkTransport says why links between members cannot be of a kind. Shared memory and Unix sockets
// stay within a host, and TLS is asked for because the way between hosts is not trusted.
func checkTransport(kind string, tls bool) error {
	if tls && kind != job.Auto && kind != "tcp" {
		return fmt.Errorf("%s is within a host, and TLS goes over tcp only: leave it away, or --tls-cert and --tls-key", kind)
	}
	return nil
}

// CheckRing says whether the cost model of a ring's collective operations can be used, before any
// worker starts: errors are those of Run.
func CheckRing(job job.Job) error {
	_, err := costModel(&job)
	return err
}

// costModel reads the file of --allreduce-model. Nil: there is none. Without a file, or with
// servers, the built-in one counts. An error names the file: 66 it is not there, 65 it is none.
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

// measuredRanks are the numbers of ranks that a model has samples of.
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

// addresses are what the Hello says of meet and relay. Two addresses with a comma between: where
// rings meet, and where riders come. The coordinator refuses a worker without both.
func (w *ringWorker) addresses() string {
	return w.meet.Addr().String() + "," + w.relay.addr
}

// close gives up everything that has a peer. What others wait for from this worker fails at once.
// It may be called while nothing is under way only.
func (w *ringWorker) close() {
	w.meet.close()
	w.relay.close()
	w.parent.close()
	if w.group != nil {
		w.group.Close()
	}
}

// train is the life of a worker of a ring. It returns as worker.train does. The parameters are
// those of the seed, of the checkpoint, or none until a ring has agreed (load).
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

// work is the time from Joined to the end of the job, or of the coordinator.
//
// Orders of a ring that has failed are passed over until another one is formed at once; the
// coordinator knows of it by then, from this worker's Fault or from another's. nil: the coordinator
// says stop.
func (w *ringWorker) work(ctx context.Context) error {
	if err := session.Say(w.member, wire.Joined{Worker: star.Worker(w.rank)}, nil); err != nil {
		return err
	}
	w.commands = newCommandStream(w.member, nil, nil, w.dismissed)
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
			continue // of the ring that has failed
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

// follow finds the coordinator after one was lost. It keeps parameters and optimiser, and tells how
// far they are; the ring is given up. Its version counts only if the next coordinator goes on from
// it: else the parameters come from the others, like those of a worker that is new.
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
	if !w.member.Welcome.Seed && w.member.Welcome.Step > 0 { // the others went on without this one
		w.version = -1
		w.last = nil
	}
	return nil
}

// order waits for the next order; a rider without parent does not wait without end. The coordinator
// finds out within DeadAfter that the parent is gone, and names another one. After ten seconds more
// the error is a *job.LostError.
func (w *ringWorker) order(ctx context.Context) (session.Order, error) {
	if w.orphan != nil {
		limited, cancel := context.WithTimeoutCause(ctx, w.job.DeadAfter+10*time.Second, &job.LostError{Err: w.orphan})
		defer cancel()
		ctx, w.orphan = limited, nil
	}
	return w.commands.next(ctx)
}

// load makes the optimiser, and takes both from the checkpoint of a job that resumes,
// if this worker has it.
//
// Errors: of the optimiser's settings; of a model that has no updates of its own in a job whose
// workers have (a *job.SettingError); of the checkpoint, which is a *job.DisagreeError where
// it is of another version than the job's and not older. version is −1 afterwards where the
// parameters are to come from others.
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
	if made.Local != nil { // the job's own optimiser is that of the steps between
		cfg = process.Outer(made.Local.Outer)
		if rate, err = cfg.Rate(); err != nil {
			return err
		}
	}
	if cfg.Name == optim.Own {
		own, ok := w.model.(train.Updater)
		if !ok {
			return w.job.Invalid("optimizer", fmt.Errorf("the job's workers have optimisers of their own, and this one's model has none"))
		}
		w.updates = own
	} else {
		if w.opt, err = optim.New(cfg, len(w.params)); err != nil {
			return err
		}
		w.rule = &rule.Descent{Optimizer: w.opt, Schedule: rate, Clip: w.job.Clip}
	}
	at := w.member.Welcome.Version
	switch {
	case at > 0 && w.member.Welcome.Step > 0: // the ring is beyond every checkpoint
		w.log.Info("the job runs: receives the parameters from another worker", "version", at)
		return nil
	case at == 0:
		w.version = 0 // everybody makes the same ones from the seed
		return w.experienced(ctx, cfg)
	case w.job.Resume == "":
		w.log.Info("no --resume: receives the parameters from another worker")
		return nil
	}
	c, err := process.OpenCheckpoint(w.job.Resume, w.log)
	if err != nil {
		return err
	}
	m := c.Manifest()
	if m.Version < at && m.Params == int64(len(w.params)) { // others have gone on meanwhile
		w.log.Info("the checkpoint is of an earlier version: receives the parameters from another worker", "checkpoint", m.Version, "version", at)
		return nil
	}
	if m.Version != at || m.Params != int64(len(w.params)) {
		return &job.DisagreeError{Err: fmt.Errorf("--resume %s: the checkpoint has version %d of %d parameters, the job resumes at version %d of %d: give every worker the same checkpoint",
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

// experienced has the optimiser, of c, go on from where that of the model is. Of several workers the first one's counts (begins). An error: it cannot.
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

// recalled is what the job's optimiser remembers, which each member of the ring has.
func (w *ringWorker) recalled(context.Context) (*train.Experience, error) {
	if w.rule == nil || w.version < 0 || w.group == nil {
		return nil, errors.New("this worker is no member of the ring now, and has no optimiser")
	}
	st, err := process.Recalled(w.rule)
	if err != nil {
		return nil, err
	}
	e := &train.Experience{Rule: st.Name, Steps: st.Steps, Slots: map[string][]float32{}}
	for _, slot := range st.Slots {
		e.Slots[slot.Name] = slot.Data
	}
	return e, nil
}

// experience is what the optimiser of a model remembers that was trained before; nil: nothing.
func experience(ctx context.Context, m train.Model) (*train.Experience, error) {
	if m, ok := m.(train.Experienced); ok {
		return m.Experience(ctx)
	}
	return nil, nil
}

// mend decides what an error of an order means. cause is why the order was to be given
// up, if it was.
//
// nil: the worker goes on, and waits for what the coordinator says next. That the ring has failed
// is told with whom this worker suspects, if it suspects a single one; whose fault it was the
// coordinator finds from what all of them say. An error is the worker's own: of its model, data or
// settings, or that the coordinator is lost.
func (w *ringWorker) mend(ctx context.Context, cause, err error) error {
	var peer *allreduce.Error
	var link *parentError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(cause, errSuperseded):
		w.log.Debug("gave up", "generation", w.ring.Generation, "err", err)
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
		w.log.Warn("the ring has failed", "generation", w.ring.Generation, "err", err)
		return session.Say(w.member, wire.Fault{
			Worker: star.Worker(w.rank), Generation: w.ring.Generation, Suspect: suspect, Reason: err.Error(),
		}, nil)
	}
	return err
}

// errRing: the ring is of no use, through nobody's fault that we know of.
var errRing = errors.New("ring")

// save writes a checkpoint of the whole parameters. The files are written beside the training, from
// a copy. It is this member's turn where m.Seq is 0; otherwise only what its codec has left out is
// wanted. That the files cannot be written is told to the coordinator, and is no error here: the
// training goes on without the checkpoint.
func (w *ringWorker) save(ctx context.Context, m wire.Save) error {
	if m.Seq > 0 {
		w.saveLeft(m)
		return nil
	}
	if m.Version != w.version {
		return fmt.Errorf("%w: told to save version %d, has %d", errRing, m.Version, w.version)
	}
	st, err := w.state(ctx) // before the parameters: a program whose gradients are exchanged brings both up to date
	if w.retires(err) {     // with its optimiser
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
			w.log.Debug("a checkpoint is written, but nobody knows", "err", err)
		}
	})
	return nil
}
