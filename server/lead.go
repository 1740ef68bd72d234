package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"star/coord"
	"star/coord/election"
	"star/internal/exitcode"
	"star/job"
	"star/job/process"
	"star/ps/rule"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// candidate says whether this process may coordinate a job in which others may too.
func (s *server) candidate() bool { return s.job.Rank < len(s.job.Coordinators) }

// lease is a leadership, as the coordinator knows it; zero: nobody else may coordinate. It is
// coord.LeaderLease: every order of the coordinator asks it first whether another process may have
// taken its place (election.Leadership.Hold).
type lease struct{ *election.Leadership }

// Term is the number of the leadership: of two the later one has the higher.
func (o lease) Term() int64 { return o.Leadership.Term }

// close has the others know that the job is over.
func (o lease) close() error {
	if o.Leadership == nil {
		return nil
	}
	return o.Leadership.Close()
}

// leading is what a process has that coordinates the job: always, as the only one that may, or
// whenever the servers that may have chosen it.
//
// now is whom connections are given to: it is nil whenever another process coordinates, or nobody
// does. It changes at the beginning and end of each leadership, while goroutines of connections
// read it.
type leading struct {
	*server
	begun  func(*coord.Coordinator) // nil: nobody wants to know
	report func(runlog.Result) error
	tcp    *transport.TCP // to this process
	addr   string

	members *election.Member // of those that may coordinate, this one too; nil: it is the only one, or may not
	now     atomic.Pointer[coord.Coordinator]
}

// prepare makes the coordinator of a process that is the only one, before anybody can come to it,
// or else what chooses one. Errors are those of coordinator, and of a list of --coordinators that
// this process is not rightly in.
func (l *leading) prepare(tcp *transport.TCP) (err error) {
	j := l.job
	switch {
	case len(j.Coordinators) == 0 && j.Rank == 0:
		c, err := l.coordinator()
		if err != nil {
			return err
		}
		l.now.Store(c)
	case l.candidate():
		l.members, err = election.New(election.Config{
			Job: j.Name, Rank: j.Rank, Members: j.Coordinators, Network: tcp, JoinTimeout: j.JoinTimeout, Log: l.log,
			Hello: wire.Hello{Token: j.Token, Version: job.Program, Host: process.Hostname()},
		})
		if err != nil {
			return j.Invalid("coordinators", err)
		}
	}
	return nil
}

// leads says whether this process coordinates, or may.
func (l *leading) leads() bool { return l.members != nil || l.now.Load() != nil }

// dispatch is who gets a connection.
//
// A Hello says which service it wants: the coordinator, the election, or a shard. Where several may
// coordinate, who asks one that does not is told where the coordinator is, or that it is not known;
// who asks for what this process never has is refused with exit code 2. Each connection is served
// in the goroutine of its own that transport.Serve has begun.
func (l *leading) dispatch(accept context.Context) func(transport.Conn, wire.Hello, []byte) {
	whose := "is star-ps 0 (--coordinator)"
	if len(l.job.Coordinators) > 0 {
		whose = fmt.Sprintf("is one of %v (--coordinators)", l.job.Coordinators)
	}
	return func(c transport.Conn, h wire.Hello, payload []byte) {
		now := l.now.Load()
		switch {
		case h.Service == wire.ServiceCoord && now != nil:
			now.Accept(c, h, payload)
		case h.Service == wire.ServiceCoord && l.members != nil:
			at := wire.Elsewhere{}
			if st := l.members.Status(); st.Leader != l.job.Rank {
				at.Addr = st.Addr
			}
			transport.Refer(c, at)
		case h.Service == wire.ServiceElection && l.members != nil:
			l.members.Accept(accept, c, h, payload) // logs why it ended
		case h.Service == wire.ServiceShard:
			l.hosting.Load().Accept(accept, c, h) // logs why it ended
		default:
			transport.Refuse(c, wire.Reject{Exit: exitcode.Usage,
				Reason: fmt.Sprintf("%s is star-ps %d, which has no service %q: the coordinator %s", l.addr, l.job.Rank, h.Service, whose)})
		}
	}
}

// run coordinates until the job is over, and waits for who is to hear of that. hosted ends with
// what this process hosts; cancel ends ctx, also of that.
//
// What it returns is why the job has ended for this process: what the coordinator says (terms,
// lead), unless what the process hosts has failed first and that was the reason. It waits for the
// election's goroutine in every case, and two seconds for the shards to hang up.
func (l *leading) run(ctx context.Context, cancel context.CancelCauseFunc, hosted <-chan error) error {
	sits, leave := context.WithCancel(context.WithoutCancel(ctx))
	sat := make(chan struct{})
	defer func() { leave(); <-sat }()
	over := make(chan error, 1)
	if l.members == nil {
		close(sat)
		go func() { over <- l.lead(ctx, lease{}, l.now.Load(), cancel) }()
	} else {
		go func() {
			defer close(sat)
			if err := l.members.Run(sits); err != nil && sits.Err() == nil {
				cancel(err)
			}
		}()
		go func() { over <- l.terms(ctx, cancel) }()
	}
	var failed error
	var idle <-chan time.Time
	for {
		select {
		case failed = <-hosted:
			hosted = nil
			if failed != nil {
				cancel(failed)
			}
			if l.members != nil {
				idle = time.After(staysFor) // the others may need this one to agree that the job is over
			}
		case err := <-over:
			if err == nil {
				err = context.Cause(ctx)
			}
			cancel(nil)
			l.outlast(sat)
			if hosted != nil {
				select {
				case <-hosted:
				case <-time.After(2 * time.Second):
				}
			}
			if failed != nil && (err == nil || errors.Is(err, election.ErrLeadershipLost) || errors.Is(err, coord.ErrLeaseLost)) {
				err = failed
			}
			return err
		case <-idle:
			cancel(failed)
			idle = nil
		}
	}
}

// outlast stays for who may coordinate and does not know yet that the job is over. Only where it is
// agreed that the job is over: then it waits until the election's own loop ends.
func (l *leading) outlast(sat <-chan struct{}) {
	if l.members == nil {
		return
	}
	select {
	case <-l.members.Closed():
		<-sat
	default:
	}
}

// terms coordinates the job whenever this process is chosen, until the job is over or ctx ends. The
// end is agreed on in three steps, so that the loss of this process between them loses nothing:
// what the job came to (coord.Ending); then, when that is reported and who has shards or trains was
// told, that all is over. Who takes over in between reports it again.
//
// It returns how the job has ended, wherever that was decided: nil, a *coord.Error with its exit
// code, a *job.DisagreeError where what the coordinator before has left cannot be read, or the
// cause of ctx. A leadership that is lost is no end: it waits for the next one.
func (l *leading) terms(ctx context.Context, cancel context.CancelCauseFunc) error {
	for {
		r, err := l.members.Await(ctx)
		if errors.Is(err, election.ErrLeadershipLost) && l.members.Last() != nil {
			return ended(l.members.Last())
		}
		if err != nil {
			return err
		}
		var handover *coord.Handover
		if len(r.Note) > 0 {
			if handover, err = coord.ParseHandover(r.Note); err != nil {
				return &job.DisagreeError{Err: err}
			}
		}
		l.log.Info("coordinates the job", "term", r.Term, "takes_over", handover != nil)
		c, err := l.coordinatorOf(lease{r}, handover)
		if err != nil {
			return err
		}
		if err := l.lead(ctx, lease{r}, c, cancel); !errors.Is(err, coord.ErrLeaseLost) {
			return err
		}
		if l.begun != nil {
			l.begun(nil)
		}
		if l.told.Err() != nil {
			return context.Cause(l.told)
		}
	}
}

// lead has c coordinate the job until it is over and that is reported, or somebody else
// coordinates: coord.ErrLeaseLost.
//
// What runs beside the coordinator (the look at this host, moves of shards, the validator) ends
// before it returns. The result is reported before those that may coordinate agree that all is
// over: whoever takes over in between reports it again, so that it is reported at least once.
func (l *leading) lead(ctx context.Context, o lease, c *coord.Coordinator, cancel context.CancelCauseFunc) error {
	limited, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	if l.keeper != nil {
		beside.Go(func() { l.keeper.run(limited, c) })
	}
	if l.begun != nil {
		l.begun(c)
	}
	l.now.Store(c)
	l.coordinates.Store(o.Leadership != nil)
	if l.job.MoveShards == job.Auto {
		beside.Go(func() { newShifter(l.job, l.log).run(limited, c) })
	}
	over := make(chan struct{})
	if zeno, ok := l.made.Rule.(rule.ZenoSpec); ok {
		v, err := l.newValidator(zeno)
		if err != nil {
			stop()
			beside.Wait()
			return err
		}
		beside.Go(func() {
			defer v.close()
			if err := v.live(ctx, over, l.tcp, reachable(l.addr)); err != nil {
				cancel(err)
			}
		})
	}
	result, err := l.coordinate(ctx, o, c)
	close(over)
	stop()
	if !errors.Is(err, coord.ErrLeaseLost) {
		if err == nil {
			err = context.Cause(ctx)
		}
		if e := l.report(result); err == nil {
			err = e
		}
		bye(c)
		if e := o.close(); e != nil {
			l.log.Debug("the others were not told that the job is over, and find out", "reason", e)
		}
	}
	beside.Wait()
	return err
}

// staysFor is how long a process that may coordinate and has no part in the job any more waits for
// the others to agree that it is over.
const staysFor = 20 * time.Second

// bye gives members a moment to hang up first: a connection that is closed with bytes unread loses
// those on the way to the other side. Two seconds at most, in which it looks every two
// milliseconds. That is as long as Run of the coordinator leaves connections open.
func bye(c *coord.Coordinator) {
	for end := time.Now().Add(2 * time.Second); c.Connected() > 0 && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
}

// coordinate has the job done until it is over, or somebody else does. SIGTERM is for this process
// alone, unless too many others hear it as well: the job is handed over, if others are there who
// can go on with it. SIGINT ends it.
//
// A hand-over first has the coordinator stop giving orders (Yield), then has another member of the
// election lead (HandOver). Where nobody takes it, the job ends here with a checkpoint, as with
// SIGINT. It returns what Coordinator.Run does; coord.ErrLeaseLost: somebody else goes on.
func (l *leading) coordinate(ctx context.Context, o lease, c *coord.Coordinator) (runlog.Result, error) {
	handed, ended := make(chan struct{}), make(chan struct{})
	undo := context.AfterFunc(l.told, func() {
		defer close(handed)
		why := context.Cause(l.told)
		if sig, ok := errors.AsType[*job.SignalError](why); o.Leadership == nil || !ok || sig.Signal != syscall.SIGTERM {
			c.Stop(why)
			return
		}
		select {
		case <-c.Yield(why):
		case <-ended:
			return
		}
		err := o.HandOver()
		select {
		case <-o.Over():
			l.log.Info("has handed the job over", "because", why, "missing", err)
		default:
			l.log.Warn("ends the job, because it cannot be handed over", "reason", err)
			c.Stop(why)
		}
	})
	defer func() {
		if o.Leadership != nil { // who comes now is told who coordinates
			l.now.Store(nil)
			l.coordinates.Store(false)
		}
		close(ended)
		if !undo() {
			<-handed // this process must not be gone before another one has taken over
		}
	}()
	return c.Run(ctx)
}

// ended is how a job has ended, by the last note: nil if well. Of a job that was stopped it is a
// *coord.Error with the exit code that all its processes end with; a *job.DisagreeError: the
// note is of another version of the program.
func ended(note []byte) error {
	e, err := coord.ParseHandover(note)
	if err != nil {
		return &job.DisagreeError{Err: err}
	}
	if e.End != nil && e.End.Exit != 0 {
		return &coord.Error{Exit: e.End.Exit, Msg: e.End.Reason}
	}
	return nil
}

// coordinatorOf makes the coordinator of one leadership. What it has learned of the job's workers
// begins anew. The pilot is a new one: it has seen nothing of what the coordinator before was told,
// and is told what the successor writes (coord.Handover has the plan in force). handover is nil
// where the job begins here.
func (s *server) coordinatorOf(o lease, handover *coord.Handover) (*coord.Coordinator, error) {
	s.lease, s.handover, s.keeper = o, handover, nil
	if s.pilot != nil {
		var err error
		if s.pilot, err = newPilot(s.job); err != nil {
			return nil, err
		}
	}
	return s.coordinator()
}
