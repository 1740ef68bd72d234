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

// Run joins the job and trains until it is over; then the error is nil. When ctx ends, Run tells the
// coordinator and waits for its release: after a checkpoint if the job cannot continue without this
// worker, and for c.Grace at most. Then the error is the cause of ctx.
//
// job.ExitCode has the exit code of an error. Besides errors of c.Model and c.Data there are
// *job.SettingError (c is invalid; worded by c.Explain if set), *job.DisagreeError and
// *transport.RejectError (the job is a different one, or rejects this worker), *job.LostError and
// *session.LostError (a shard or the coordinator is lost), *job.NaNError and *PoisonError (an
// invalid gradient).
//
// c is copied. c.Model and c.Data are used until Run returns: the model by one goroutine at a time,
// the data by another one ahead of it. Run may be called again after it has returned, also for
// another job or with a model that has other parameters.
func Run(ctx context.Context, c Config) error {
	stopRequested := ctx
	ctx, end := process.Linger(stopRequested, c.Grace)
	defer end()
	if err := c.complete(); err != nil {
		return err
	}
	j := &joining{Config: &c, stopRequested: stopRequested, end: end, log: c.Log}
	return process.EndsWith(stopRequested, j.run(ctx), c.Log)
}

// joining is a worker that joins a job. Before it has joined, it stops when stopRequested ends;
// afterwards, when the coordinator releases it. The steps are prepare, enlist, join, make, settle,
// live, ends, in this order; each may add to undo. Errors after join are reported to the
// coordinator; errors before it are known only to this process.
//
//	prepare   settings, gossip, limits
//	enlist    listeners for other members; the Hello
//	join      the coordinator admits the worker; it has a rank
//	make      injection, telemetry, loader; from here on a stop is announced
//	open      connections to the shards (not in a ring)
//	settle    the cluster; "joined" is logged
//	live      the training, with one coordinator after the other
//	ends      the result, for the caller and for the coordinator
type joining struct {
	*Config
	stopRequested context.Context
	// end ends every wait.
	end func()
	log *slog.Logger
	// undo is called at the end, in reverse order.
	undo []func()

	// gossip is nil without gossip.
	gossip Gossip
	tcp    *transport.TCP
	all    *process.Links
	hello  wire.Hello
	// ring is nil with parameter servers.
	ring *ringWorker
	tree treePart
	// rule is the update rule of a ring, in words.
	rule       string
	membership *membership
	member     *session.Member
	w          *worker
	// stop ends the goroutine that reports the stop to the coordinator.
	stop func() bool
}

// errOver: the job ended before this worker joined.
var errOver = errors.New("the job is over")

// defers has f called at the end of run, before the functions that were deferred earlier.
func (j *joining) defers(f func()) { j.undo = append(j.undo, f) }

// run joins and trains. The error is nil if the job ended, or was over before this worker joined.
// undo runs in any case.
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
	data.Warm(j.Data) // other workers may wait for this one from now on
	lost := j.w.open(ctx, j.membership)
	j.defers(j.w.saves.Wait)
	j.defers(func() {
		if j.w.link != nil {
			j.w.link.Close()
		}
	})
	if lost != nil && !j.w.lostLeader(j.stopRequested, lost) {
		return lost
	}
	if err := j.settle(); err != nil {
		return err
	}
	return j.ends(j.live(ctx, lost))
}

// prepare checks the settings that need no connection, joins the gossip and limits the resources of
// this process. Errors are *job.SettingError for the codec, the cluster, the limits and the
// network's files.
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
		if j.gossip, err = j.Outside.Meet(j.stopRequested, job, j.log); err != nil {
			return err
		}
	}
	if j.gossip != nil {
		j.defers(j.gossip.Close)
	}
	role := "worker of job " + job.Name
	if job.Rank >= 0 {
		role = fmt.Sprintf("worker %d of job %s", job.Rank, job.Name)
	}
	limits, release, err := process.Govern(job, role, job.Coordinator, j.log)
	if err != nil {
		return err
	}
	j.defers(release)
	j.w = &worker{job: job, limits: limits}
	j.tcp, err = process.Network(job, j.log)
	return err
}

// enlist opens the listeners for other members and prepares the Hello.
//
// The Hello has the addresses, so the listeners are opened first. A worker that cannot open the
// listener for children takes no part in trees; everything else works. A worker of a ring that
// cannot open its two listeners fails.
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
		j.log.Debug("tree listener failed", "reason", err)
	} else {
		j.defers(j.tree.relay.close)
		j.hello.Addr = j.tree.relay.addr
	}
	j.membership = &membership{joins: session.MemberConfig{
		Network: j.tcp, Addr: spec.Coordinator, Addrs: spec.Coordinators, Hello: j.hello, Reached: j.reached, Over: j.Over, JoinTimeout: spec.JoinTimeout, DeadAfter: spec.DeadAfter, Log: j.log,
		Enrol: &session.Enrolment{
			Layout: tensors(m.Layout()), Buffers: tensors(m.BufferLayout()),
			Data: j.DataName, Samples: int64(j.Data.Len()), Digest: j.Digest, Tests: int64(j.Test.Len()), Rule: j.rule, Optimizer: j.Optimizer, Batch: j.PreferredBatch, Epochs: j.PreferredEpochs, Whole: j.WholeBatches, DropLast: j.DropLast, Exchange: j.Exchange, Turns: j.Turns, Codec: enrolledCodec(spec), Told: j.Told,
		},
	}}
	return nil
}

// reached returns the addresses of the listeners in the Hello as others reach them. It is called for
// each coordinator, because the route to another one may use another interface. An error: the
// coordinator's name cannot be resolved yet; the caller tries again.
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

// inRing is enlist for a worker of an all-reduce. The optimizer of the checkpoint that the job
// resumes from takes precedence over the default. It must be known here, because members send their
// update rule when they join.
func (j *joining) inRing() (err error) {
	job := &j.Job
	if job.Resume != "" && !job.IsSet("optimizer") {
		// a damaged checkpoint is reported when it is loaded
		if c, err := process.OpenCheckpoint(job.Resume, slog.New(slog.DiscardHandler)); err == nil {
			process.KeepOptimizer(job, c.Manifest())
		}
	}
	if j.ring, err = newRingWorker(job, j.Data.Len(), j.tcp, j.all, j.log); err != nil {
		return err
	}
	j.defers(j.ring.close)
	if j.Exchange || j.Turns > 1 {
		j.ring.guard = nil // the program decides about gradients; those of different turns are not comparable
	}
	j.ring.turns = int64(max(j.Turns, 1))
	if j.ring.codec, err = newCompressor(job, j.Model); err != nil {
		return err
	}
	if j.ring.codec != nil && j.Turns > 1 {
		return job.Invalid("compress", fmt.Errorf("the program makes %d updates of different parameters from each batch, and the codec's residual would mix them; remove --compress", j.Turns))
	}
	j.hello.Addr, j.rule = j.ring.addresses(), process.RuleText(job)
	return nil
}

// join joins the job. It returns errOver if the job has ended. Other errors are those of
// session.Join and *job.DisagreeError: this process was configured with a different number of
// workers, or the checkpoint's buffers belong to another model.
func (j *joining) join() error {
	spec := &j.Job
	m, err := session.Join(j.stopRequested, j.membership.joins)
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
		return &job.DisagreeError{Err: fmt.Errorf("cannot use the checkpoint: it has %d bytes of buffers, the model has %d", len(m.Buffers), len(own))}
	}
	if n, told, from := m.Welcome.Workers, toldWorkers(spec), spec.Origin("max-workers"); told > 0 && told != n {
		if !spec.IsSet("max-workers") {
			from = spec.Origin("workers")
		}
		err := &job.DisagreeError{Err: fmt.Errorf("the job has at most %d workers, this process was given %d (%s); give every member the same --workers and --max-workers", n, told, from)}
		m.Leave(err.ExitCode(), err.Error())
		return err
	}
	m.Beat()
	j.log = j.log.With("rank", m.Welcome.Rank)
	if j.gossip != nil {
		if err := j.gossip.Say(m.Welcome.Rank); err != nil {
			j.log.Debug("could not gossip the rank", "err", err)
		}
	}
	return nil
}

// make sets up the worker. Its rank is known now.
//
// Errors are those of the injection and of the baseline's rule. From here on a stop of this process
// is announced to the coordinator by a message. Telemetry starts here, so that the wait for
// admission is not measured.
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
				j.log.Error("could not undo the straggler injection", "err", err)
			}
		})
	}
	// A signal, or the end of the caller's ctx, announces the stop and ends every wait.
	// The deadline is 0: no checkpoint could contain anything of this worker yet.
	j.stop = process.Farewell(j.stopRequested, m, 0, j.end)
	j.defers(func() { j.stop() })

	w.stopRequested, w.end, w.log, w.model, w.test, w.member, w.rank, w.step = j.stopRequested, j.end, j.log, j.Model, j.Test, m, rank, m.Welcome.Step
	w.grad, w.grads, w.finite = process.Gradient(j.Model), j.Model.Grad, kernel.FiniteSumSq
	w.hash, w.tree, w.all, w.exchanges = j.Hash, j.tree, j.all, j.Exchange
	w.loader = data.NewLoader(j.Data, data.Stream{Seed: job.Seed})
	j.defers(func() { w.loader.Close() })
	w.own = flightrecorder.Open(fmt.Sprintf("worker %d", rank), "its own computation of this step", "", "it is done: the others wait for a slow worker")
	j.defers(w.own.Close)
	if err = w.byBaseline(job, m.Welcome.Workers, len(w.grad)); err != nil {
		return err
	}
	if !j.Telemetry.Off {
		// device is nil without a driver.
		device := gpu.Start(gpu.Config{Sampler: j.Telemetry.Sampler, Log: j.log})
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
	j.membership.dial = j.dial
	return nil
}

// dial connects to the shards of the job. The pass in the Welcome proves to shards that the
// coordinator has admitted this worker, with which rank and from which step on. Errors are those of
// ps.Dial: a shard does not answer within JoinTimeout, or rejects the worker.
func (j *joining) dial(ctx context.Context, m *session.Member, views []wire.View) (*ps.Link, error) {
	hello, rank := j.hello, j.w.rank
	hello.Pass = m.Welcome.Pass
	return ps.Dial(ctx, ps.LinkConfig{
		Network: j.tcp, Shards: process.ShardAddrs(m.Welcome.Shards, j.Coordinator), Views: views, Hello: hello, Params: j.Model.Params(), JoinTimeout: j.JoinTimeout,
		Compress: j.Compress, Rounded: rounded(&j.Job), Tensors: matrices(j.Model.Layout()), Workers: m.Welcome.Workers, Log: j.log,
		// a failed send shows up at the next message
		Chosen: func(version int64, codec, why string) { sayCodec(m, rank, version, codec, why) },
	})
}

// settle registers the worker with its cluster, and logs that it has joined. Its traffic is what
// leaves the host: to shards, children, parents and members of the ring on other hosts. An error:
// the cluster rejects it.
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

// live trains until the job is over, following from one coordinator to the next. lost is why the
// first one is already lost; nil: it is connected.
//
// It looks for another coordinator only with --coordinators and until this process must stop.
// A member of a ring that may be the only one with the parameters continues to look until the grace
// period ends (staysForHandover).
func (j *joining) live(ctx context.Context, lost error) (err error) {
	j.stop()
	seeks, over := j.stopRequested, j.end
	if j.w.staysForHandover(&session.LostError{}) {
		seeks, over = ctx, func() {}
	}
	j.stop = process.Farewell(j.stopRequested, j.member, j.Grace, over)
	ended := make(chan struct{})
	defer close(ended)
	go j.w.attend(j.Config, j.member, ended)
	var life follower = j.w
	switch {
	case j.ring != nil:
		life = j.ring
		err = j.ring.train(ctx, j.w, j.hello)
	case lost != nil: // the coordinator was lost while the shards were being dialled
		err = lost
	default:
		err = j.w.work(ctx)
	}
	for life.lostLeader(seeks, err) {
		j.stop()
		if err = life.follow(ctx, j.membership, err); err == nil {
			j.member = j.w.member
			j.stop = process.Farewell(j.stopRequested, j.member, j.Grace, over)
			err = life.work(ctx)
		}
	}
	return err
}

// ends converts err, with which the training ended, to the worker's result, and reports it to the
// coordinator unless it knows. An error with an exit code is returned as it is. For an error without
// one, and for a lost coordinator, ends asks for the coordinator's last message (why). The result is
// nil if the job ended normally.
//
// A gradient that is not finite is reported to the coordinator, which decides whether the job has
// diverged or only this worker is broken.
func (j *joining) ends(err error) error {
	w, ring := j.w, j.ring != nil
	if cause := context.Cause(j.stopRequested); cause != nil {
		return cause
	}
	if why := w.retired(); why != nil && why.Gone() != 0 {
		return why
	} else if why != nil && errors.As(err, new(*transport.RejectError)) {
		return nil // the other workers' results do not matter to this one
	}
	var nan *job.NaNError
	var poisoned *PoisonError
	var gone *session.LostError
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
	case errors.As(err, new(*session.OverError)): // the job had ended before this worker joined
	case errors.As(err, &nan), errors.As(err, &poisoned):
		j.member.Leave(exitcode.Diverged, err.Error())
		return err
	// A program that computes for this worker failed: only this worker knows.
	case errors.As(err, &coded) && coded.ExitCode() == exitcode.Failure:
		j.member.Leave(exitcode.Failure, err.Error())
		return err
	case ring && !errors.As(err, &coded):
		j.member.Leave(job.ExitCode(err), err.Error())
		return err
	case ring:
		return err
	case errors.As(err, &gone): // its last message may say why
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

// rounded returns the codec of parameters that servers send; empty: float32.
func rounded(j *job.Job) string {
	if j.Wire == job.BF16 {
		return job.BF16
	}
	return ""
}
