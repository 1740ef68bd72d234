package evaluate

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"star"
	"star/internal/dtype"
	"star/runlog"
	"star/transport/wire"
)

// Rounds is the evaluations of a job, one after the other. Each is spread over the workers: each takes a part of the
// test set. Workers of models with buffers (batch normalisation) first send theirs and get the average back. A round
// without a test only collects buffers, for a checkpoint.
//
// In an asynchronous mode workers evaluate different versions; the log line has the range.
//
// A worker gets its part with its next release (Mark), evaluates before it computes, and answers with sums over its
// part. The part of a worker that leaves meanwhile is missing: results have the number of their predictions.
type Rounds struct {
	model   Model
	number  int64 // of the last round
	step    int64 // samples between evaluations; 0: there is one at the end
	next    int64 // samples at which the next one begins; 0: none does
	final   bool  // the final one has begun
	buffers []float32
	round   round
}

// Model is the properties of the model that evaluations depend on.
type Model struct {
	Buffers int64 // bytes
	Layout  []dtype.Tensor
	Tests   bool // there is a test set
}

// Workers is the state of the workers of a job.
type Workers interface {
	// Live lists the workers that take part in the job.
	Live() []star.Worker

	// Idle reports whether a worker sends nothing before it is released.
	Idle(w star.Worker) bool

	// Parked reports whether a worker has no batch, and gets none any more.
	Parked(w star.Worker) bool
}

// round is one evaluation; the zero value means that there is no round.
type round struct {
	open     bool
	test     bool
	final    bool
	averaged bool // the average was sent
	mean     bufferMean
	parts    map[star.Worker]*part // of workers that have not left
}

// part is one worker's part of a round.
type part struct {
	from, to int64 // of the test set, in ten-thousandths
	told     bool  // it was released with the evaluation
	buffered bool  // it has sent its buffers
	answered bool
	result   wire.EvalResult
}

// whole is the whole test set in Release.From and To.
const whole = 10_000

// Begin is called when the training begins.
func (r *Rounds) Begin(m Model) { r.model = m }

// Every chooses the samples between two evaluations, and when the next one begins, where used samples are applied.
// Zero: there is one at the end only.
func (r *Rounds) Every(step, used int64) {
	r.step, r.next = step, nextMultiple(used, step)
}

// Due reports whether an evaluation begins when used samples are applied. Advance chooses the next time.
func (r *Rounds) Due(used int64) bool { return r.next > 0 && used >= r.next }

// Advance chooses when the evaluation after the present one begins.
func (r *Rounds) Advance(used int64) { r.next = nextMultiple(used, r.step) }

// nextMultiple is the first multiple of step above n; 0 where step is 0.
func nextMultiple(n, step int64) int64 {
	if step <= 0 {
		return 0
	}
	return (n/step + 1) * step
}

// Open reports whether a round is under way.
func (r *Rounds) Open() bool { return r.round.open }

// Final reports whether the final round has begun.
func (r *Rounds) Final() bool { return r.final }

// Number is that of the last round. The first has number 1.
func (r *Rounds) Number() int64 { return r.number }

// Buffers are those of the last average; nil: there was none.
func (r *Rounds) Buffers() []float32 { return r.buffers }

// Lacks reports whether a checkpoint lacks buffers: coming, they are still being collected; missing, the model has
// buffers, and there is no average.
func (r *Rounds) Lacks() (coming, missing bool) {
	some := r.model.Buffers > 0
	return some && !r.Collected(), some && r.buffers == nil
}

// Collected reports whether no buffers are waited for.
func (r *Rounds) Collected() bool { return !r.round.open || r.round.averaged }

// Start begins a round with these workers, by rank. Each takes an equal part of the test set, if there is a test; else
// the round is for the average of the buffers.
func (r *Rounds) Start(test, final bool, ws []star.Worker) {
	r.number++
	r.final = r.final || final
	parts := map[star.Worker]*part{}
	for i, w := range ws {
		parts[w] = &part{}
		if test {
			parts[w].from, parts[w].to = int64(i)*whole/int64(len(ws)), int64(i+1)*whole/int64(len(ws))
		}
	}
	r.round = round{open: true, test: test, final: final, parts: parts, mean: bufferMean{layout: r.model.Layout}}
}

// Tells reports whether the next release of a worker tells it to evaluate.
func (r *Rounds) Tells(w star.Worker) bool {
	p := r.round.parts[w]
	return p != nil && !p.told && !p.answered
}

// Mark adds a worker's part of the round, if it has one, to its release.
func (r *Rounds) Mark(m *wire.Release) {
	if !r.Tells(m.Worker) {
		return
	}
	p := r.round.parts[m.Worker]
	p.told = true
	if m.Action == wire.Continue {
		m.Action = wire.Evaluate
	}
	m.Eval, m.From, m.To = r.number, p.from, p.to
}

// awaited is the part of a worker that has yet to send the result of a round; nil: none is expected of it.
func (r *Rounds) awaited(w star.Worker, eval int64) *part {
	if p := r.round.parts[w]; p != nil && !p.answered && eval == r.number {
		return p
	}
	return nil
}

// Gather adds a worker's buffers. The last worker's send the average to all; a worker that is late gets that of the
// others. Buffers of another round are ignored. An error: their size is not that of the model's.
func (r *Rounds) Gather(m wire.Buffers, data []byte, ws Workers) ([]Effect, error) {
	p := r.awaited(m.Worker, m.Eval)
	if p == nil || p.buffered {
		return nil, nil
	}
	if len(data) == 0 || int64(len(data)) != r.model.Buffers {
		return nil, fmt.Errorf("buffers of %d bytes, expected %d", len(data), r.model.Buffers)
	}
	p.buffered = true
	if r.round.averaged {
		return []Effect{Average{m.Worker, r.number, r.buffers}}, nil
	}
	r.round.mean.add(m.Worker, data)
	return r.Average(ws), nil
}

// Average sends the mean of all buffers to the workers that have sent theirs, once no other worker can send them.
// Checkpoints have it, too.
func (r *Rounds) Average(ws Workers) (out []Effect) {
	d := &r.round
	if d.mean.n == 0 || d.averaged || r.unsent() && !r.stalled(ws) {
		return nil
	}
	r.buffers, d.averaged = d.mean.result(), true
	if t := d.mean.omitted; t != "" {
		out = append(out, Omitted{t})
	}
	d.mean = bufferMean{}
	for _, w := range slices.Sorted(maps.Keys(d.parts)) {
		if d.parts[w].buffered {
			out = append(out, Average{w, r.number, r.buffers})
		}
	}
	return append(out, Collected{})
}

// unsent reports whether buffers of a worker are missing.
func (r *Rounds) unsent() bool {
	for _, p := range r.round.parts {
		if !p.buffered {
			return true
		}
	}
	return false
}

// stalled reports whether no worker can send buffers any more before there is an average: a worker that has not sent
// them waits for an update that needs the others' gradients, and they wait for the average. It happens where an
// update takes fewer gradients than there are workers (x=2 of three). In the final round each worker is asked, whatever
// it waits for.
func (r *Rounds) stalled(ws Workers) bool {
	return !r.round.final && !slices.ContainsFunc(ws.Live(), func(w star.Worker) bool {
		p := r.round.parts[w]
		return (p == nil || !p.buffered) && !ws.Idle(w)
	})
}

// Result takes the result of one worker. A result of another round, or of a worker that was not asked, is ignored. An
// error: it comes before the buffers, and others cannot evaluate without the average.
func (r *Rounds) Result(e wire.EvalResult) ([]Effect, error) {
	p := r.awaited(e.Worker, e.Eval)
	if p == nil {
		return nil, nil
	}
	if r.model.Buffers > 0 && !p.buffered {
		return nil, fmt.Errorf("the result of evaluation %d before the buffers, for which others wait", r.number)
	}
	p.answered, p.result = true, e
	return append([]Effect{Progress{}}, r.End()...), nil
}

// Leave continues without a worker that has left the job.
func (r *Rounds) Leave(w star.Worker, ws Workers) []Effect {
	p := r.round.parts[w]
	if p == nil || p.answered {
		return nil
	}
	delete(r.round.parts, w)
	var out []Effect
	if !p.buffered {
		out = r.Average(ws)
	}
	return append(out, r.End()...)
}

// Parked continues without workers that have no batch any more and were not asked: the final round asks them.
func (r *Rounds) Parked(ws Workers) []Effect {
	if r.round.final {
		return nil
	}
	return r.without(ws, func(w star.Worker, p *part) bool { return !p.told && ws.Parked(w) })
}

// Curtail continues without the workers that have not sent their buffers.
func (r *Rounds) Curtail(ws Workers) []Effect {
	return r.without(ws, func(_ star.Worker, p *part) bool { return !p.buffered })
}

// without continues without some of the workers.
func (r *Rounds) without(ws Workers, leaves func(star.Worker, *part) bool) (out []Effect) {
	if len(r.round.parts) == 0 {
		return nil
	}
	for _, w := range slices.Sorted(maps.Keys(r.round.parts)) {
		if p := r.round.parts[w]; p != nil && leaves(w, p) {
			out = append(out, r.Leave(w, ws)...)
		}
	}
	return out
}

// Missing lists the workers that have not sent their results, by rank.
func (r *Rounds) Missing() (ws []int) {
	for w, p := range r.round.parts {
		if !p.answered {
			ws = append(ws, int(w))
		}
	}
	slices.Sort(ws)
	return ws
}

// Drop abandons the present round.
func (r *Rounds) Drop() { r.round = round{} }

// Restart abandons a round that its workers have abandoned. A test begins again when it may. The final round stays.
func (r *Rounds) Restart(used int64) {
	if d := r.round; d.open && !d.final {
		if d.test {
			r.next = max(used, 1)
		}
		r.Drop()
	}
}

// End ends a round when all results have arrived. Loss and accuracy are means over predictions, not over parts. A
// coordinator calls it only for a round that may have no workers.
func (r *Rounds) End() []Effect {
	d := r.round
	if !d.open {
		return nil
	}
	for _, p := range d.parts {
		if !p.answered {
			return nil
		}
	}
	r.Drop()
	out := exclude(d.parts)
	line := runlog.Eval{Eval: r.number, From: -1, To: -1, Final: d.final}
	sum, correct := 0., int64(0)
	for _, w := range slices.Sorted(maps.Keys(d.parts)) {
		e := d.parts[w].result
		if line.From < 0 || e.Version < line.From {
			line.From = e.Version
		}
		line.To = max(line.To, e.Version)
		line.Count += e.Count
		sum += e.LossSum
		correct += e.Correct
	}
	line.Loss = runlog.Number(sum / float64(line.Count))
	line.Accuracy = runlog.Number(float64(correct) / float64(line.Count))
	return append(out, Ended{line, d.test && line.Count > 0, d.final && d.test && line.Count == 0 && r.model.Tests})
}

// strange is the ratio of the loss of a part of the test set to that of most others from which on only a broken worker
// explains it.
const strange = 1e6

// exclude removes the parts of an evaluation that are incompatible with most others, and drops their workers. More than
// half of the parts need a finite loss: otherwise it is unknown which are right. Of two parts none is removed, because
// the larger loss is the median.
func exclude(parts map[star.Worker]*part) (out []Effect) {
	mean := func(e wire.EvalResult) float64 { return math.Abs(e.LossSum) / float64(max(e.Count, 1)) }
	var losses []float64
	for _, p := range parts {
		if l := mean(p.result); l-l == 0 {
			losses = append(losses, l)
		}
	}
	slices.Sort(losses)
	if 2*len(losses) <= len(parts) {
		return nil
	}
	median := losses[len(losses)/2]
	for _, w := range slices.Sorted(maps.Keys(parts)) {
		l := mean(parts[w].result)
		if l <= strange*(1+median) {
			continue
		}
		delete(parts, w)
		err := fmt.Errorf("its part of the test set has a loss of %g, but the median of all is %.3g", l, median)
		out = append(out, Exclude{w, err})
	}
	return out
}
