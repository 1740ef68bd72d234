package export

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"star"
	"star/runlog"
)

// Trace writes a log as a trace in the JSON format of Chrome's trace viewer, which Perfetto opens ("Trace Event
// Format", Google, 2016).
//
// A worker is a process with its rank as pid; its threads are load, compute, push, transit, wait and
// pull, and the job's events about it. The coordinator is one more process, with the modes, the
// versions of the parameters, and counters. An arrow goes from each push to the update that contains
// the gradient.
//
// Times are on the coordinator's clock, microseconds. The values of a record for the iteration before it (wait, pull,
// transit) are drawn there.
type Trace struct {
	w       io.Writer
	buf     []byte
	grads   gradients
	pushed  map[key]time.Duration         // end of the computation of gradients that no update has had
	ended   map[star.Worker]time.Duration // end of the last push
	named   map[int]bool
	slow    map[star.Worker]verdict
	version update
	mode    verdict
	flows   int64
	began   bool // the file
	some    bool // events are in it
	last    time.Duration
}

type key struct {
	worker star.Worker
	step   int64
}

type verdict struct {
	since time.Duration
	says  string
}

type update struct {
	at   time.Duration
	says string
}

// Threads of a process, in the order in which they are shown.
const (
	threadVerdict = iota
	threadLoad
	threadCompute
	threadPush
	threadTransit
	threadWait
	threadPull
	threadMode
	threadUpdate
)

var threads = [...]string{"verdict", "load", "compute", "push", "transit", "wait", "pull", "mode", "parameters"}

// coordinator is the pid of the coordinator: none that a worker can have.
const coordinator = star.MaxWorkers

// NewTrace writes to w.
func NewTrace(w io.Writer) *Trace {
	return &Trace{w: w, pushed: map[key]time.Duration{}, ended: map[star.Worker]time.Duration{}, named: map[int]bool{}, slow: map[star.Worker]verdict{}}
}

// Line implements Sink.
func (t *Trace) Line(l runlog.Line) error {
	t.last = max(t.last, l.T)
	if u, ok := t.grads.take(l); ok {
		t.update(u)
		return t.flush(flushAt)
	}
	switch e := l.Entry.(type) {
	case runlog.Train:
		t.mode = verdict{l.T, e.Plan}
		t.version = update{l.T, "version " + strconv.FormatInt(e.Version, 10)}
	case runlog.Record:
		t.record(&e.Record)
	case runlog.Verdict:
		t.verdict(l.T, e)
	case runlog.Hang:
		name := "hang begins"
		if e.Event == "over" {
			name = "hang is over"
			t.slice(coordinator, threadUpdate+1, e.Since.Duration(), l.T-e.Since.Duration(), "hang", e.Text)
		}
		for _, w := range e.Missing {
			t.instant(int(w), threadVerdict, l.T, "p", name, e.Text)
		}
	case runlog.Plan:
		t.slice(coordinator, threadMode, t.mode.since, l.T-t.mode.since, t.mode.says, "")
		t.mode = verdict{l.T, e.Plan}
		t.instant(coordinator, threadMode, l.T, "g", e.From+" → "+e.Plan, e.Why)
	case runlog.Gain:
		t.instant(coordinator, threadMode, l.T, "t", fmt.Sprintf("gain of %s: seen %.1f %%", e.Plan, 100*float64(e.Seen)), "")
	case runlog.Leave:
		t.instant(int(e.Worker), threadVerdict, l.T, "p", "leaves", e.Why)
		delete(t.ended, e.Worker)
	case runlog.Join:
		t.instant(int(e.Worker), threadVerdict, l.T, "p", "joins", e.Peer)
	case runlog.Eval:
		t.instant(coordinator, threadUpdate, l.T, "p", fmt.Sprintf("evaluated: accuracy %.2f %%", 100*float64(e.Accuracy)), "")
		t.counter("test loss", l.T, float64(e.Loss))
		t.counter("test accuracy", l.T, float64(e.Accuracy))
	case runlog.Checkpoint:
		t.slice(coordinator, threadUpdate+1, l.T-e.Took.Duration(), e.Took.Duration(), "checkpoint "+e.ID, e.Err)
	case runlog.Noise:
		t.counter("noise scale (samples)", l.T, float64(e.Scale))
	}
	return t.flush(flushAt)
}

func (t *Trace) record(r *star.Record) {
	w := int(r.Worker)
	step := "step " + strconv.FormatInt(r.Step, 10)
	began := r.At - r.Compute - r.Load
	if end, ok := t.ended[r.Worker]; ok { // of the iteration before
		t.slice(w, threadTransit, end, r.Transit, step, "")
		t.slice(w, threadWait, end, r.Wait, step, "")
	}
	t.slice(w, threadPull, began-r.Pull, r.Pull, step, "")
	t.slice(w, threadLoad, began, r.Load, step, "")
	t.slice(w, threadCompute, r.At-r.Compute, r.Compute, step, "")
	t.slice(w, threadPush, r.At, r.Push, step, "")
	t.ended[r.Worker] = r.At + r.Push
	t.pushed[key{r.Worker, r.Step}] = r.At
	delete(t.pushed, key{r.Worker, r.Step - mostWaiting})
}

func (t *Trace) update(u Update) {
	t.slice(coordinator, threadUpdate, t.version.at, u.At-t.version.at, t.version.says, "")
	t.version = update{u.At, "version " + strconv.FormatInt(u.Fire.Version, 10) + ", of " + ranks(u.Fire.Workers)}
	for i, w := range u.Fire.Workers {
		k := key{w, u.Steps[i]}
		if at, ok := t.pushed[k]; ok {
			delete(t.pushed, k)
			t.flows++
			t.flow("s", int(w), threadPush, at)
			t.flow("f", coordinator, threadUpdate, u.At)
		}
	}
	if u.applied > 0 && u.Took > 0 {
		t.counter("samples/s", u.At, float64(u.applied)/u.Took.Seconds())
	}
	t.counter("training loss", u.At, u.Loss)
}

func (t *Trace) verdict(at time.Duration, e runlog.Verdict) {
	if was, ok := t.slow[e.Worker]; ok {
		t.slice(int(e.Worker), threadVerdict, was.since, at-was.since, was.says, "")
		delete(t.slow, e.Worker)
	}
	if e.Event == "recovered" {
		return
	}
	says := fmt.Sprintf("%.1fx slow: %s", float64(e.Slowdown), e.Cause)
	t.slow[e.Worker] = verdict{at, says}
	why := ""
	for i, ev := range e.Evidence {
		if i > 0 {
			why += "; "
		}
		why += ev.Text
	}
	t.instant(int(e.Worker), threadVerdict, at, "p", says, why)
}

// Close implements Sink.
func (t *Trace) Close() error {
	for w, v := range t.slow {
		t.slice(int(w), threadVerdict, v.since, t.last-v.since, v.says, "")
	}
	if t.mode.says != "" {
		t.slice(coordinator, threadMode, t.mode.since, t.last-t.mode.since, t.mode.says, "")
		t.slice(coordinator, threadUpdate, t.version.at, t.last-t.version.at, t.version.says, "")
	}
	t.open()
	t.buf = append(t.buf, "\n]}\n"...)
	return t.flush(0)
}

// open begins the file.
func (t *Trace) open() {
	if !t.began {
		t.began = true
		t.buf = append(t.buf, `{"displayTimeUnit":"ms","traceEvents":[`...)
		t.event("M", coordinator, 0, -1)
		t.buf = append(t.buf, `,"name":"process_name","args":{"name":"coordinator"}}`...)
	}
}

// event begins an event. at below 0: it has no time.
func (t *Trace) event(ph string, pid, tid int, at time.Duration) {
	t.open()
	if t.some {
		t.buf = append(t.buf, ',')
	}
	t.some = true
	t.buf = append(append(append(t.buf, "\n{\"ph\":\""...), ph...), `","pid":`...)
	t.buf = strconv.AppendInt(t.buf, int64(pid), 10)
	t.buf = strconv.AppendInt(append(t.buf, `,"tid":`...), int64(tid), 10)
	if at >= 0 {
		t.buf = appendMicros(append(t.buf, `,"ts":`...), at)
	}
}

// appendMicros writes d in microseconds, to the nanosecond.
func appendMicros(b []byte, d time.Duration) []byte {
	return appendDecimal(b, int64(d), 3)
}

// thread names process and thread where they are new.
func (t *Trace) thread(pid, tid int) {
	id := pid*16 + tid
	if t.named[id] {
		return
	}
	t.named[id] = true
	if first := pid*16 + 15; pid != coordinator && !t.named[first] {
		t.named[first] = true
		t.event("M", pid, 0, -1)
		t.buf = append(strconv.AppendInt(append(t.buf, `,"name":"process_name","args":{"name":"worker `...), int64(pid), 10), `"}}`...)
	}
	name := "checkpoints"
	if tid < len(threads) {
		name = threads[tid]
	}
	t.event("M", pid, tid, -1)
	t.buf = append(append(append(t.buf, `,"name":"thread_name","args":{"name":"`...), name...), `"}}`...)
	t.event("M", pid, tid, -1)
	t.buf = append(strconv.AppendInt(append(t.buf, `,"name":"thread_sort_index","args":{"sort_index":`...), int64(tid), 10), `}}`...)
}

// text ends an event with its name and description.
func (t *Trace) text(name, says string) {
	t.buf = appendQuoted(append(t.buf, `,"name":`...), name)
	if says != "" {
		t.buf = append(appendQuoted(append(t.buf, `,"args":{"says":`...), says), '}')
	}
	t.buf = append(t.buf, '}')
}

// slice is something that took d. What took no time is not drawn.
func (t *Trace) slice(pid, tid int, from, d time.Duration, name, says string) {
	if d <= 0 {
		return
	}
	if from < 0 {
		from, d = 0, d+from
	}
	t.thread(pid, tid)
	t.event("X", pid, tid, from)
	t.buf = appendMicros(append(t.buf, `,"dur":`...), d)
	t.text(name, says)
}

// instant is something at a time, for a thread (t), process (p) or all (g).
func (t *Trace) instant(pid, tid int, at time.Duration, scope, name, says string) {
	t.thread(pid, tid)
	t.event("i", pid, tid, at)
	t.buf = append(append(append(t.buf, `,"s":"`...), scope...), '"')
	t.text(name, says)
}

// flow begins (s) or ends (f) an arrow, at a slice that is at that time on that thread.
func (t *Trace) flow(ph string, pid, tid int, at time.Duration) {
	t.event(ph, pid, tid, at)
	t.buf = strconv.AppendInt(append(t.buf, `,"cat":"gradient","bp":"e","id":`...), t.flows, 10)
	t.text("gradient", "")
}

func (t *Trace) counter(name string, at time.Duration, v float64) {
	if v-v != 0 { // not finite
		return
	}
	t.event("C", coordinator, 0, at)
	t.buf = appendQuoted(append(t.buf, `,"name":`...), name)
	t.buf = append(strconv.AppendFloat(append(t.buf, `,"args":{"value":`...), v, 'g', -1, 64), `}}`...)
}

// flush writes the buffer, if it has more than least bytes.
func (t *Trace) flush(least int) error {
	if len(t.buf) <= least {
		return nil
	}
	_, err := t.w.Write(t.buf)
	t.buf = t.buf[:0]
	return err
}
