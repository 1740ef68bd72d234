package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"star/cluster/resource/gpu"
	"star/cluster/resource/host"
	"star/coord/session"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/internal/kernel"
	"star/job"
	"star/job/process"
	"star/ps"
	"star/train/data"
	"star/transport"
	"star/transport/wire"
)

// Run joins the job and trains until it is over; then the error is nil. When ctx ends, the
// coordinator is told, and lets the worker go: after a checkpoint if the job cannot go on without
// it, within c.Grace; then the error is the cause of ctx.
//
// The exit code that fits an error is job.ExitCode. Besides errors of c.Model and c.Data there
// are *job.SettingError (c cannot be used; what c.Explain makes, if it is set),
// *job.DisagreeError and *transport.RejectError (the job is another one, or does not want this
// worker), *job.LostError and *session.LostError (a shard or the coordinator is gone),
// *job.NaNError and *PoisonError (an invalid gradient).
//
// c is copied. c.Model and c.Data are used until Run returns, the model by one goroutine at a time,
// the data by another one ahead of it. Run may be called again when it has returned, also for
// another job, with a model that has other parameters by then.
func Run(ctx context.Context, c Config) error {
	told := ctx
	ctx, end := process.Linger(told, c.Grace)
	defer end()
	if err := c.complete(); err != nil {
		return err
	}
	j := &joining{Config: &c, told: told, end: end, log: c.Log}
	return process.EndsWith(told, j.run(ctx), c.Log)
}

// joining is a worker on its way into the job. Until it is in the job it ends when told does; then
// when the coordinator lets it go. The steps are prepare, enlist, join, make, settle, live, ends,
// in this order; each may add to undo what its end needs.
// In the job, errors are those that the coordinator is told of; before, only this process knows.
type joining struct {
	*Config
	told context.Context
	end  func() // ends every wait
	log  *slog.Logger
	undo []func() // at the end, the last one first

	gossip Gossip // nil without gossip
	tcp    *transport.TCP
	all    *process.Links
	hello  wire.Hello
	ring   *ringWorker // nil: there are parameter servers
	tree   treePart
	rule   string // of a ring, in words
	comes  *membership
	member *session.Member
	w      *worker
	stop   func() bool // of what tells the coordinator of the end
}

// errOver: the job has ended before we came.
var errOver = errors.New("the job is over")

// defers has f called at the end of run, before what was deferred earlier.
func (j *joining) defers(f func()) { j.undo = append(j.undo, f) }

// run joins and trains. A nil error is a job that came to its end, or was over before we came. What
// was begun on the way is undone in any case, the last first.
func (j *joining) run(ctx context.Context) error {
	defer func() {
		for i := len(j.undo) - 1; i >= 0; i-- {
			j.undo[i]()
		}
	}()
	if err := j.prepare(); err != nil {
		return err
	}
	if err := j.enlist(); err != nil {
		return err
	}
	if err := j.join(); errors.Is(err, errOver) {
		return nil
	} else if err != nil {
		return err
	}
	if err := j.make(); err != nil {
		return err
	}
	data.Warm(j.Data) // from now on others may wait for us
	lost := j.w.open(ctx, j.comes)
	j.defers(j.w.saves.Wait)
	j.defers(func() {
		if j.w.link != nil {
			j.w.link.Close()
		}
	})
	if lost != nil && !j.w.leaderless(j.told, lost) {
		return lost
	}
	if err := j.settle(); err != nil {
		return err
	}
	return j.ends(j.live(ctx, lost))
}

// prepare checks what can be checked alone, meets others of the job, and bounds what this process
// takes. Errors are *job.SettingError of the codec, the cluster, the limits and the network's
// files.
func (j *joining) prepare() error {
	job := &j.Job
	if err := compress.Check(job.Compress); err != nil {
		return job.Invalid("compress", err)
	}
	if err := j.connected(); err != nil {
		return err
	}
	if job.Threads > 0 {
		runtime.GOMAXPROCS(job.Threads)
	}
	var err error
	if j.Outside != nil {
		if j.gossip, err = j.Outside.Meet(j.told, job, j.log); err != nil {
			return err
		}
	}
	if j.gossip != nil {
		j.defers(j.gossip.Close)
	}
	who := "worker of job " + job.Name
	if job.Rank >= 0 {
		who = fmt.Sprintf("worker %d of job %s", job.Rank, job.Name)
	}
	limits, release, err := process.Govern(job, who, job.Coordinator, j.log)
	if err != nil {
		return err
	}
	j.defers(release)
	j.w = &worker{job: job, limits: limits}
	j.tcp, err = process.Network(job, j.log)
	return err
}

// enlist opens the places where others come to this worker, and says what the coordinator is told of it.
//
// The coordinator is told the addresses before anybody can come, so the places are open first. A
// worker that cannot open the place for children takes no part in trees, and all else works; a
// worker of a ring that cannot open its two is of no use, and that is an error.
func (j *joining) enlist() (err error) {
	spec, m := &j.Job, j.Model
	j.all = new(process.Links)
	j.hello = wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleWorker,
		Job: spec.Name, Token: spec.Token, Version: job.Program, Host: process.Hostname(), Rank: spec.Rank,
		Model: j.Name, ModelHash: j.Hash,
		Params: int64(len(m.Params())), Buffers: int64(len(m.Buffers())), Process: rand.Text(),
	}
	if spec.Arch == job.AllReduce {
		if err := j.inRing(); err != nil {
			return err
		}
	} else if j.tree.relay, err = newChildRelay(spec, j.tcp, j.all, j.log); err != nil {
		j.log.Debug("takes no part in trees", "reason", err)
	} else {
		j.defers(j.tree.relay.close)
		j.hello.Addr = j.tree.relay.addr
	}
	j.comes = &membership{joins: session.MemberConfig{
		Network: j.tcp, Addr: spec.Coordinator, Addrs: spec.Coordinators, Hello: j.hello, Reached: j.reached, Over: j.Over, JoinTimeout: spec.JoinTimeout, DeadAfter: spec.DeadAfter, Log: j.log,
		Enrol: &session.Enrolment{
			Layout: tensors(m.Layout()), Buffers: tensors(m.BufferLayout()),
			Data: j.DataName, Samples: int64(j.Data.Len()), Digest: j.Digest, Tests: int64(j.Test.Len()), Rule: j.rule, Optimizer: j.Optimizer, Batch: j.PreferredBatch, Epochs: j.PreferredEpochs, Whole: j.WholeBatches, DropLast: j.DropLast, Exchange: j.Exchange, Turns: j.Turns, Codec: enrolledCodec(spec), Told: j.Told,
		},
	}}
	return nil
}

// reached is where others reach the places of the Hello. It is asked each time that a coordinator
// is joined, because the way to another one may lead through another interface. An error: the name
// of the coordinator is not known yet; it is tried again.
func (j *joining) reached(ctx context.Context) (string, error) {
	places := strings.Split(j.hello.Addr, ",")
	for i, at := range places {
		var err error
		if places[i], err = process.Reached(ctx, &j.Job, at); err != nil {
			return "", err
		}
	}
	return strings.Join(places, ","), nil
}

// inRing is enlist for a worker of an all-reduce. The optimiser of a checkpoint that the job goes
// on from counts before a default, and must be known here: members tell the coordinator their
// update rule when they join.
func (j *joining) inRing() (err error) {
	job := &j.Job
	if job.Resume != "" && !job.IsSet("optimizer") {
		if c, err := process.OpenCheckpoint(job.Resume, slog.New(slog.DiscardHandler)); err == nil { // what is wrong with it is said when it is needed
			process.KeepOptimizer(job, c.Manifest())
		}
	}
	if j.ring, err = newRingWorker(job, j.Data.Len(), j.tcp, j.all, j.log); err != nil {
		return err
	}
	j.defers(j.ring.close)
	if j.Exchange || j.Turns > 1 {
		j.ring.guard = nil // what becomes of a gradient is the program's affair; those of different turns are not alike
	}
	j.ring.turns = int64(max(j.Turns, 1))
	if j.ring.codec, err = newCompressor(job, j.Model); err != nil {
		return err
	}
	if j.ring.codec != nil && j.Turns > 1 {
		return job.Invalid("compress", fmt.Errorf("the program makes %d updates of each batch, each of other parameters, and what a codec leaves out of one would come into another: leave --compress away", j.Turns))
	}
	j.hello.Addr, j.rule = j.ring.addresses(), process.RuleText(job)
	return nil
}

// join joins the job. Its error is errOver if that has ended. Other errors are those of session.Join,
// and a *job.DisagreeError: this process was told of another number of workers, or the
// checkpoint's buffers are of another model.
func (j *joining) join() error {
	spec := &j.Job
	m, err := session.Join(j.told, j.comes.joins)
	if over, ok := errors.AsType[*session.OverError](err); ok {
		j.log.Info(over.Error())
		return errOver
	}
	if err != nil {
		return err
	}
	j.member = m
	j.defers(func() { j.member.Close() })
	if own := transport.Floats(j.Model.Buffers()); len(m.Buffers) > 0 && copy(own, m.Buffers) != len(m.Buffers) {
		return &job.DisagreeError{Err: fmt.Errorf("the checkpoint has %d bytes of buffers, the model %d", len(m.Buffers), len(own))}
	}
	if n, told, from := m.Welcome.Workers, toldWorkers(spec), spec.Origin("max-workers"); told > 0 && told != n {
		if !spec.IsSet("max-workers") {
			from = spec.Origin("workers")
		}
		err := &job.DisagreeError{Err: fmt.Errorf("the job has at most %d workers, this process was told of %d (%s): give every member the same --workers and --max-workers", n, told, from)}
		m.Leave(err.ExitCode(), err.Error())
		return err
	}
	m.Beat()
	j.log = j.log.With("rank", m.Welcome.Rank)
	if j.gossip != nil {
		if err := j.gossip.Say(m.Welcome.Rank); err != nil {
			j.log.Debug("others of the gossip may not know our rank", "err", err)
		}
	}
	return nil
}

// make makes the worker, whose rank is known now.
//
// Errors: of the injection, of the baseline's rule. From here on the coordinator knows of the end
// of this process by a message, not only by a connection that breaks; what measures (telemetry)
// begins here as well, so that nothing is measured while a worker waits to be let in.
func (j *joining) make() (err error) {
	job, m, w := &j.Job, j.member, j.w
	rank := m.Welcome.Rank
	w.slow = steady{}
	if j.Slow != nil {
		slow, undo, err := j.Slow(rank, m.Welcome.Workers, j.log)
		if err != nil {
			return err
		}
		w.slow = slow
		j.defers(func() {
			if err := undo(); err != nil {
				j.log.Error("a limit of the straggler injection is still there", "err", err)
			}
		})
	}
	// A signal, or the end of the caller, says good-bye and ends every wait.
	j.stop = process.Farewell(j.told, m, 0, j.end) // as long as there is nothing that a checkpoint could hold
	j.defers(func() { j.stop() })

	w.told, w.end, w.log, w.model, w.test, w.member, w.rank, w.step = j.told, j.end, j.log, j.Model, j.Test, m, rank, m.Welcome.Step
	w.grad, w.grads, w.finite = process.Gradient(j.Model), j.Model.Grad, kernel.FiniteSumSq
	w.hash, w.tree, w.all, w.exchanges = j.Hash, j.tree, j.all, j.Exchange
	w.loader = data.NewLoader(j.Data, data.Stream{Seed: job.Seed})
	j.defers(func() { w.loader.Close() })
	w.own = flightrecorder.Open(fmt.Sprintf("worker %d", rank), "its own computation, of its step", "", "it is done: a slow worker is waited for")
	j.defers(w.own.Close)
	if err = w.byBaseline(job, m.Welcome.Workers, len(w.grad)); err != nil {
		return err
	}
	if !j.Telemetry.Off {
		device := gpu.Start(gpu.Config{Sampler: j.Telemetry.Sampler, Log: j.log}) // nil without a driver
		j.defers(func() { device.Close() })
		sampler := host.Start(host.Config{PID: j.Telemetry.Process, Also: device.AddTo})
		j.defers(func() { sampler.Close() })
		w.meter = host.NewMeter(sampler)
	}
	w.tree.net, w.tree.hello, w.tree.handed, w.tree.up.all = process.Peers(j.tcp), j.hello, -1, j.all
	w.tree.hello.Service, w.tree.hello.Rank, w.tree.hello.Addr = wire.ServiceTree, rank, ""
	w.tree.next, w.tree.branch = noBranch, noBranch
	j.defers(func() { w.tree.up.close() })
	if w.tree.relay != nil {
		w.tree.relay.begin(j.Model.Params())
	}
	j.hello.Service, j.hello.Rank = wire.ServiceShard, rank
	j.comes.dial = j.dial
	return nil
}

// dial reaches the shards of the job. The pass of the Welcome says to shards that the coordinator
// has let this worker in, as which rank and from which step on. Errors are those of ps.Dial: a
// shard does not answer within JoinTimeout, or refuses the worker.
func (j *joining) dial(ctx context.Context, m *session.Member, views []wire.View) (*ps.Link, error) {
	hello, rank := j.hello, j.w.rank
	hello.Pass = m.Welcome.Pass
	return ps.Dial(ctx, ps.LinkConfig{
		Network: j.tcp, Shards: process.ShardAddrs(m.Welcome.Shards, j.Coordinator), Views: views, Hello: hello, Params: j.Model.Params(), JoinTimeout: j.JoinTimeout,
		Compress: j.Compress, Tensors: matrices(j.Model.Layout()), Workers: m.Welcome.Workers, Log: j.log,
		Chosen: func(version int64, codec, why string) { sayCodec(m, rank, version, codec, why) }, // the next message fails too, if this does
	})
}

// settle makes the worker a tenant of its cluster, and says that it has joined. What counts as its
// traffic is what leaves the host: to shards, children, parents and members of the ring elsewhere.
// An error: the cluster refuses it.
func (j *joining) settle() error {
	w := j.w
	traffic := j.all.Traffic
	if j.ring == nil {
		w.legacy = legacy(&j.Job, j.member.Welcome, j.log)
		traffic = func() (sent, received int64) {
			sent, received = j.all.Traffic()
			if l := w.linked.Load(); l != nil {
				s, r := l.TrafficWith(process.Elsewhere)
				sent, received = sent+s, received+r
			}
			return sent, received
		}
	}
	if j.Outside != nil {
		leave, err := j.Outside.Enter(Tenant{
			Job: &j.Job, Network: j.tcp, Rank: w.rank, Model: j.Told.Model, Limits: w.limits, Traffic: traffic, Log: j.log,
		})
		if err != nil {
			return err
		}
		j.defers(leave)
	}
	if j.Joined != nil {
		j.Joined(w.rank, j.member.Welcome.Workers)
	}
	j.log.Info("joined", "data", j.DataName, "gemm", kernel.Name())
	return nil
}

// live trains until the job is over, with one coordinator after the other. lost is why the first
// one is lost already; nil: it is not.
//
// It looks for another coordinator only where there may be one (--coordinators), and as long as
// this process was not told to end; a member of a ring that alone may have the parameters looks on
// until the grace is over (outlives).
func (j *joining) live(ctx context.Context, lost error) (err error) {
	j.stop()
	seeks, over := j.told, j.end
	if j.w.outlives(&session.LostError{}) {
		seeks, over = ctx, func() {}
	}
	j.stop = process.Farewell(j.told, j.member, j.Grace, over)
	ended := make(chan struct{})
	defer close(ended)
	go j.w.attend(j.Config, j.member, ended)
	var life follower = j.w
	switch {
	case j.ring != nil:
		life = j.ring
		err = j.ring.train(ctx, j.w, j.hello)
	case lost != nil: // the coordinator, while the shards were being reached
		err = lost
	default:
		err = j.w.work(ctx)
	}
	for life.leaderless(seeks, err) {
		j.stop()
		if err = life.follow(ctx, j.comes, err); err == nil {
			j.member = j.w.member
			j.stop = process.Farewell(j.told, j.member, j.Grace, over)
			err = life.work(ctx)
		}
	}
	return err
}

// ends is what a worker ends with whose training has ended with err. It tells the coordinator, if
// that does not know. An error with an exit code is kept as it is. Of one without, and of a
// connection to the coordinator that has ended, the coordinator's last words are looked for (why).
// nil: the job has come to its end.
// A gradient that is none is told to the coordinator, which decides whether the job has diverged
// or this worker alone is broken.
func (j *joining) ends(err error) error {
	w, ring := j.w, j.ring != nil
	if cause := context.Cause(j.told); cause != nil {
		return cause
	}
	if why := w.retired(); why != nil && why.Gone() != 0 {
		return why
	} else if why != nil && errors.As(err, new(*transport.RejectError)) {
		return nil // what the others come to is theirs
	}
	var nan *job.NaNError
	var poisoned *PoisonError
	var gone *session.LostError
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
	case errors.As(err, new(*session.OverError)): // it had ended before we heard of it
	case errors.As(err, &nan), errors.As(err, &poisoned):
		j.member.Leave(exitcode.Diverged, err.Error())
		return err
	case errors.As(err, &coded) && coded.ExitCode() == exitcode.Failure: // of a program that computes for this worker: nobody else knows
		j.member.Leave(exitcode.Failure, err.Error())
		return err
	case ring && !errors.As(err, &coded):
		j.member.Leave(job.ExitCode(err), err.Error())
		return err
	case ring:
		return err
	case errors.As(err, &gone): // it may have said why it hung up
		return w.why(err)
	case errors.As(err, &coded):
		return err
	default:
		return w.why(err)
	}
	if w.link == nil {
		j.log.Info("finished", "steps", w.step)
		return nil
	}
	sent, got := w.link.Traffic()
	j.log.Info("finished", "steps", w.step, "to_shards", sent, "from_shards", got)
	return nil
}
