package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"star/coord"
	"star/election"
	"star/internal/process"
	"star/member"
	"star/ps"
	"star/runlog"
	"star/transport"
)

// candidate says whether this process may coordinate a job in which others may too.
func (s *server) candidate() bool { return s.job.Rank < len(s.job.Coordinators) }

// office is a reign, as the coordinator knows it.
type office struct{ *election.Reign }

func (o office) Term() int64 { return o.Reign.Term }

// serveCouncil is Serve where several processes may coordinate.
func (s *server) serveCouncil(ctx context.Context, cancel context.CancelCauseFunc, tcp *transport.TCP, listener *process.Counted, begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	job := s.job
	addr := listener.Addr()
	configure := func(tcp *transport.TCP) ps.ServerConfig {
		hosting := s.shards(tcp)
		hosting.Again = s.again(tcp, addr)
		return hosting
	}
	s.hosting.Store(ps.NewServer(configure(tcp)))
	var members *election.Council
	var reigning atomic.Pointer[coord.Coordinator]
	if s.candidate() {
		var err error
		members, err = election.New(election.Config{
			Job: job.Name, Rank: job.Rank, Members: job.Coordinators, Network: tcp, JoinTimeout: job.JoinTimeout, Log: s.log,
			Hello: transport.Hello{Token: job.Token, Version: member.Program, Host: process.Hostname()},
		})
		if err != nil {
			listener.Close()
			return job.Invalid("coordinators", err)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	accept, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	wg.Go(func() {
		err := transport.Serve(accept, listener, tcp.Config, func(c transport.Conn, h transport.Hello, payload []byte) {
			switch {
			case h.Service == transport.ServiceCoord && members != nil:
				if now := reigning.Load(); now != nil {
					now.Accept(c, h, payload)
					return
				}
				at := transport.Elsewhere{}
				if st := members.Status(); st.Leader != job.Rank {
					at.Addr = st.Addr
				}
				transport.Refer(c, at)
			case h.Service == transport.ServiceCouncil && members != nil:
				members.Accept(accept, c, h, payload) // logs why it ended
			case h.Service == transport.ServiceShard:
				s.hosting.Load().Accept(accept, c, h)
			default:
				transport.Refuse(c, transport.Reject{Exit: member.ExitUsage,
					Reason: fmt.Sprintf("%s is star-ps %d, which has no service %q: the coordinator is one of %v (--coordinators)", addr, job.Rank, h.Service, job.Coordinators)})
			}
		})
		if err != nil {
			cancel(err)
		}
	})
	hosted := make(chan error, 1)
	go func() { hosted <- s.host(ctx, tcp, configure, addr) }()
	if members == nil {
		return <-hosted
	}
	sits, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	sat := make(chan struct{})
	wg.Go(func() {
		defer close(sat)
		if err := members.Run(sits); err != nil && sits.Err() == nil {
			cancel(err)
		}
	})
	over := make(chan error, 1)
	go func() { over <- s.reigns(ctx, members, &reigning, begun, report) }()
	var failed error
	var idle <-chan time.Time
	for {
		select {
		case failed = <-hosted:
			hosted = nil
			if failed != nil {
				cancel(failed)
			}
			idle = time.After(staysFor) // the others may need this one to agree that the job is over
		case err := <-over:
			if err == nil {
				err = context.Cause(ctx)
			}
			cancel(nil)
			select {
			case <-members.Closed():
				<-sat // it stays for who does not know yet
			default:
			}
			if hosted != nil {
				select {
				case <-hosted:
				case <-time.After(2 * time.Second):
				}
			}
			if failed != nil && (err == nil || errors.Is(err, election.ErrDeposed) || errors.Is(err, coord.ErrDeposed)) {
				err = failed
			}
			return err
		case <-idle:
			cancel(failed)
			idle = nil
		}
	}
}

// staysFor is how long a process that may coordinate and has no part in the job any more waits for the others to agree that it is over.
const staysFor = 20 * time.Second

// bye gives members a moment to hang up first: a connection that is closed with bytes unread loses those on the way to the other side.
func bye(c *coord.Coordinator) {
	for end := time.Now().Add(2 * time.Second); c.Connected() > 0 && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
}

// reigns coordinates the job whenever this process is chosen, until the job is over or ctx ends. The end is agreed on in three steps, so that the
// loss of this process between them loses nothing: what the job came to (coord.Ending); then, when that is reported and who has shards or trains was
// told, that all is over. Who takes over in between reports it again.
func (s *server) reigns(ctx context.Context, members *election.Council, now *atomic.Pointer[coord.Coordinator], begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	for {
		r, err := members.Await(ctx)
		if errors.Is(err, election.ErrDeposed) && members.Last() != nil {
			return ended(members.Last())
		}
		if err != nil {
			return err
		}
		var heir *coord.Estate
		if len(r.Note) > 0 {
			if heir, err = coord.ParseEstate(r.Note); err != nil {
				return &member.DisagreeError{Err: err}
			}
		}
		s.log.Info("coordinates the job", "term", r.Term, "takes_over", heir != nil)
		c, err := s.coordinatorOf(office{r}, heir)
		if err != nil {
			return err
		}
		limited, stop := context.WithCancel(ctx)
		var looks sync.WaitGroup
		if s.keeper != nil {
			looks.Go(func() { s.keeper.run(limited, c) })
		}
		if begun != nil {
			begun(c)
		}
		now.Store(c)
		s.coordinates.Store(true)
		result, err := s.reign(ctx, r, c, func() { now.Store(nil); s.coordinates.Store(false) })
		stop()
		looks.Wait()
		if !errors.Is(err, coord.ErrDeposed) {
			if e := report(result); err == nil {
				err = e
			}
			bye(c)
			if e := r.Close(); e != nil {
				s.log.Debug("the others were not told that the job is over, and find out", "reason", e)
			}
			return err
		}
		if begun != nil {
			begun(nil)
		}
		if s.told.Err() != nil {
			return context.Cause(s.told)
		}
	}
}

// reign coordinates the job until it is over, or somebody else does. SIGTERM is for this process alone, unless too many others hear it as well: the job is handed
// over, if others are there who can go on with it. SIGINT ends it. over is called as soon as nobody is to talk with c any more.
func (s *server) reign(ctx context.Context, r *election.Reign, c *coord.Coordinator, over func()) (runlog.Result, error) {
	handed, ended := make(chan struct{}), make(chan struct{})
	undo := context.AfterFunc(s.told, func() {
		defer close(handed)
		why := context.Cause(s.told)
		if sig, ok := errors.AsType[*member.SignalError](why); !ok || sig.Signal != syscall.SIGTERM {
			c.Stop(why)
			return
		}
		select {
		case <-c.Yield(why):
		case <-ended:
			return
		}
		err := r.HandOver()
		select {
		case <-r.Over():
			s.log.Info("has handed the job over", "because", why, "missing", err)
		default:
			s.log.Warn("ends the job, because it cannot be handed over", "reason", err)
			c.Stop(why)
		}
	})
	defer func() {
		over()
		close(ended)
		if !undo() {
			<-handed // this process must not be gone before another one has taken over
		}
	}()
	return c.Run(ctx)
}

// ended is how a job has ended, by the last note: nil if well.
func ended(note []byte) error {
	e, err := coord.ParseEstate(note)
	if err != nil {
		return &member.DisagreeError{Err: err}
	}
	if e.End != nil && e.End.Exit != 0 {
		return &coord.Error{Exit: e.End.Exit, Msg: e.End.Reason}
	}
	return nil
}

// coordinatorOf makes the coordinator of one reign. What it has learned of the job's workers begins anew.
func (s *server) coordinatorOf(o office, heir *coord.Estate) (*coord.Coordinator, error) {
	s.office, s.heir, s.keeper = o, heir, nil
	if s.pilot != nil {
		var err error
		if s.pilot, err = NewPilot(s.job); err != nil {
			return nil, err
		}
	}
	return s.coordinator()
}

// logPath is where this process writes its run log: a successor has one of its own, because who coordinated before may not be gone.
func (s *server) logPath() string {
	if s.heir == nil {
		return filepath.Join(s.job.Out, process.RunLogName)
	}
	return filepath.Join(s.job.Out, fmt.Sprintf("run-term%d.jsonl", s.office.Term()))
}

// again finds the coordinator after one was lost.
func (s *server) again(tcp *transport.TCP, addr string) ps.Again {
	return func(ctx context.Context, _ error) (transport.Conn, int64, error) {
		m, err := s.join(ctx, tcp, addr, s.params)
		if over, ok := errors.AsType[*coord.OverError](err); ok {
			s.log.Info(over.Error())
			return nil, 0, ps.ErrOver
		}
		if err != nil {
			return nil, 0, err
		}
		s.farewell(m)
		return m.Hosted(), m.Welcome.Term, nil
	}
}

// join says Hello to whoever coordinates. params is how many the job has, for a server that was assigned its part; else 0.
func (s *server) join(ctx context.Context, tcp *transport.TCP, addr string, params int64) (*coord.Member, error) {
	job := s.job
	to := job.Coordinator
	if job.Rank == 0 {
		to = reachable(addr)
	}
	if job.Rank == 0 && len(job.Coordinators) == 0 {
		tcp = tcp.Itself()
	}
	return coord.Join(ctx, coord.MemberConfig{
		Network: tcp, Addr: to, Addrs: job.Coordinators, Anew: params > 0, JoinTimeout: job.JoinTimeout, DeadAfter: job.DeadAfter, Log: s.log,
		Hello: transport.Hello{
			Service: transport.ServiceCoord, Role: transport.RoleServer, Job: job.Name, Token: job.Token,
			Version: member.Program, Host: process.Hostname(), Rank: job.Rank, Shards: job.Shards, Addr: s.advertise(addr, to), Params: params,
		},
	})
}

// lostEarly says whether a server has lost the coordinator before it was assigned its part, and another one will do that.
func (s *server) lostEarly(ctx context.Context, err error) bool {
	var lost *coord.LostError
	return len(s.job.Coordinators) > 0 && errors.As(err, &lost) && ctx.Err() == nil
}
