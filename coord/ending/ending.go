// Package ending decides how a job ends when it must end, or when members leave. It is pure: no I/O, no clock, no
// goroutine. The coordinator calls an [End] for each event with the state of the job ([Facts], [Job]), and carries out
// what the calls return.
//
// A job that must end is saved first, if that takes no longer than the grace:
//
//	           Tell           Ask              Freeze            Save           Saved
//	working ─────────► told ──────► collecting ──────► frozen ──────────► saving ─────► over
//	   │                 │                                                               ▲
//	   │                 └─ the grace is over, it is saved already, or cannot be saved ──┘
//	   │ Wind                      Abandon
//	   └────────► without workers ─────────► still, until it is evaluated and saved
//
// From frozen on no update is made. From still on no gradient is accepted.
//
// A member that must end reports it and keeps working until it is released. So a job in which all processes get the
// signal at once, as schedulers do it, is complete when it is saved. Muster releases members that have waited, or ends
// the job if it cannot continue without those that leave.
package ending

import (
	"fmt"
	"slices"
	"star/internal/exitcode"
	"time"

	"star"
)

const (
	// MusterTime is how long a member that must end is kept, because others may have to end as well: schedulers
	// signal the processes of a job one after the other, and those on other hosts a little later.
	MusterTime = 2 * time.Second

	// YieldTime is the same for the process that coordinates, if others may take over. It is shorter, because the
	// job is saved anyway when too few members are left.
	YieldTime = 200 * time.Millisecond

	// Signalled is the first exit code of processes that were ended by a signal.
	Signalled = 128
)

// Failed reports whether the exit code of a worker that leaves means that its program failed. The others mean that it
// was told to end, or that another member is gone or disagrees.
func Failed(exit int) bool {
	switch exit {
	case exitcode.OK, exitcode.Usage, exitcode.Lost, exitcode.Restart, exitcode.Refused, exitcode.Disagree:
		return false
	}
	return exit <= Signalled
}

// End is the state of a job's end. The zero value is a job that continues.
type End struct {
	cause     error // nil: the job need not end
	until     time.Time
	grace     time.Duration
	asked     time.Time // when workers were asked for their buffers
	collected bool
	frozen    bool // the version that is saved is the last one
	still     bool
	over      bool // the checkpoint is written, has failed, or is impossible

	wound bool // no worker is left
	with  error

	yields  error // why this process must end, if others may coordinate
	yielded time.Time
}

// Facts is the state of the job that the stages of an end depend on.
type Facts struct {
	Saving    bool // the job is being saved, or will be
	Unsettled bool // the place or version of the parameters is not known yet
	Survives  bool // the parameters outlive the workers
	Saved     bool // the present version is saved
	Buffers   bool // the model has buffers, which workers have
	Collected bool // workers have sent their buffers
	Midway    bool // updates of the last batches are still to be made
}

// Step is what must be done next.
type Step uint8

const (
	Wait    Step = iota // nothing until the next event
	Ask                 // ask workers for their buffers
	Curtail             // continue without the buffers of workers that have not sent them, then ask Next again
	Freeze              // make no update any more, tell Froze, then ask Next again
	Save                // write the checkpoint
	Late                // the grace is over: the job ends without a checkpoint of its last updates
	Over                // the job ends with Cause
)

// Tell ends the job with cause and returns true. If it is already ending, Tell only replaces the cause and returns
// false. saves says whether the job can be saved.
func (e *End) Tell(now time.Time, cause error, grace time.Duration, saves bool) bool {
	if e.cause != nil {
		e.cause = cause
		return false
	}
	e.cause, e.grace, e.until, e.over = cause, grace, now.Add(grace), !saves || grace <= 0
	return true
}

// Cause is the cause given to Tell; nil before.
func (e *End) Cause() error { return e.cause }

// Told reports whether the job must end and may still be saved.
func (e *End) Told() bool { return e.cause != nil && !e.over }

// Frozen reports whether no more updates are made.
func (e *End) Frozen() bool { return e.frozen }

// Still reports whether no more gradients are accepted.
func (e *End) Still() bool { return e.still }

// Froze records that no more updates are made. still says that no more gradients are accepted.
func (e *End) Froze(still bool) { e.frozen, e.still = true, still }

// Saved records that the checkpoint is written, or has failed.
func (e *End) Saved() { e.over = true }

// Next returns the next step. It is called after every event that the end waited for, and regularly.
func (e *End) Next(now time.Time, f Facts) Step {
	switch {
	case e.cause == nil:
		return Wait
	case e.over:
		return Over
	case !now.Before(e.until):
		return Late
	case f.Saving, f.Unsettled:
		return Wait
	case !f.Survives, !e.frozen && f.Saved:
		return Over
	case f.Buffers && !e.frozen && !e.collected:
		return e.collect(now, f.Collected)
	case !e.frozen:
		return Freeze
	case f.Midway:
		return Wait
	}
	return Save
}

// collect gives the workers half of the grace for their buffers.
func (e *End) collect(now time.Time, collected bool) Step {
	switch {
	case e.asked.IsZero():
		e.asked = now
		return Ask
	case collected:
		e.collected = true
		return Freeze
	case now.Sub(e.asked) < e.grace/2:
		return Wait
	}
	e.collected = true
	return Curtail
}

// Wind begins the end of a job without workers, with an error or nil.
func (e *End) Wind(with error) { e.wound, e.with = true, with }

// Wound reports whether Wind was called.
func (e *End) Wound() bool { return e.wound }

// With is the error that Wind was called with.
func (e *End) With() error { return e.with }

// Abandon records that the last worker's unfinished work is discarded.
func (e *End) Abandon() { e.still = true }

// Member is the state of a worker or a server, for Muster.
type Member struct {
	Here    bool
	Leaving time.Time // when it reported that it must end; zero if it need not
	Why     string
	Holds   bool // a worker of a ring: it has the parameters. A server: it has shards
	InRing  bool
	Coming  bool // a server that has not connected and still may
}

// Stays reports whether a member is connected and need not end.
func (m Member) Stays() bool { return m.Here && m.Leaving.IsZero() }

func (m Member) going() bool { return m.Here && !m.Leaving.IsZero() }

// Job is the state of a job for Muster.
type Job struct {
	Sharded       bool
	Settled       bool // the engine waits for no reports
	StopOnFailure bool
	AtOnce        bool // members that leave are not kept
	Coordinators  int  // servers of the lowest ranks that may coordinate
	MinWorkers    int  // workers that the training needs; 0: it does not wait for more
	Grace         time.Duration
	Workers       []Member
	Servers       []Member
	Copies        Copies
}

// Copies has the copies of shards.
type Copies interface {
	On() bool
	// Without returns a shard without a holder that stays, and true; false if each shard has one.
	Without(going func(server int) bool) (shard int, without bool)
}

// Yield records that this process must end with cause, and that others may coordinate.
func (e *End) Yield(now time.Time, cause error) { e.yields, e.yielded = cause, now }

// Muster returns one consequence of members that leave: [Stop], [Release] or [Hand], or nil. It is called again until
// it returns nil.
func (e *End) Muster(now time.Time, j *Job) any {
	if e.cause != nil {
		return nil
	}
	if why := e.deserted(now, j); why != "" {
		return Stop{why, e.yields}
	}
	for i, m := range slices.Concat(j.Workers, j.Servers) {
		if !m.going() || !j.AtOnce && now.Sub(m.Leaving) < MusterTime {
			continue
		}
		if server := i >= len(j.Workers); server {
			return Release{true, i - len(j.Workers)}
		} else if !j.retains(i) {
			return Release{false, i}
		}
	}
	if e.yields != nil && now.Sub(e.yielded) >= YieldTime {
		e.yields = nil
		return Hand{}
	}
	return nil
}

type (
	// Stop ends the job, which cannot continue. Cause is that of this process, if it must end as well.
	Stop struct {
		Why   string
		Cause error
	}
	// Release lets a member leave.
	Release struct {
		Server bool
		Rank   int
	}
	// Hand hands the job over: others can continue it.
	Hand struct{}
)

// retains reports whether a ring worker stays although it must end, in a job with several coordinators: no worker that
// stays has the parameters yet, and among those that leave it was the last to report. The others are released, so that
// replacements can join and get the parameters from this one.
func (j *Job) retains(w int) bool {
	p := j.Workers[w]
	if j.Sharded || j.Coordinators == 0 || !p.InRing {
		return false
	}
	for i, o := range j.Workers {
		later := o.Leaving.IsZero() || o.Leaving.After(p.Leaving) || o.Leaving.Equal(p.Leaving) && i > w
		if i != w && o.Here && o.Holds && later {
			return false
		}
	}
	return !j.Settled || p.Holds
}

// deserted returns why the job cannot continue without the members that leave; empty if it can.
//
// It cannot continue without any worker (unless it waits for more), without a server that has the only copy of a shard,
// or without a majority of the servers that may coordinate.
func (e *End) deserted(now time.Time, j *Job) string {
	var why string
	var last time.Time // when the last worker reported that it must end
	for w, m := range j.Workers {
		if m.going() {
			if m.Leaving.After(last) {
				last = m.Leaving
			}
			why = fmt.Sprintf("every worker was told to end, the last one is worker %d: %s", w, m.Why)
		}
	}
	switch {
	case why == "":
	case j.StopOnFailure:
		return why + " (--on-failure stop)"
	case slices.ContainsFunc(j.Workers, Member.Stays):
	case !j.Sharded && j.Coordinators > 0: // one is kept until another worker has joined, or only the time to save is left
		if now.Sub(last) >= j.Grace/2 {
			return why
		}
	case j.MinWorkers == 0 || !j.Sharded:
		return why
	}
	stay := 0 // servers that may coordinate
	for rank, m := range j.Servers {
		switch {
		case rank < j.Coordinators && (m.Stays() || m.Coming):
			stay++
		case rank >= j.Coordinators && m.going() && m.Holds && !j.Copies.On():
			return fmt.Sprintf("server %d has shards and was told to end: %s", rank, m.Why)
		}
	}
	if slices.ContainsFunc(j.Servers, Member.going) {
		if shard, without := j.Copies.Without(func(s int) bool { return !j.Servers[s].Stays() }); without {
			return fmt.Sprintf("every server that has shard %d was told to end", shard)
		}
	}
	if k := j.Coordinators; k > 0 {
		if e.yields != nil {
			stay--
		}
		if (e.yields != nil || slices.ContainsFunc(j.Servers[:k], Member.going)) && stay < k/2+1 {
			return fmt.Sprintf("too many servers that may coordinate were told to end: %d of %d would stay", max(stay, 0), k)
		}
	}
	return ""
}

// Farewell is a coordinator's wait for the members of a job that is over: they have lost the previous coordinator, and
// get the result when they connect.
type Farewell struct {
	workers map[star.Worker]bool
	servers map[int]bool
	until   time.Time
	noticed bool
	grace   time.Duration
}

// NewFarewell waits for the members that took part in the job, as long as it takes to notice that a coordinator is lost
// (unreachable), and grace longer. shards has the servers with shards.
func NewFarewell(now time.Time, workers []star.Worker, shards map[int]int, unreachable, grace time.Duration) Farewell {
	f := Farewell{workers: map[star.Worker]bool{}, servers: map[int]bool{}, until: now.Add(unreachable + grace), grace: grace}
	for _, w := range workers {
		f.workers[w] = true
	}
	for s := range shards {
		f.servers[s] = true
	}
	return f
}

// Came records that a worker or a server has connected.
func (f *Farewell) Came(server bool, rank int) {
	if server {
		delete(f.servers, rank)
	} else {
		delete(f.workers, star.Worker(rank))
	}
}

// Noticed records that a server has connected that may coordinate: it has noticed the loss of the coordinator, and so
// have the others. After the first one the wait lasts only for the grace.
func (f *Farewell) Noticed(now time.Time) {
	if !f.noticed {
		f.noticed, f.until = true, now.Add(f.grace)
	}
}

// Until is when the wait ends at the latest.
func (f *Farewell) Until() time.Time { return f.until }

// Over reports whether the wait has ended: it waits for no process, or it is Until.
func (f *Farewell) Over(now time.Time) bool {
	return len(f.workers)+len(f.servers) == 0 || !now.Before(f.until)
}
