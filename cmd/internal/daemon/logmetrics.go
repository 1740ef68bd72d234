package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"star"
	"star/internal/build"
	"star/observe/web"
)

// Descriptions of metrics derived from the run log; docs/monitoring.md lists them.
var logDescs = struct {
	job, mode, lastUpdate, updates, interval, slowdown, slow, jobSlow, slowdowns, episodes, hangs, missing, lost, gain, dropped, saved, failures, copies, wanted, term *prometheus.Desc
}{
	job:        prometheus.NewDesc("star_job_info", "1; what is trained, and how.", []string{"job", "model", "arch"}, nil),
	mode:       prometheus.NewDesc("star_mode_info", "1; the mode in force.", []string{"mode"}, nil),
	lastUpdate: prometheus.NewDesc("star_last_update_timestamp_seconds", "Time of the last update, by the clock of the coordinator's host.", nil, nil),
	updates:    prometheus.NewDesc("star_updates_total", "Updates by this process as the coordinator.", nil, nil),
	interval:   prometheus.NewDesc("star_update_interval_seconds", "Time between two updates.", nil, nil),
	slowdown:   prometheus.NewDesc("star_worker_slowdown_ratio", "The worker's own time for an iteration over the median of all workers; for a slow one that of its verdict.", workerLabel, nil),
	slow:       prometheus.NewDesc("star_worker_slow", "1 while the worker is slow, by cause.", []string{"worker", "cause"}, nil),
	jobSlow:    prometheus.NewDesc("star_job_slowdown_ratio", "Time of a step of all workers together over that of the job's own past, while they are slower; else 1.", nil, nil),
	slowdowns:  prometheus.NewDesc("star_job_slowdowns_total", "Times that all workers together became slower than before, by the first cause found.", []string{"cause"}, nil),
	episodes:   prometheus.NewDesc("star_straggler_episodes_total", "Times that the worker became slow, by the first cause found.", []string{"worker", "cause"}, nil),
	hangs:      prometheus.NewDesc("star_hangs_total", "Times that workers waited for one that did nothing to end the wait.", nil, nil),
	missing:    prometheus.NewDesc("star_worker_missing", "1 while the others wait for the worker in a hang, by what it does.", []string{"worker", "why"}, nil),
	lost:       prometheus.NewDesc("star_worker_lost_seconds_total", "Seconds that the other workers waited while this one was the slowest.", workerLabel, nil),
	gain:       prometheus.NewDesc("star_mode_gain_ratio", "Share of the time for the same progress that the last tried change of mode was predicted to save, and saved.", []string{"kind"}, nil),
	dropped:    prometheus.NewDesc("star_gradients_dropped_total", "Dropped gradients: late, or poison.", []string{"reason"}, nil),
	saved:      prometheus.NewDesc("star_checkpoint_last_success_timestamp_seconds", "Time of the last checkpoint, by the clock of the coordinator's host.", nil, nil),
	failures:   prometheus.NewDesc("star_checkpoint_failures_total", "Checkpoints that could not be written.", nil, nil),
	copies:     prometheus.NewDesc("star_shard_copies", "Copies of the shard, including the primary; absent until one is lost or made.", []string{"shard"}, nil),
	wanted:     prometheus.NewDesc("star_shard_copies_wanted", "Copies that the shard should have.", []string{"shard"}, nil),
	term:       prometheus.NewDesc("star_coordinator_term", "Increases with each takeover; 0 with a single coordinator.", nil, nil),
}

// buildInfo is the metric with the version of this program.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "star_build_info", Help: "1; the version of the program.", ConstLabels: prometheus.Labels{"version": build.Built().Version}})
	g.Set(1)
	return g
}

// Describe announces no metric, so that workers may join and leave.
func (f *follower) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f *follower) Collect(out chan<- prometheus.Metric) {
	s := f.now()
	if s == nil {
		return
	}
	t := s.live.Totals()
	d := &logDescs
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(d.job, 1, t.Job, t.Model, t.Arch)
	if t.Mode != "" {
		gauge(d.mode, 1, t.Mode)
	}
	count(d.updates, float64(t.Updates))
	if !t.LastUpdate.IsZero() {
		gauge(d.lastUpdate, seconds(t.LastUpdate.UnixNano()))
	}
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, b := range web.Bounds {
		sum += t.Intervals[i]
		buckets[b.Seconds()] = sum
	}
	out <- prometheus.MustNewConstHistogram(d.interval, sum+t.Intervals[len(web.Bounds)], t.Between.Seconds(), buckets)
	rank := func(w star.Worker) string { return strconv.Itoa(int(w)) }
	for w, v := range t.Slowdown {
		gauge(d.slowdown, v, rank(w))
	}
	for w, cause := range t.Slow {
		gauge(d.slow, 1, rank(w), cause)
	}
	gauge(d.jobSlow, t.JobSlow)
	for cause, n := range t.Slowdowns {
		count(d.slowdowns, float64(n), cause)
	}
	for e, n := range t.Episodes {
		count(d.episodes, float64(n), rank(e.Worker), e.Cause)
		if _, slow := t.Slow[e.Worker]; !slow { // so that an alert ends
			gauge(d.slow, 0, rank(e.Worker), e.Cause)
		}
	}
	count(d.hangs, float64(t.Hangs))
	for w, why := range t.Missing {
		gauge(d.missing, 1, rank(w), why)
	}
	for w, v := range t.Lost {
		count(d.lost, v, rank(w))
	}
	for kind, v := range t.Gain {
		if !v.IsZero() {
			gauge(d.gain, float64(v), kind)
		}
	}
	for _, reason := range []string{"late", "poison"} {
		count(d.dropped, float64(t.Dropped[reason]), reason)
	}
	if !t.LastSave.IsZero() {
		gauge(d.saved, seconds(t.LastSave.UnixNano()))
	}
	count(d.failures, float64(t.Failures))
	for shard, c := range t.Copies {
		gauge(d.copies, float64(c.Are), strconv.Itoa(shard))
		gauge(d.wanted, float64(c.Of), strconv.Itoa(shard))
	}
	gauge(d.term, float64(t.Term))
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
