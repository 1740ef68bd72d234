package worker

import (
	"errors"
	"sync"

	"star"
	"star/coord/session"
	"star/train"
	"star/transport"
	"star/transport/wire"
)

// retirement is that of a worker whose model computes nothing more (train.Gone). It has told the
// coordinator, and stays until that lets it go: the last one evaluates, and sends what the last
// checkpoint needs.
type retirement struct {
	mu   sync.Mutex
	why  train.Gone // nil: it computes
	said bool
}

// retires says whether err is that the model computes nothing more, of which the coordinator is told.
func (w *worker) retires(err error) bool {
	var gone train.Gone
	if !errors.As(err, &gone) {
		return false
	}
	w.retire(w.member, gone)
	return true
}

// retire tells the coordinator, once, that the model computes nothing more. It may be called from another
// goroutine than the worker's.
func (w *worker) retire(m *session.Member, why train.Gone) {
	r := &w.retirement
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil {
		if r.why = why; why.Gone() == 0 {
			w.log.Info("the program has nothing more to compute, and leaves the job")
		}
	}
	if !r.said {
		r.said = m.Leave(r.why.Gone(), transport.OneLine(r.why.Error())) == nil
	}
}

// retired is why the model computes nothing more; nil: it does.
func (w *worker) retired() train.Gone {
	w.retirement.mu.Lock()
	defer w.retirement.mu.Unlock()
	return w.retirement.why
}

// attend hears, beside the training, of a model in another process, until over is closed.
func (w *worker) attend(c *Config, m *session.Member, over <-chan struct{}) {
	for {
		select {
		case why := <-c.Halts:
			session.Say(m, wire.Halt{Worker: star.Worker(w.rank), Reason: why}, nil) // a coordinator that is lost is noticed by others
		case <-c.Gone:
			var gone train.Gone
			if errors.As(c.Why(), &gone) {
				w.retire(m, gone)
			}
			return
		case <-over:
			return
		}
	}
}
