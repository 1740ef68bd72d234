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

// retirement is the state of a worker after its model has stopped computing (train.Gone). It has told
// the coordinator, and stays until the coordinator releases it: the last worker evaluates, and sends
// what the last checkpoint needs.
//
// The end of a model before the end of the job:
//
//	computes ── Grad or Eval returns train.Gone, or Config.Gone closes ──▶ retired, Leave is sent
//	retired  ── Releases are answered without a gradient ──▶ the coordinator sends Stop
type retirement struct {
	mu sync.Mutex
	// why is nil while the model computes.
	why  train.Gone
	said bool
}

// retires reports whether err means that the model has stopped computing; then it tells the
// coordinator.
func (w *worker) retires(err error) bool {
	var gone train.Gone
	if !errors.As(err, &gone) {
		return false
	}
	w.retire(w.member, gone)
	return true
}

// retire tells the coordinator, once, that the model has stopped computing. It may be called from
// any goroutine.
func (w *worker) retire(m *session.Member, why train.Gone) {
	r := &w.retirement
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil {
		if r.why = why; why.Gone() == 0 {
			w.log.Info("program finished; leaving the job")
		}
	}
	if !r.said {
		r.said = m.Leave(r.why.Gone(), transport.OneLine(r.why.Error())) == nil
	}
}

// retired returns why the model has stopped computing; nil: it has not.
func (w *worker) retired() train.Gone {
	w.retirement.mu.Lock()
	defer w.retirement.mu.Unlock()
	return w.retirement.why
}

// attend receives, concurrently with the training, the messages of a model in another process, until
// over is closed.
func (w *worker) attend(c *Config, m *session.Member, over <-chan struct{}) {
	for {
		select {
		case why := <-c.Halts:
			session.Say(m, wire.Halt{Worker: star.Worker(w.rank), Reason: why}, nil) // a lost coordinator is noticed elsewhere
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
