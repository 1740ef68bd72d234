// Package ending decides how a job ends that is told to end, or whose members leave. It is pure: no I/O, no clock, no
// goroutine. The coordinator tells an [End] of each event, gives it what the job is like now ([Facts], [Job]), and does
// what it returns.
//
// A job that is told to end is saved first, if that takes no longer than the grace:
//
//	           Tell           Ask              Freeze            Save           Saved
//	working ─────────► told ──────► collecting ──────► frozen ──────────► saving ─────► over
//	   │                 │                                                               ▲
//	   │                 └─ the grace is over, it is saved already, or cannot be saved ──┘
//	   │ Wind                      Abandon
//	   └────────► without workers ─────────► still, until it is evaluated and saved
//
// From frozen on no update is made. From still on no gradient counts any more.
//
// A member that is told to end says so and works on, until it is let go. So a job all of whose processes are told at
// once, as schedulers do, is whole when it is saved. Muster lets members go that have waited, or ends the job if it
// cannot go on without those that leave.
package ending

import (
	"fmt"
	"slices"
	"time"

	"star"
)

const (
	// MusterTime is how long a member that was told to end is kept, because others may be told as well: schedulers tell
	// the processes of a job one after the other, and those of other hosts a little later.
	MusterTime = 2 * time.Second

	// YieldTime is that for the process that coordinates, if others may take over. It is shorter, because those that are
	// told next have the job saved when too few are left.
	YieldTime = 200 * time.Millisecond

	// Signalled is the exit code from which on a process was ended by a signal.
	Signalled = 128
)

// End is the end of a job. The zero value is a job that goes on.
type End struct {
	cause     error // nil: it was not told to end
	until     time.Time
	grace     time.Duration
	asked     time.Time // for the buffers of the workers
	collected bool
	frozen    bool // the version that is saved is the last one
	still     bool
	over      bool // the checkpoint is written, or has failed, or none can be

	wound bool // no worker is left
	with  error

	yields  error // why this process is to end, and others may coordinate
	yielded time.Time
}

// Facts is what the stages of an end depend on.
type Facts struct {
	Saving    bool // it is being saved, or will be
	Unsettled bool // where the parameters are, and of which version, is not known yet
	Survives  bool // the parameters outlive the workers
	Saved     bool // the present version is saved
	Buffers   bool // the model has buffers, which workers have
	Collected bool // workers have sent theirs
	Midway    bool // updates of the last batches are still to be made
}

// Step is what has to be done now.
type Step uint8

const (
	Wait    Step = iota
	Ask          // ask workers for their buffers
	Curtail      // go on without the buffers of workers that have not sent them, then ask Next again
	Freeze       // make no update any more, tell Froze, then ask Next again
	Save         // write the checkpoint
	Late         // the grace is over: the job ends without a checkpoint of its last updates
	Over         // the job ends with Cause
)

// Tell tells the job to end with cause, or gives its end another one; then it reports false. saves says whether it can be
// saved.
func (e *End) Tell(now time.Time, cause error, grace time.Duration, saves bool) bool {
	if e.cause != nil {
		e.cause = cause
		return false
	}
	e.cause, e.grace, e.until, e.over = cause, grace, now.Add(grace), !saves || grace <= 0
	return true
}

// Cause is what the job was told to end with; nil: it was not.
func (e *End) Cause() error { return e.cause }

// Told says whether the job was told to end and may still be saved.
func (e *End) Told() bool { return e.cause != nil && !e.over }

// Frozen says whether no update is made any more. Still says whether no gradient counts any more.
func (e *End) Frozen() bool { return e.frozen }
func (e *End) Still() bool  { return e.still }

// Froze takes that no update is made any more, and whether gradients count.
func (e *End) Froze(still bool) { e.frozen, e.still = true, still }

// Saved takes that the checkpoint is written, or has failed.
func (e *End) Saved() { e.over = true }

// Next is the next step. It is asked whenever something has come that the end waited for, and as time passes.
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

// Wind begins the end of a job without workers, with an error or nil. Wound says whether it has begun, and With is the
// error.
func (e *End) Wind(with error) { e.wound, e.with = true, with }
func (e *End) Wound() bool     { return e.wound }
func (e *End) With() error     { return e.with }

// Abandon takes that what the last worker had in hand is given up.
func (e *End) Abandon() { e.still = true }

// Member is a worker or a server, for Muster.
type Member struct {
	Here    bool
	Leaving time.Time // when it was told to end; zero: it was not
	Why     string
	Holds   bool // a worker of a ring: it has the parameters. A server: it has shards
	InRing  bool
	Coming  bool // a server that has not come, and may still do
}

// Stays says whether a member is there and was not told to end.
func (m Member) Stays() bool { return m.Here && m.Leaving.IsZero() }

func (m Member) going() bool { return m.Here && !m.Leaving.IsZero() }

// Job is what Muster must know of a job.
type Job struct {
	Sharded       bool
	Settled       bool // the engine has nothing to find out
	StopOnFailure bool
	AtOnce        bool // members that leave are not kept
	Coordinators  int  // servers of the lowest ranks that may coordinate
	MinWorkers    int  // workers that the training needs; 0: it does not wait for others
	Grace         time.Duration
	Workers       []Member
	Servers       []Member
	Copies        Copies
}

// Copies are the copies of shards.
type Copies interface {
	On() bool
	// Without returns a shard all of whose holders are gone or leave, and false if each shard has a holder.
	Without(going func(server int) bool) (shard int, without bool)
}

// Yield takes that this process is to end with cause, and that others may coordinate.
func (e *End) Yield(now time.Time, cause error) { e.yields, e.yielded = cause, now }

// Muster is one thing that follows from members that leave: [Stop], [Release] or [Hand]; nil: nothing. It is asked again
// until nothing follows.
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
	// Stop ends the job, which cannot go on. Cause is that of this process, if it is to end as well.
	Stop struct {
		Why   string
		Cause error
	}
	// Release lets a member go.
	Release struct {
		Server bool
		Rank   int
	}
	// Hand hands the job over: others can go on with it.
	Hand struct{}
)

// retains says whether a worker of a ring that others may coordinate stays though it was told to end: no worker that
// stays has the parameters yet, and of those that leave it is the one that was told last. The others are let go, so that
// workers can come in their places and get the parameters from this one.
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

// deserted is why the job cannot go on without the members that leave; empty: it can.
//
// It cannot without any worker (unless it waits for others), without a server that has shards of which no other has a
// copy, and without more than half of the servers that may coordinate.
func (e *End) deserted(now time.Time, j *Job) string {
	var why string
	var last time.Time // when a worker was told
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
	case !j.Sharded && j.Coordinators > 0: // one is kept until another worker has come, or there is just the time to save
		if now.Sub(last) >= j.Grace/2 {
			return why
		}
	case j.MinWorkers == 0 || !j.Sharded:
		return why
	}
	stay := 0 // of the servers that may coordinate
	for rank, m := range j.Servers {
		switch {
		case rank < j.Coordinators && (m.Stays() || m.Coming):
			stay++
		case rank >= j.Coordinators && m.going() && m.Holds && !j.Copies.On():
			return fmt.Sprintf("server %d was told to end, which has shards: %s", rank, m.Why)
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
			return fmt.Sprintf("too many of those that may coordinate were told to end: %d of %d would stay", max(stay, 0), k)
		}
	}
	return ""
}

// Farewell is the wait of a coordinator for the members of a job that is over: they have lost the coordinator before, and
// are told how the job has ended when they come.
type Farewell struct {
	workers map[star.Worker]bool
	servers map[int]bool
	until   time.Time
	noticed bool
	grace   time.Duration
}

// NewFarewell waits for those that had a part in the job, as long as it takes to notice that a coordinator is lost
// (unreachable), and grace longer.
func NewFarewell(now time.Time, workers []star.Worker, seats map[int]int, unreachable, grace time.Duration) Farewell {
	f := Farewell{workers: map[star.Worker]bool{}, servers: map[int]bool{}, until: now.Add(unreachable + grace), grace: grace}
	for _, w := range workers {
		f.workers[w] = true
	}
	for s := range seats {
		f.servers[s] = true
	}
	return f
}

// Came takes that a worker or a server has come.
func (f *Farewell) Came(server bool, rank int) {
	if server {
		delete(f.servers, rank)
	} else {
		delete(f.workers, star.Worker(rank))
	}
}

// Noticed takes that a server has come that may coordinate: it has noticed that the coordinator is lost, and so have the
// others. From the first one on only the grace is waited for.
func (f *Farewell) Noticed(now time.Time) {
	if !f.noticed {
		f.noticed, f.until = true, now.Add(f.grace)
	}
}

// Until is when the wait ends. Over says whether it has ended.
func (f *Farewell) Until() time.Time { return f.until }

func (f *Farewell) Over(now time.Time) bool {
	return len(f.workers)+len(f.servers) == 0 || !now.Before(f.until)
}
