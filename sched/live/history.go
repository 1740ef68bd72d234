package live

import (
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// Stay is a period in which a worker occupies a place of a host.
type Stay struct {
	Job      string
	Host     string
	Place    int
	From, To float64 // s; To is +Inf while it lasts

	member int
}

// History records which worker had which place when, and the decisions: the newest of both, and for each job how many
// places it had when.
type History struct {
	Stays   []Stay  // in order of From
	Decided []Event // in order

	taken map[string][]bool       // occupied places, by host
	steps map[string][]sched.Step // places over time, by job
}

var never = math.Inf(1)

// Limits of a History.
const (
	mostStays   = 4000
	mostDecided = 200
	mostPlaces  = 1 << 20 // per host
)

// NewHistory returns the history of an empty queue.
func NewHistory() *History {
	return &History{taken: map[string][]bool{}, steps: map[string][]sched.Step{}}
}

// Steps returns how many places a job had, and when.
func (h *History) Steps(job string) []sched.Step { return h.steps[job] }

// Place returns a worker's place on its host, or -1 if it has none.
func (h *History) Place(job string, member int) int {
	if s := h.there(job, member); s != nil {
		return s.Place
	}
	return -1
}

func (h *History) there(job string, member int) *Stay {
	for i := len(h.Stays) - 1; i >= 0; i-- {
		if s := &h.Stays[i]; s.Job == job && s.member == member && s.To == never {
			return s
		}
	}
	return nil
}

// Add records an applied event.
func (h *History) Add(e Event) {
	switch e.Kind {
	case KindArchive:
		for _, job := range e.Jobs {
			delete(h.steps, job)
		}
	case KindAdd:
		place := slices.Index(h.taken[e.Host], false)
		if place < 0 {
			place = len(h.taken[e.Host])
			h.taken[e.Host] = append(h.taken[e.Host], false)
		}
		h.taken[e.Host][place] = true
		h.Stays = append(h.Stays, Stay{e.Job, e.Host, place, e.At, never, e.Member})
		h.step(e, 1)
		if len(h.Stays) > mostStays+mostStays/4 { // current stays are kept
			over := len(h.Stays) - mostStays
			h.Stays = slices.DeleteFunc(h.Stays, func(s Stay) bool {
				old := over > 0 && s.To < never
				if old {
					over--
				}
				return old
			})
		}
	case KindGone:
		if s := h.there(e.Job, e.Member); s != nil {
			s.To = e.At
			h.taken[s.Host][s.Place] = false
			h.step(e, -1)
		}
	}
	if e.Says() != "" {
		if h.Decided = append(h.Decided, e); len(h.Decided) > mostDecided {
			h.Decided = slices.Delete(h.Decided, 0, len(h.Decided)-mostDecided)
		}
	}
}

func (h *History) step(e Event, more float64) {
	steps := h.steps[e.Job]
	had := 0.
	if n := len(steps); n > 0 {
		if had = steps[n-1].GPUs; steps[n-1].At == e.At {
			steps = steps[:n-1]
		}
	}
	h.steps[e.Job] = append(steps, sched.Step{At: e.At, GPUs: had + more})
}

// Says describes an event for the job's owner; "" if the event is of no interest to one.
func (e Event) Says() string {
	text := ""
	switch e.Kind {
	case KindSubmit:
		text = fmt.Sprintf("submitted: %d samples", e.Spec.Samples)
	case KindDecide:
		return e.Why
	case KindDecline:
		text = "declined"
	case KindLeave:
		if e.Why == "" {
			return ""
		}
		text = fmt.Sprintf("worker %d is stopping", e.Member)
	case KindGone:
		if e.Why == "" {
			return ""
		}
		text = fmt.Sprintf("worker %d has ended", e.Member)
	case KindAdd:
		if e.Why == "" {
			return ""
		}
		text = fmt.Sprintf("worker %d on %s", e.Member, e.Host)
	case KindStop:
		if e.State == Waiting { // the decision was described before
			return ""
		}
		text = string(e.State)
	case KindEnded:
		if text = string(e.State); text == "" {
			text = "stopped"
		}
	case KindSlow:
		text = "host " + e.Host + " is avoided"
	case KindWell:
		text = "host " + e.Host + " is no longer avoided"
	default:
		return ""
	}
	if e.Why != "" && e.Why != text {
		text += ": " + e.Why
	}
	return text
}
