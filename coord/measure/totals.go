package measure

import (
	"math"
	"time"

	"star"
	"star/runlog"
)

// Totals are sums over the run. Samples are positions of the stream that were applied.
type Totals struct {
	Updates  int64
	Switches int // of the mode

	bytes    float64 // that workers have exchanged, both directions together
	losses   Window
	start    time.Time
	end      time.Time
	from, to int64 // samples
}

// Begin notes when the training begins, and after how many samples.
func (t *Totals) Begin(now time.Time, samples int64) { t.start, t.from = now, samples }

// Stop notes when the training ends, and after how many samples.
func (t *Totals) Stop(now time.Time, samples int64) { t.end, t.to = now, samples }

// Observe takes in what a record says of losses and of bytes.
func (t *Totals) Observe(r *star.Record) {
	if !math.IsNaN(r.Loss) {
		t.losses.Add(r.Loss)
	}
	t.bytes += r.NetIn + r.NetOut
}

// Exchanged counts bytes that no record has: buffers, which workers exchange with the coordinator.
func (t *Totals) Exchanged(bytes int) { t.bytes += float64(bytes) }

// Loss is the mean of the last losses; 0 without any.
func (t *Totals) Loss() float64 { return t.losses.Mean() }

// Rate is samples per second of the training; used samples are applied now.
func (t *Totals) Rate(now time.Time, used int64) float64 {
	if !t.end.IsZero() {
		now = t.end
	}
	return rate(used-t.from, now.Sub(t.start))
}

// Result completes the result of a job that has trained. It ends now, with that many samples, where
// Stop was not called. Rates are over the training, without joining and the last evaluation.
// staleness counts gradients by theirs.
func (t *Totals) Result(r *runlog.Result, now time.Time, used, wasted int64, staleness map[int64]int64) {
	if t.end.IsZero() {
		t.Stop(now, used)
	}
	r.Updates, r.Samples, r.Wasted = t.Updates, used-t.from, wasted
	r.Wall = runlog.SecondsOf(t.end.Sub(t.start))
	r.SamplesPerS = rate(t.to-t.from, t.end.Sub(t.start))
	r.BytesSent = int64(t.bytes)
	r.Staleness.Histogram = staleness
	var sum int64
	for s, n := range staleness {
		r.Steps += n
		sum += s * n
		r.Staleness.Max = max(r.Staleness.Max, s)
	}
	if r.Steps > 0 {
		r.Staleness.Mean = float64(sum) / float64(r.Steps)
	}
	if !t.losses.Empty() {
		r.TrainLoss = runlog.Number(t.losses.Mean())
	}
}

// NoLoss says that no record had a loss.
func (t *Totals) NoLoss() bool { return t.losses.Empty() }

// rate is samples per second; 0 where no time has passed, because JSON has no NaN.
func rate(samples int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(samples) / d.Seconds()
}
