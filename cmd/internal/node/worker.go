package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	gonet "net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/checkpoint"
	"star/cluster"
	"star/cmd/internal/inject"
	"star/cmd/internal/settings"
	"star/compress"
	"star/coord"
	"star/pgns"
	"star/poison"
	"star/ps"
	"star/resource/actuate"
	"star/resource/gpu"
	"star/resource/host"
	"star/trace"
	"star/train"
	"star/train/data"
	"star/train/kernel"
	"star/train/net"
	"star/transport"
	"star/waits"
)

// NaNError says that a gradient was not finite.
type NaNError struct {
	Worker int
	Step   int64
	Loss   float64
	Tensor string // where the first such element lies; empty: only the loss
	Index  int
	Value  float32
}

func (e *NaNError) Error() string {
	if e.Tensor == "" {
		return fmt.Sprintf("the loss of worker %d is %v at step %d: lower --lr, or --on-nan=skip", e.Worker, e.Loss, e.Step)
	}
	return fmt.Sprintf("the gradient of worker %d is %v at step %d, in element %d of %s: lower --lr, give --clip, or --on-nan=skip",
		e.Worker, e.Value, e.Step, e.Index, e.Tensor)
}

// ExitCode is that of a job that diverged.
func (e *NaNError) ExitCode() int { return ExitDiverged }

// worker is one star-worker process.
type worker struct {
	told   context.Context // ends when this process is told to end
	end    func()          // ends every wait
	job    *settings.Job
	log    *slog.Logger
	model  train.Model
	grad   []float32
	test   data.Dataset
	loader *data.Loader
	member *coord.Member
	link   *ps.Link                // to the shards; nil: there was none yet
	linked atomic.Pointer[ps.Link] // the same, for whoever wants to know the traffic
	inbox  *inbox
	tree   treePart
	inject *inject.Injector
	own    *waits.Site // its own computation
	limits *actuate.Governor
	all    *links // but those to the shards
	rank   int
	step   int64
	cpu    time.Duration
	meter  *host.Meter // nil: --telemetry=off
	turns  pgns.Change // of its gradients
	sent   int64       // bytes so far
	got    int64
	start  int64 // of the batch before

	generation int64 // of its ring; 0: there is none

	farSent, farGot int64 // as told with the last record

	average func(eval int64, buffers []float32) error // over all workers
	grads   func(ctx context.Context, dst []float32, b train.Batch) (loss float64, err error)
	finite  func(v []float32) (norm2 float64, bad int) // of the gradient; bad is the first element that is not finite, or -1
	late    func() bool                                // whether others have stopped waiting for the gradient in hand

	hash   string // of the model
	left   leftover
	legacy *checkpoint.Residuals // of the job that this one goes on from, until they are taken up
	saves  sync.WaitGroup        // parts of checkpoints

	local  *ps.Solo  // of a baseline whose workers train by themselves; nil: it sends gradients
	stride *ps.Solo  // in their place, as long as the plan has steps of their own; see solo
	sum    []float32 // of the parts of a batch

	batch   train.Batch // of the evaluation
	indices []int
}

// Work joins the job and trains until it is over. A nil error means that the
// coordinator said so. sampler is a command that reads the GPU (gpu.Sample); without
// one nvidia-smi does.
func Work(told context.Context, job *settings.Job, log *slog.Logger, sampler []string) error {
	ctx, end := linger(told, job.Grace)
	defer end()
	return endsWith(told, work(told, ctx, end, job, log, sampler), log)
}

// work is Work. Until the process is in the job it ends when told does; then when the coordinator lets it go, or with ctx, which end ends.
func work(told, ctx context.Context, end func(), job *settings.Job, log *slog.Logger, sampler []string) error {
	if err := compress.Check(job.Compress); err != nil {
		return job.Invalid("compress", err)
	}
	if err := checkCluster(job); err != nil {
		return err
	}
	threads(job.Threads)
	trainSet, testSet, err := openData(job)
	if err != nil {
		return err
	}
	spec, err := net.Parse(job.Model)
	if err != nil {
		return job.Invalid("model", err)
	}
	spec.Input, spec.Batch, spec.Seed = trainSet.Input(), job.Batch, job.Seed
	hash, err := net.Hash(spec)
	if err != nil {
		return job.Invalid("model", err)
	}
	describe, err := net.Describe(spec)
	if err != nil {
		return job.Invalid("model", err)
	}
	digest, err := data.Digest(trainSet)
	if err != nil {
		return fmt.Errorf("--dataset: %w", err)
	}
	slows, recorded, err := handicaps(job)
	if err != nil {
		return err
	}
	friends, err := meetJob(told, job, cluster.JobMember{Role: "worker", Rank: job.Rank, Host: hostname()}, log)
	if err != nil {
		return err
	}
	if friends != nil {
		defer friends.Close()
	}
	who := "worker of job " + job.Name
	if job.Rank >= 0 {
		who = fmt.Sprintf("worker %d of job %s", job.Rank, job.Name)
	}
	limits, release, err := govern(job, who, job.Coordinator, log)
	if err != nil {
		return err
	}
	defer release()
	model, err := net.Build(spec)
	if err != nil {
		return job.Invalid("model", err)
	}
	defer model.Close()

	tcp, err := network(job, log)
	if err != nil {
		return err
	}
	hello := transport.Hello{
		Service: transport.ServiceCoord, Role: transport.RoleWorker,
		Job: job.Name, Token: string(job.Token), Version: Program, Host: hostname(), Rank: job.Rank,
		Model: describe, ModelHash: hash,
		Params: int64(len(model.Params())), Buffers: int64(len(model.Buffers())),
	}
	all := new(links)
	var ring *ringWorker
	var rule string
	if job.Arch == settings.AllReduce {
		if job.Resume != "" && !job.Config.IsSet("optimizer") {
			if c, err := openCheckpoint(job.Resume, slog.New(slog.DiscardHandler)); err == nil { // what is wrong with it is said when it is needed
				keepOptimizer(job, c.Manifest())
			}
		}
		if ring, err = newRingWorker(job, trainSet.Len(), tcp, all, log); err != nil {
			return err
		}
		defer ring.close()
		if ring.codec, err = newCompressor(job, model); err != nil {
			return err
		}
		hello.Addr, rule = ring.addresses(), ruleText(job)
	}
	var tree treePart
	if ring == nil {
		if tree.landing, err = newLanding(job, tcp, all, log); err != nil {
			log.Debug("takes no part in trees", "reason", err)
		} else {
			defer tree.landing.close()
			hello.Addr = tree.landing.addr
		}
	}
	joins := coord.MemberConfig{
		Network: tcp, Addr: job.Coordinator, Addrs: job.Coordinators, Hello: hello, JoinTimeout: job.JoinTimeout, DeadAfter: job.DeadAfter, Log: log,
		Enrol: &coord.Enrolment{
			Layout: tensors(model.Layout()), Buffers: tensors(model.BufferLayout()),
			Data: trainSet.Name(), Samples: int64(trainSet.Len()), Digest: digest, Tests: int64(testSet.Len()), Rule: rule, Codec: enrolledCodec(job), Told: toldTo(job),
		},
	}
	member, err := coord.Join(told, joins)
	if over, ok := errors.AsType[*coord.OverError](err); ok {
		log.Info(over.Error())
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { member.Close() }()
	if own := transport.Floats(model.Buffers()); len(member.Buffers) > 0 && copy(own, member.Buffers) != len(member.Buffers) {
		return &DisagreeError{fmt.Errorf("the checkpoint has %d bytes of buffers, the model %d", len(member.Buffers), len(own))}
	}
	if n, told, from := member.Welcome.Workers, toldWorkers(job), job.Config.Origin("max-workers"); told > 0 && told != n {
		if !job.Config.IsSet("max-workers") {
			from = job.Config.Origin("workers")
		}
		err := &DisagreeError{fmt.Errorf("the job has at most %d workers, this process was told of %d (%s): give every member the same --workers and --max-workers", n, told, from)}
		member.Leave(err.ExitCode(), err.Error())
		return err
	}
	member.Beat()
	rank := member.Welcome.Rank
	log = log.With("rank", rank)
	if friends != nil {
		if err := friends.Say(cluster.JobMember{Role: "worker", Rank: rank, Host: hostname()}); err != nil {
			log.Debug("others of the gossip may not know our rank", "err", err)
		}
	}

	in, err := inject.New(inject.Config{
		Worker: star.Worker(rank), Workers: member.Welcome.Workers, Slows: slows, Trace: recorded, By: inject.By(job.StragglerBy), Median: job.StragglerTime,
	})
	if err != nil {
		return unfit(job, err)
	}
	if in.Active() {
		log.Warn("straggler injection", "what", in.String(), "by", job.StragglerBy)
	}
	if len(in.Stops()) > 0 && os.Getenv(LaunchedVariable) == "" {
		log.Warn("a process cannot wake itself: --slow R:stop=… works under star run only, nothing stops this worker")
	}
	undo, err := in.Start(actuate.OpenStore(job.LeaseDir), os.Getpid(), float64(max(job.Threads, 1)), job.Coordinator)
	if err != nil {
		return job.Invalid("straggler-by", err)
	}
	defer func() {
		if err := undo(); err != nil {
			log.Error("a limit of the straggler injection is still there", "err", err)
		}
	}()

	// A signal, or the end of the caller, says good-bye and ends every wait.
	stop := farewell(told, member, 0, end) // as long as there is nothing that a checkpoint could hold
	defer func() { stop() }()

	w := &worker{
		told: told, end: end,
		job: job, log: log, model: model, test: testSet, member: member, inject: in, limits: limits, rank: rank,
		loader: data.NewLoader(trainSet, data.Stream{Seed: job.Seed}),
		step:   member.Welcome.Step, hash: hash,
		grad: gradient(model), grads: model.Grad, finite: kernel.FiniteSumSq, tree: tree, all: all,
	}
	defer w.loader.Close()
	w.own = waits.Open(fmt.Sprintf("worker %d", rank), "its own computation, of its step", "", "it is done: a slow worker is waited for")
	defer w.own.Close()
	if w.local, err = newLocal(job, member.Welcome.Workers, len(w.grad)); err != nil {
		return err
	}
	if job.Telemetry != settings.Off {
		device := gpu.Start(gpu.Config{Sampler: sampler, Log: log}) // nil without a driver
		defer device.Close()
		sampler := host.Start(host.Config{Also: device.AddTo})
		defer sampler.Close()
		w.meter = host.NewMeter(sampler)
	}
	w.tree.net, w.tree.hello, w.tree.handed, w.tree.up.all = peers(tcp), hello, -1, all
	w.tree.hello.Service, w.tree.hello.Rank, w.tree.hello.Addr = transport.ServiceTree, rank, ""
	w.tree.next, w.tree.branch = noBranch, noBranch
	defer func() { w.tree.up.close() }()
	if tree.landing != nil {
		tree.landing.begin(model.Params())
	}
	hello.Service, hello.Rank = transport.ServiceShard, rank
	comes := &session{joins: joins, dial: func(ctx context.Context, member *coord.Member, views []transport.View) (*ps.Link, error) {
		hello := hello
		hello.Pass = member.Welcome.Pass
		return ps.Dial(ctx, ps.LinkConfig{
			Network: tcp, Shards: shardAddrs(member.Welcome.Shards, job.Coordinator), Views: views, Hello: hello, Params: model.Params(), JoinTimeout: job.JoinTimeout,
			Compress: job.Compress, Tensors: matrices(model.Layout()), Workers: member.Welcome.Workers, Log: log,
			Chosen: func(version int64, codec, why string) { sayCodec(member, rank, version, codec, why) }, // the next message fails too, if this does
		})
	}}
	data.Warm(trainSet) // from now on others may wait for us
	lost := w.open(ctx, comes)
	defer w.saves.Wait()
	defer func() {
		if w.link != nil {
			w.link.Close()
		}
	}()
	if lost != nil && !w.leaderless(told, lost) {
		return lost
	}
	traffic := all.traffic
	if ring == nil {
		w.legacy = legacy(job, member.Welcome, log)
		traffic = func() (sent, received int64) {
			sent, received = all.traffic()
			if l := w.linked.Load(); l != nil {
				s, r := l.TrafficWith(elsewhere)
				sent, received = sent+s, received+r
			}
			return sent, received
		}
	}
	tenant, err := enter(job, log, tcp, transport.RoleWorker, rank, limits, nil, traffic)
	if err != nil {
		return err
	}
	defer tenant.leave()
	log.Info("joined", "data", trainSet.Name(), "gemm", kernel.Name())
	stop()
	stop = farewell(told, member, job.Grace, end)
	var life follower = w
	switch {
	case ring != nil:
		life = ring
		err = ring.train(ctx, w, hello)
	case lost != nil: // the coordinator, while the shards were being reached
		err = lost
	default:
		err = w.work(ctx)
	}
	for life.leaderless(told, err) {
		stop()
		if err = life.follow(ctx, comes, err); err == nil {
			member, stop = w.member, farewell(told, w.member, job.Grace, end)
			err = life.work(ctx)
		}
	}
	if cause := context.Cause(told); cause != nil {
		return cause
	}
	var nan *NaNError
	var poisoned *PoisonError
	var gone *coord.LostError
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
	case errors.As(err, new(*coord.OverError)): // it had ended before we heard of it
	case errors.As(err, &nan), errors.As(err, &poisoned):
		member.Leave(ExitDiverged, err.Error())
		return err
	case ring != nil && !errors.As(err, &coded):
		member.Leave(ExitCode(err), err.Error())
		return err
	case ring != nil:
		return err
	case errors.As(err, &gone): // it may have said why it hung up
		return w.why(err)
	case errors.As(err, &coded):
		return err
	default:
		return w.why(err)
	}
	if w.link == nil {
		log.Info("finished", "steps", w.step)
		return nil
	}
	sent, got := w.link.Traffic()
	log.Info("finished", "steps", w.step, "to_shards", sent, "from_shards", got)
	return nil
}

// equal is how many samples an equal share of the job's round has. That is the coordinator's --batch: a worker that was given none has its own default.
func equal(job *settings.Job, m transport.Welcome) int {
	if m.Batch > 0 {
		return m.Batch
	}
	return job.Batch
}

// share is how many equal shares so many samples are.
func (w *worker) share(samples int) float64 {
	return float64(samples) / float64(equal(w.job, w.member.Welcome))
}

// toldTo is what this worker was told to train. A batch that nobody named is for the servers to choose.
func toldTo(job *settings.Job) *coord.Told {
	t := &coord.Told{Model: job.Model, Dataset: job.Dataset, Seed: job.Seed}
	if job.Config.IsSet("batch") {
		t.Batch = job.Batch
	}
	return t
}

// toldWorkers is how many workers the job may have, as this process was told; 0: it was not.
func toldWorkers(job *settings.Job) int {
	switch {
	case job.Config.IsSet("workers"):
		return job.Ranks()
	case job.Config.IsSet("max-workers"):
		return job.MaxWorkers
	}
	return 0
}

// openData opens the data set of the job.
func openData(job *settings.Job) (trainSet, testSet data.Dataset, err error) {
	trainSet, testSet, err = data.Open(job.Dataset, data.Options{})
	switch {
	case errors.Is(err, data.ErrSpec):
		return nil, nil, job.Invalid("dataset", err)
	case err != nil:
		return nil, nil, fmt.Errorf("--dataset: %w", err)
	}
	return trainSet, testSet, nil
}

// handicaps reads what --slow and --straggler-trace say. Every worker reads all
// of it, so that a slip is found before the job begins.
func handicaps(job *settings.Job) ([]inject.Slow, *trace.Trace, error) {
	var slows []inject.Slow
	for _, text := range job.Slow {
		s, err := inject.Parse(text)
		if err != nil {
			return nil, nil, job.Invalid("slow", err)
		}
		slows = append(slows, s)
	}
	if job.StragglerTrace == "" {
		return slows, nil, nil
	}
	recorded, err := trace.Open(job.StragglerTrace)
	if err != nil {
		return nil, nil, FileError(fmt.Errorf("--straggler-trace: %w", err), trace.ErrCorrupt)
	}
	return slows, recorded, nil
}

// shardAddrs puts the coordinator's host before addresses that have none: those of
// shards in the coordinator's own process, when it listens on every interface.
func shardAddrs(shards []transport.ShardInfo, coordinator string) []transport.ShardInfo {
	out := slices.Clone(shards)
	for i := range out {
		out[i].Addr = withHost(out[i].Addr, coordinator)
	}
	return out
}

// withHost puts the coordinator's host before an address that has none.
func withHost(addr, coordinator string) string {
	port, ok := strings.CutPrefix(addr, ":")
	host, _, err := gonet.SplitHostPort(coordinator)
	if !ok || err != nil {
		return addr
	}
	return gonet.JoinHostPort(host, port)
}

// why asks the coordinator what happened when a shard, or the way to the coordinator, is
// lost. It knows better than we do whether the job goes on, and with whom.
func (w *worker) why(err error) error {
	if w.inbox == nil {
		return &LostError{err}
	}
	said := make(chan error, 1)
	limited, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	go func() {
		for {
			o, e := w.inbox.next(limited)
			if e == nil && o.Kind == transport.KindRelease && o.Release.Action == transport.Stop {
				said <- nil
				return
			}
			if e != nil {
				said <- e
				return
			}
		}
	}()
	select {
	case e := <-said:
		if e == nil { // the job is over, and that is why
			return nil
		}
		var rejected *transport.RejectError
		if errors.As(e, &rejected) {
			return fmt.Errorf("%w (%w)", e, err)
		}
		var lost *coord.LostError
		switch {
		case errors.As(err, &lost):
			return err
		case errors.As(e, &lost):
			return fmt.Errorf("%w (%w)", e, err)
		}
	case <-limited.Done():
		w.member.Leave(ExitLost, err.Error())
	}
	return &LostError{err}
}

// LostError says that a shard is gone.
type LostError struct{ Err error }

func (e *LostError) Error() string { return "lost: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// ExitCode is that of a member whose shard is gone for good.
func (e *LostError) ExitCode() int { return ExitLost }

// gradient is the model's own gradient vector, if it has one that it fills
// without a copy.
func gradient(m train.Model) []float32 {
	if g, ok := m.(interface{ Gradient() []float32 }); ok {
		return g.Gradient()
	}
	return make([]float32, len(m.Params()))
}

func tensors(specs []train.TensorSpec) []coord.Tensor {
	out := make([]coord.Tensor, len(specs))
	for i, s := range specs {
		out[i] = coord.Tensor(s)
	}
	return out
}

// matrices are the tensors as a codec sees them.
func matrices(specs []train.TensorSpec) []compress.Tensor {
	out := make([]compress.Tensor, len(specs))
	for i, s := range specs {
		out[i] = compress.Tensor{Offset: s.Offset, Shape: s.Shape}
	}
	return out
}

// train is the life of a worker: wait for a release, take the parameters, compute,
// push, arrive.
func (w *worker) train(ctx context.Context) error {
	w.late = func() bool { return w.inbox.late(w.step) }
	w.average = func(eval int64, buffers []float32) error {
		w.inbox.begin(ctx, 0)
		defer w.inbox.end()
		if err := coord.Say(w.member, transport.Buffers{Worker: star.Worker(w.rank), Eval: eval}, transport.Floats(buffers)); err != nil {
			return err
		}
		return w.inbox.average(eval, transport.Floats(buffers))
	}
	if w.link != nil {
		var lost context.CancelCauseFunc
		ctx, lost = context.WithCancelCause(ctx)
		over := make(chan struct{})
		defer close(over)
		go heed(w.link, lost, over)
		if len(w.job.Coordinators) > 0 {
			w.inbox.onLoss(lost)
		}
	}
	w.cpu = processTime()
	pushed := time.Now()
	var last star.Record // of the gradient that was handed over
	for {
		o, err := w.inbox.next(ctx)
		if err != nil {
			return err
		}
		switch o.Kind {
		case transport.KindRelease:
		case transport.KindBranch:
			w.tree.next = o.Branch
			continue
		case transport.KindRoute: // its release comes later
			if err := w.redirect(ctx, []transport.Route{o.Route}, true); err != nil {
				return err
			}
			continue
		case transport.KindDetach:
			if o.Detach.Worker == star.Worker(w.rank) {
				if err := w.reroute(ctx, o.Detach, last.Samples, last.Basis); err != nil {
					return err
				}
			}
			continue
		default:
			return fmt.Errorf("unexpected %v from the coordinator, waiting for a release", o.Kind)
		}
		rel, released := o.Release, time.Now()
		if rel.Action == transport.Stop {
			return nil
		}
		if w.link != nil {
			if rel.Dropped {
				w.link.Dropped()
			}
			if err := w.take(ctx, rel); err != nil {
				return err
			}
		}
		rec := star.Record{
			Worker: star.Worker(w.rank), Step: w.step, Basis: rel.Version,
			Wait: released.Sub(pushed) + w.tree.waited, Pull: time.Since(released),
		}
		if err := w.recall(rel); err != nil {
			return err
		}
		if rel.Action != transport.Continue {
			if err := w.evaluate(ctx, rel); err != nil {
				return err
			}
		}
		if rel.Action == transport.Finish {
			continue
		}
		if err := w.iterate(ctx, rel, &rec); err != nil {
			return err
		}
		pushed, last = time.Now(), rec
	}
}

// dismissed ends what a worker does that was told to end and is let go.
func (w *worker) dismissed() {
	if w.told.Err() != nil {
		w.end()
	}
}

// heed ends a worker that waits for the coordinator while its gradient is on a connection that has ended: the shard will never say that it has it.
// When the job is over the connections end as well, and the coordinator says so.
func heed(link *ps.Link, lost context.CancelCauseFunc, over <-chan struct{}) {
	select {
	case <-link.Dead():
	case <-over:
		return
	}
	select {
	case <-time.After(time.Second):
		lost(link.Err())
	case <-over:
	}
}

// iterate computes one gradient and hands it over.
func (w *worker) iterate(ctx context.Context, rel transport.Release, rec *star.Record) error {
	computed, err := w.compute(ctx, rel, rec)
	if err != nil {
		return err
	}
	if w.link != nil {
		if rel.Delay > 0 && !sleep(ctx, min(rel.Delay, maxDelay)) {
			return context.Cause(ctx)
		}
		delayed := time.Since(computed)
		if err := w.hand(ctx, rec); err != nil {
			return err
		}
		w.tree.waited += delayed
		sent, got := w.traffic()
		rec.NetOut, rec.NetIn = float64(sent-w.sent), float64(got-w.got)
		w.sent, w.got = sent, got
	}
	rec.Push = time.Since(computed) - w.tree.waited // which is a wait, told with the next record
	return w.arrive(rec)
}

// maxDelay bounds how long a push waits because the coordinator says so.
const maxDelay = 10 * time.Second

// compute fills the gradient of a release's batch, and what it has measured of that.
// It returns when it was done.
func (w *worker) compute(ctx context.Context, rel transport.Release, rec *star.Record) (computed time.Time, err error) {
	paused, err := w.limits.Pause(ctx)
	if err != nil {
		return computed, err
	}
	if paused > 0 { // for others, like a wait: the worker is no slower for it
		rec.Wait += paused
		rec.Telemetry.Set(star.Paused, paused.Seconds())
	}
	if rel.Local == 0 {
		w.stride = nil
	}
	if rel.Local > 0 || rel.Micro > 0 || rel.Part > 0 || w.local != nil {
		return w.pieces(ctx, rel, rec)
	}
	start := time.Now()
	batch, err := w.loader.Next(rel.Start, rel.Count)
	if err != nil {
		return computed, err
	}
	// Where batches follow each other at an even distance, as they do whenever
	// everybody is in step, the next one is known before it is handed out.
	if next := 2*rel.Start - w.start; next > rel.Start {
		w.loader.Hint(next, rel.Count)
	}
	w.start = rel.Start
	if late := w.inject.Data(); late > 0 && !sleep(ctx, late) {
		return computed, context.Cause(ctx)
	}
	w.own.Begin(w.step, 0)
	defer w.own.End()
	loaded, at := time.Now(), w.member.Elapsed()
	rec.Load, rec.Samples = loaded.Sub(start), rel.Count
	w.meter.Begin()
	loss, err := w.grads(ctx, w.grad, batch)
	if err != nil {
		return computed, fmt.Errorf("step %d: %w", w.step, err)
	}
	rec.Loss = loss
	if err := w.check(rec); err != nil {
		return computed, err
	}
	w.compare(rec)
	if rec.Injected = w.inject.Delay(w.step, at, time.Since(loaded), w.share(rel.Count)); rec.Injected > 0 {
		if !sleep(ctx, rec.Injected) {
			return computed, context.Cause(ctx)
		}
	}
	computed = time.Now()
	rec.Compute = computed.Sub(loaded)
	w.meter.End()
	rec.At = w.member.Elapsed()
	return computed, nil
}

// arrive tells the coordinator of a gradient.
func (w *worker) arrive(rec *star.Record) error {
	cpu := processTime()
	if it := rec.Iteration(); it > 0 {
		rec.CPU = (cpu - w.cpu).Seconds() / it.Seconds()
	}
	w.cpu = cpu
	w.meter.Fill(rec)
	if w.link != nil {
		if v := w.link.DeliveryRate(); v > 0 {
			rec.Telemetry.Set(star.LinkRate, v)
		}
	}
	w.far(rec)
	w.observe(rec)
	w.step++
	return coord.Say(w.member, transport.Arrive{Record: *rec}, nil)
}

// check looks for what is not finite, and takes the norm on the way.
func (w *worker) check(rec *star.Record) error {
	var bad int
	rec.Norm2, bad = w.finite(w.grad)
	if bad < 0 && !math.IsNaN(rec.Loss) && !math.IsInf(rec.Loss, 0) {
		return nil
	}
	e := &NaNError{Worker: w.rank, Step: w.step, Loss: rec.Loss}
	if bad >= 0 {
		e.Value = w.grad[bad]
		for _, t := range w.model.Layout() {
			if bad >= t.Offset && bad < t.Offset+t.Len() {
				e.Tensor, e.Index = t.Name, bad-t.Offset
			}
		}
	}
	if w.job.OnNaN != "skip" {
		return e
	}
	w.log.Warn("skipped a gradient", "reason", e)
	clear(w.grad) // it arrives, and changes nothing
	rec.Loss, rec.Norm2 = math.NaN(), math.NaN()
	return w.tellPoison(&PoisonError{Worker: w.rank, Step: w.step, Cause: poison.NotFinite, Value: math.NaN(), Tensor: e.Tensor}, false)
}

// compare tells how the gradient differs from the one before.
func (w *worker) compare(rec *star.Record) {
	if diff2, ok := w.turns.Next(w.grad); ok {
		rec.Telemetry.Set(star.GradChange, diff2)
	}
}

// evaluate runs this worker's part of the test set with the parameters it has and
// the average of everybody's buffers.
func (w *worker) evaluate(ctx context.Context, rel transport.Release) error {
	begun := time.Now()
	own := w.model.Buffers()
	if len(own) > 0 {
		kept := append([]float32(nil), own...)
		if err := w.average(rel.Eval, own); err != nil {
			return err
		}
		defer copy(own, kept)
	}
	n := int64(w.test.Len())
	from, to := int(rel.From*n/10_000), int(rel.To*n/10_000)
	out := transport.EvalResult{Worker: star.Worker(w.rank), Eval: rel.Eval, Version: rel.Version}
	for from < to {
		k := min(to-from, max(w.job.Batch, 64))
		w.indices = w.indices[:0]
		for i := range k {
			w.indices = append(w.indices, from+i)
		}
		if err := w.test.Fill(&w.batch, w.indices); err != nil {
			return err
		}
		r, err := w.model.Eval(ctx, w.batch)
		if err != nil {
			return err
		}
		out.LossSum += r.LossSum
		out.Correct += int64(r.Correct)
		out.Count += int64(r.Count)
		from += k
	}
	out.Took = time.Since(begun)
	return coord.Say(w.member, out, nil)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
