package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"star/cluster/resource/actuate"
	"star/coord"
	"star/coord/pilot"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/baseline"
	"star/ps"
	"star/runlog"
	"star/train/checkpoint"
	"star/train/optim"
	"star/transport"
)

// server is one star-ps process. Its state is created in three steps:
//
//	prepare         from the configuration alone: checkpoint, plan, baseline, pilot, optimizer
//	serve           of this process: limits, traffic, the hosted shards
//	coordinatorOf   with each leadership: lease, handover, keeper, and a new pilot
//
// Goroutines of connections read hosting and coordinates. Everything else is written before they
// start, or by the one goroutine that coordinates.
type server struct {
	// stopRequested ends when this process must stop.
	stopRequested context.Context
	job           *Config
	log           *slog.Logger
	opt           optim.Config
	rate          optim.Schedule
	// resume is nil for a job that starts from the beginning.
	resume *checkpoint.Checkpoint
	plan   modes.Plan
	// pilot is set with --mode auto.
	pilot *pilot.Pilot
	// made is set with --baseline.
	made baseline.Made
	// scheme is the baseline's pilot; nil: its plan is fixed.
	scheme coord.Pilot
	// keeper is set if the pilot asks only this host.
	keeper *localAdmission
	// tenant is set for rank 0 with a cluster.
	tenant *admission
	limits *actuate.Governor
	// moved returns the bytes to and from other hosts so far.
	moved func() (sent, received int64)
	// says is set with --move-shards auto.
	says *reporter
	// lease is this process's leadership, with --coordinators.
	lease lease
	// handover is from the coordinator before; nil: the job starts here.
	handover *coord.Handover
	// params is that of the job, once the shards are assigned.
	params int64
	// locks are of the folders that this process writes into while it coordinates.
	locks []*checkpoint.Lock

	// hosting has the shards of this process.
	hosting atomic.Pointer[ps.Server]
	// coordinates: this process coordinates now, with --coordinators.
	coordinates atomic.Bool
}

// Run hosts shards, and on rank 0, or if elected, the coordinator, until the job is over. When ctx
// ends, so does the job, after a checkpoint within c.Grace; then the error is the cause of ctx.
//
// job.ExitCode has the exit code of an error. There are *job.SettingError (c is invalid; worded by
// c.Explain if set), *job.DisagreeError, *coord.Error (how the job ended, on the server that
// coordinates), *session.LostError and *transport.RejectError (on the other servers), *job.NaNError
// (in a validation gradient), and those of c.Report.
//
// Run may be called several times in one process, with different addresses and folders: it keeps no
// state between calls. c is copied; what c's functions and Log refer to is used until Run returns.
// Config.Begun and Config.Report are called from goroutines of Run, never concurrently.
func Run(ctx context.Context, c Config) error {
	c.complete()
	s := &server{job: &c, log: c.Log.With("rank", c.Rank), stopRequested: ctx}
	lingers, end := process.Linger(ctx, c.Grace)
	defer end()
	return process.EndsWith(ctx, s.serve(lingers, c.Begun, c.Report), s.log)
}

// serve is Run with a context that ends a moment later than that of c. The order matters: the
// configuration is checked before the process listens; the coordinator exists before the first
// connection is accepted, so that an early worker is not rejected; the cluster is entered once the
// coordinator exists, which receives the cluster's answers. Errors are those of Run.
func (s *server) serve(ctx context.Context, begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	j := s.job
	if err := s.prepare(); err != nil {
		return err
	}
	defer s.leaveFolders()
	tcp, err := process.Network(&j.Job, s.log)
	if err != nil {
		return err
	}
	// All members may connect at once.
	tcp.MaxPending = transport.Portion(4, max(transport.DefaultPending, j.Ranks()+j.Servers))
	plain, err := tcp.Listen(j.Listen)
	if err != nil {
		return j.Invalid("listen", err)
	}
	listener := &process.Counted{Listener: plain, Links: new(process.Links)}
	defer listener.Close()
	addr := listener.Addr()
	if j.Outside != nil {
		leave, err := j.Outside.Meet(s.stopRequested, &j.Job, j.Shards, addr, s.log)
		if err != nil {
			return err
		}
		defer leave()
	}
	peer := j.Coordinator
	if j.Rank == 0 {
		peer = "" // one interface cannot stand for the paths to all workers
	}
	limits, release, err := process.Govern(&j.Job, fmt.Sprintf("star-ps %d of job %s", j.Rank, j.Name), peer, s.log)
	if err != nil {
		return err
	}
	defer release()
	s.limits, s.moved = limits, listener.Traffic
	s.log.Info("listening", "addr", addr)

	// From here on every failure ends the process: Run returns the cause of ctx.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if j.MoveShards == job.Auto {
		s.says = newReporter(j, listener.Traffic)
		defer s.says.close()
	}
	l := &leading{server: s, begun: begun, report: report, tcp: tcp.Itself(), addr: addr}
	if err := l.prepare(tcp); err != nil {
		return err
	}
	if j.Outside != nil {
		may, leave, err := j.Outside.Enter(Tenant{
			Job: &j.Job, Network: tcp, Model: j.Model, Fixed: j.Mode != job.Auto,
			Limits: s.limits, Coordinator: l.now.Load(), Traffic: listener.Traffic, Log: s.log,
		})
		if err != nil {
			return err
		}
		defer leave()
		if s.tenant != nil && may != nil {
			s.tenant.Store(&may)
		}
	}
	s.hosting.Store(ps.NewServer(s.shards(tcp, addr)))
	var wg sync.WaitGroup
	defer wg.Wait()
	accept, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	wg.Go(func() {
		if err := transport.Serve(accept, listener, tcp.Config, l.dispatch(accept)); err != nil {
			cancel(err)
		}
	})
	hosted := make(chan error, 1)
	go func() { hosted <- s.host(ctx, tcp, addr) }()
	if !l.leads() {
		return <-hosted
	}
	return l.run(ctx, cancel, hosted)
}
