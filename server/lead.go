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

// candidate reports whether this process is one of the --coordinators.
func (s *server) candidate() bool { return s.job.Rank < len(s.job.Coordinators) }

// lease is a leadership for the coordinator (coord.LeaderLease): before every order it checks that
// no other process may have taken over (election.Leadership.Hold). Zero: no other process may
// coordinate.
type lease struct{ *election.Leadership }

// Term is the number of the leadership: a later one has a higher number.
func (o lease) Term() int64 { return o.Leadership.Term }

// close announces to the other candidates that the job is over.
func (o lease) close() error {
	if o.Leadership == nil {
		return nil
	}
	return o.Leadership.Close()
}

// leading is the state of a process that may coordinate the job: always, as the only candidate, or
// whenever the candidates have elected it.
//
//	follower ── elected (terms) ──▶ leader: coordinator created, now is set (lead)
//	    ▲                               │
//	    └── lease lost or handed over ──┤
//	                                    └── job over: report, bye, close ──▶ every candidate ends
//
// Invariants: now is nil whenever this process does not coordinate. It changes at the start and end
// of each leadership, while goroutines of connections read it. The result is reported before close,
// so a crash in between repeats the report and never loses it.
type leading struct {
	*server
	// begun, if not nil, is called at the start and end of a leadership.
	begun  func(*coord.Coordinator)
	report func(runlog.Result) error
	// tcp connects to this process.
	tcp  *transport.TCP
	addr string

	// members is the election; nil: this process is the only candidate, or is not one.
	members *election.Member
	now     atomic.Pointer[coord.Coordinator]
}

// prepare creates the coordinator of an only candidate before any connection is accepted, or else
// the election. Errors are those of coordinator, and of a list of --coordinators in which this
// process does not appear correctly.
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

// leads reports whether this process coordinates, or may.
func (l *leading) leads() bool { return l.members != nil || l.now.Load() != nil }

// dispatch returns the handler of connections.
//
// A Hello names a service: the coordinator, the election, or a shard. With several candidates, a
// peer that asks a follower is referred to the leader, if known. A peer that asks for a service that
// this process never has is rejected with exit code 2. Each connection is handled in its own
// goroutine, which transport.Serve has started.
func (l *leading) dispatch(accept context.Context) func(transport.Conn, wire.Hello, []byte) {
	coordinator := "is star-ps 0 (--coordinator)"
	if len(l.job.Coordinators) > 0 {
		coordinator = fmt.Sprintf("is one of %v (--coordinators)", l.job.Coordinators)
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
				Reason: fmt.Sprintf("%s is star-ps %d, which does not serve %q; the coordinator %s", l.addr, l.job.Rank, h.Service, coordinator)})
		}
	}
}

// Three things can end run, and each waits for the others:
//
//	hosted   the shards ended: with an error everything ends; otherwise a candidate stays (staysFor)
//	over     the job is over, or this process may not coordinate any more
//	idle     a candidate without shards has waited long enough
//
// run coordinates until the job is over, and until the other members know that. hosted receives the
// result of what this process hosts; cancel ends ctx, also for that.
//
// It returns why the job ended for this process: what the coordinator says (terms, lead), unless
// what the process hosts failed first and caused the end. It always waits for the election's
// goroutine, and two seconds for the shards' connections to end.
func (l *leading) run(ctx context.Context, cancel context.CancelCauseFunc, hosted <-chan error) error {
	electing, leave := context.WithCancel(context.WithoutCancel(ctx))
	elected := make(chan struct{})
	defer func() { leave(); <-elected }()
	over := make(chan error, 1)
	if l.members == nil {
		close(elected)
		go func() { over <- l.lead(ctx, lease{}, l.now.Load(), cancel) }()
	} else {
		go func() {
			defer close(elected)
			if err := l.members.Run(electing); err != nil && electing.Err() == nil {
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
				// The other candidates may need this one to agree that the job is over.
				idle = time.After(staysFor)
			}
		case err := <-over:
			if err == nil {
				err = context.Cause(ctx)
			}
			cancel(nil)
			l.outlast(elected)
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

// outlast waits until the other candidates know that the job is over, if that was agreed: until the
// election's own loop ends.
func (l *leading) outlast(elected <-chan struct{}) {
	if l.members == nil {
		return
	}
	select {
	case <-l.members.Closed():
		<-elected
	default:
	}
}

// terms coordinates the job whenever this process is elected, until the job is over or ctx ends. The
// end is agreed in steps, so that the loss of this process between them loses nothing: first the
// result of the job (coord.Ending); then, after the report and after all members know, that
// everything is over. A process that takes over in between reports again.
//
// It returns how the job ended, wherever that was decided: nil, a *coord.Error with its exit code, a
// *job.DisagreeError if the notes of the coordinator before cannot be read, or the cause of ctx.
// After a lost leadership it waits for the next one.
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
		l.log.Info("leading the job", "term", r.Term, "takes_over", handover != nil)
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
		if l.stopRequested.Err() != nil {
			return context.Cause(l.stopRequested)
		}
	}
}

// lead has c coordinate the job until it is over and reported, or another process coordinates:
// coord.ErrLeaseLost.
//
// What runs beside the coordinator (local admission, moves of shards, the validator) ends before
// lead returns. The result is reported before the candidates agree that everything is over: a
// process that takes over in between reports again, so the result is reported at least once.
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
			l.log.Debug("could not announce the end of the job; the other candidates will time out", "reason", e)
		}
	}
	beside.Wait()
	return err
}

// staysFor is how long a candidate without shards waits for the others to agree that the job is
// over.
const staysFor = 20 * time.Second

// bye gives members up to two seconds to close their connections first: closing a connection with
// unread bytes loses data in the other direction. Coordinator.Run leaves connections open for as
// long.
func bye(c *coord.Coordinator) {
	for end := time.Now().Add(2 * time.Second); c.Connected() > 0 && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
}

// coordinate runs the coordinator until the job is over or another process takes over. SIGTERM
// concerns this process alone, unless too many other candidates get it as well: the job is handed
// over if another candidate can continue it. SIGINT ends the job.
//
// A handover first stops the coordinator's orders (Yield), then has another member of the election
// lead (HandOver). If none takes it, the job ends here with a checkpoint, as after SIGINT. The
// results are those of Coordinator.Run; coord.ErrLeaseLost: another process continues.
func (l *leading) coordinate(ctx context.Context, o lease, c *coord.Coordinator) (runlog.Result, error) {
	handed, ended := make(chan struct{}), make(chan struct{})
	undo := context.AfterFunc(l.stopRequested, func() {
		defer close(handed)
		why := context.Cause(l.stopRequested)
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
			l.log.Info("handed the job over", "because", why, "missing", err)
		default:
			l.log.Warn("could not hand the job over; ending it", "reason", err)
			c.Stop(why)
		}
	})
	defer func() {
		if o.Leadership != nil { // new connections are referred to the new leader
			l.now.Store(nil)
			l.coordinates.Store(false)
		}
		close(ended)
		if !undo() {
			<-handed // wait until another process has taken over
		}
	}()
	return c.Run(ctx)
}

// ended returns how a job ended, according to the last note: nil if it succeeded. For a job that was
// stopped it is a *coord.Error with the exit code of all its processes; a *job.DisagreeError:
// another version of the program wrote the note.
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

// coordinatorOf creates the coordinator of one leadership. Its knowledge of the workers starts
// empty, and so does that of the new pilot; coord.Handover has the plan in force. handover is nil if
// the job starts here.
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
