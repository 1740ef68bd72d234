package launch

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"star/internal/settings"
	"star/sched/market"
	"star/sched/schedsim"
)

// spot takes workers' machines away during the training, according to --revoke, and starts replacements. Lives count
// from the start of the training.
type spot struct {
	*market.Revocations

	mu                sync.Mutex
	began             time.Time     // start of the training, in the first life of the job
	machines          map[int]int   // number of machines that each worker has had
	revoked, replaced int           // numbers of machines
	up                time.Duration // total uptime of all machines
}

// ReadRevocations parses a value of --revoke and reads its trace; invalid makes the error of a setting.
func ReadRevocations(text string, invalid func(string, error) error) (*market.Revocations, error) {
	r, err := market.ParseRevocations(text)
	if err != nil {
		return nil, invalid("revoke", err)
	}
	if r.File != "" {
		err = schedsim.ReadInput(r.File, func(f io.Reader) (err error) { r.Trace, err = market.ReadTrace(f); return err })
	}
	return r, err
}

// newSpot returns nil for a job without --revoke.
func newSpot(job *settings.Job) (*spot, error) {
	if job.Revoke == "" {
		return nil, nil
	}
	rv, err := ReadRevocations(job.Revoke, job.Invalid)
	if err != nil {
		return nil, err
	}
	if rv.File != "" {
		ranks := max(job.Workers, job.MaxWorkers)
		if i := slices.IndexFunc(rv.Trace, func(l market.Revocation) bool { return l.Worker >= ranks }); i >= 0 {
			return nil, job.Invalid("revoke", fmt.Errorf("%s takes worker %d away, and the ranks are 0 to %d", rv.File, rv.Trace[i].Worker, ranks-1))
		}
	}
	return &spot{Revocations: rv, machines: map[int]int{}}, nil
}

// since returns the time since the training began, which the first call records.
func (s *spot) since(t time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	return max(0, t.Sub(s.began))
}

// ended counts a process that has ended.
func (s *spot) ended(e exit) {
	if s == nil || e.role != "worker" || e.begun.IsZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up += time.Since(e.begun)
	if e.told.Load() && e.code() != 0 {
		s.revoked++
	}
}

// String summarizes the machines.
func (s *spot) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("machines of workers: %d taken away, %d started in their places, up for %.1f s together (--revoke %s)", s.revoked, s.replaced, s.up.Seconds(), s.Text)
}

// mortal takes a worker's machine away at the end of its life: the worker is asked to leave, and killed later.
func (r *Launch) mortal(c *child) {
	if r.spot == nil || c.role != "worker" {
		return
	}
	s, over := r.spot, r.over
	s.mu.Lock()
	machine := s.machines[c.rank]
	s.machines[c.rank]++
	s.mu.Unlock()
	after := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-over:
			return false
		}
	}
	go func() {
		for !r.training() {
			if !after(askEvery) {
				return
			}
		}
		begins := s.since(c.begun)
		if !after(s.Life(c.rank, machine, begins) - max(0, s.since(time.Now())-begins)) {
			return
		}
		c.told.Store(true)
		r.Screen.Say("run", fmt.Sprintf("%s must leave: its machine is taken away in %v (--revoke)", c.name, s.Notice))
		signal([]*child{c}, syscall.SIGTERM)
		if after(s.Notice) {
			signal([]*child{c}, syscall.SIGKILL)
		}
	}()
}

// replace starts another machine for a worker that lost its own. It returns false if the machine is not replaced.
func (r *Launch) replace(e exit, children []*child) bool {
	s := r.spot
	left := s.since(time.Now())
	next, ok := s.Next(e.rank, s.since(e.begun), left)
	if !ok {
		r.Screen.Say("run", e.name+" has left with its machine, and the others go on")
		return false
	}
	r.Screen.Say("run", fmt.Sprintf("%s has left with its machine; another one is started in %v", e.name, (next-left).Round(time.Millisecond)))
	c := r.child(e.role, e.rank)
	children[slices.Index(children, e.child)] = c
	again, ended, over := r.again, r.ended, r.over
	r.pipes.Go(func() {
		select {
		case <-time.After(next - left):
			s.mu.Lock()
			s.replaced++
			s.mu.Unlock()
			again <- c
		case <-over: // the job is over
			ended <- exit{c, nil}
		}
	})
	return true
}
