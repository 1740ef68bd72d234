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

// server is one star-ps process.
//
// What is in it is made in three steps. prepare makes what follows from the configuration alone,
// and opens the checkpoint; serve adds what belongs to this process (limits, traffic, what it
// hosts); lease and handover come with the right to coordinate, and another lease has others
// (coordinatorOf). hosting and coordinates are read by the goroutines of connections; all else is
// written before they begin, or by the one goroutine that coordinates.
type server struct {
	told     context.Context // ends when this process is told to end
	job      *Config
	log      *slog.Logger
	opt      optim.Config
	rate     optim.Schedule
	resume   *checkpoint.Checkpoint // nil: from the beginning
	plan     modes.Plan
	pilot    *pilot.Pilot    // --mode auto; else nil
	made     baseline.Made   // --baseline; else zero
	scheme   coord.Pilot     // of the baseline; nil: its plan stays
	keeper   *localAdmission // of this host, where the pilot asks nobody else; else nil
	tenant   *admission      // with a cluster, of rank 0; else nil
	limits   *actuate.Governor
	moved    func() (sent, received int64) // bytes to and from other hosts so far
	says     *reporter                     // with --move-shards auto; else nil
	lease    lease                         // with --coordinators, of this process's leadership
	handover *coord.Handover               // that it takes over; nil: the job begins
	params   int64                         // of the job, once it was assigned its part
	locks    []*checkpoint.Lock            // of the folders that it writes into, once it coordinates

	hosting     atomic.Pointer[ps.Server] // the shards of this process
	coordinates atomic.Bool               // now, where others may, too
}

// Run hosts shards, and on rank 0, or where the servers choose this one, the coordinator, until the
// job is over. When ctx ends, so does the job, after a checkpoint within c.Grace; then the error is
// the cause of ctx.
//
// The exit code that fits an error is job.ExitCode. There are *job.SettingError (c cannot be
// used; what c.Explain makes, if it is set), *job.DisagreeError, *coord.Error (how the job has
// ended, of the server that coordinates), *session.LostError and *transport.RejectError (of a server that
// does not coordinate), *job.NaNError (in a validation gradient), and those of c.Report.
//
// Run may be called several times in one process, with other addresses and folders: it keeps
// nothing from one call to the next. c is copied; what c's functions and Log refer to is used until
// Run returns. Config.Begun and Config.Report are called from goroutines of Run, never two at once.
func Run(ctx context.Context, c Config) error {
	c.complete()
	s := &server{job: &c, log: c.Log.With("rank", c.Rank), told: ctx}
	lingers, end := process.Linger(ctx, c.Grace)
	defer end()
	return process.EndsWith(ctx, s.serve(lingers, c.Begun, c.Report), s.log)
}

// serve is Run with a context that ends a moment later than that of c. The order counts: what may
// be wrong with the configuration is said before anything listens; the coordinator exists before
// the first connection is accepted, so that a worker that comes early is not refused; the cluster
// is entered once the coordinator is there to be told what was granted. Errors are those of Run.
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
	tcp.MaxPending = transport.Portion(4, max(transport.DefaultPending, j.Ranks()+j.Servers)) // all members may come at once
	plain, err := tcp.Listen(j.Listen)
	if err != nil {
		return j.Invalid("listen", err)
	}
	listener := &process.Counted{Listener: plain, Links: new(process.Links)}
	defer listener.Close()
	addr := listener.Addr()
	if j.Outside != nil {
		leave, err := j.Outside.Meet(s.told, &j.Job, j.Shards, addr, s.log)
		if err != nil {
			return err
		}
		defer leave()
	}
	peer := j.Coordinator
	if j.Rank == 0 {
		peer = "" // which of the workers' would it be?
	}
	limits, release, err := process.Govern(&j.Job, fmt.Sprintf("star-ps %d of job %s", j.Rank, j.Name), peer, s.log)
	if err != nil {
		return err
	}
	defer release()
	s.limits, s.moved = limits, listener.Traffic
	s.log.Info("listening", "addr", addr)

	// From here on whatever fails ends everything: the cause of ctx is what Run says.
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
