package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"star/coord"
)

// board shows the state of a job to Prometheus and on /readyz. Only the process of rank 0 has a coordinator to ask; the
// others show the process alone.
type board struct {
	coordinator atomic.Pointer[coord.Coordinator]
	log         *follower // nil: the run log is not served here
}

// begin has c, which is about to coordinate the job, be asked; nil: this process does no more.
func (b *board) begin(c *coord.Coordinator) {
	b.coordinator.Store(c)
	b.log.coordinates(c)
}

var (
	workerLabel = []string{"worker"}
	descs       = struct {
		training, version, samples, limit, loss, testLoss, testAcc, rate, switches *prometheus.Desc
		efficiency, noise, noiseGrad, noiseVar                                     *prometheus.Desc
		step, iteration, compute, wait, workerRate, staleness, telemetry, up       *prometheus.Desc
		poison                                                                     *prometheus.Desc
	}{
		training:   prometheus.NewDesc("star_training", "1 while the job trains, 0 before and after.", nil, nil),
		version:    prometheus.NewDesc("star_version", "Version of the parameters: updates so far.", nil, nil),
		samples:    prometheus.NewDesc("star_samples_total", "Samples of applied gradients.", nil, nil),
		limit:      prometheus.NewDesc("star_samples_limit", "Samples after which the job ends.", nil, nil),
		loss:       prometheus.NewDesc("star_train_loss", "Mean loss of the last gradients.", nil, nil),
		testLoss:   prometheus.NewDesc("star_test_loss", "Loss of the last evaluation.", nil, nil),
		testAcc:    prometheus.NewDesc("star_test_accuracy", "Accuracy of the last evaluation, 0 to 1.", nil, nil),
		rate:       prometheus.NewDesc("star_samples_per_second", "Samples per second since the start.", nil, nil),
		switches:   prometheus.NewDesc("star_mode_switches_total", "Changes of mode.", nil, nil),
		efficiency: prometheus.NewDesc("star_scaling_efficiency_ratio", "Sample rate of the workers, as a fraction of their rate without exchanges and waits; 0: unknown.", nil, nil),
		noise:      prometheus.NewDesc("star_noise_scale_samples", "Gradient noise scale; 0: unknown.", nil, nil),
		noiseGrad:  prometheus.NewDesc("star_gradient_norm_squared", "Squared norm of the exact gradient, estimated.", nil, nil),
		noiseVar:   prometheus.NewDesc("star_gradient_variance", "Trace of the covariance of one sample's gradient, estimated.", nil, nil),
		step:       prometheus.NewDesc("star_worker_steps_total", "Iterations of the worker.", workerLabel, nil),
		iteration:  prometheus.NewDesc("star_worker_iteration_seconds", "Mean time of the last iterations.", workerLabel, nil),
		compute:    prometheus.NewDesc("star_worker_compute_seconds", "Computation of the last iteration.", workerLabel, nil),
		wait:       prometheus.NewDesc("star_worker_wait_seconds", "Wait for others in the last iteration.", workerLabel, nil),
		workerRate: prometheus.NewDesc("star_worker_samples_per_second", "Samples of the worker per second.", workerLabel, nil),
		staleness:  prometheus.NewDesc("star_worker_staleness", "Updates since the worker read the parameters.", workerLabel, nil),
		telemetry:  prometheus.NewDesc("star_worker_telemetry", "The worker's last other measurements; docs/stragglers.md lists the metrics and their units.", []string{"worker", "metric"}, nil),
		poison:     prometheus.NewDesc("star_poisoned_gradients_total", "Rejected gradients of the worker, by cause.", []string{"worker", "cause"}, nil),
		up:         prometheus.NewDesc("star_worker_up", "1 while the worker is a member.", workerLabel, nil),
	}
)

// Describe announces no metric, so that workers may join and leave.
func (b *board) Describe(chan<- *prometheus.Desc) {}

// status asks the coordinator.
func (b *board) status(ctx context.Context) (s coord.Status, err error) {
	c := b.coordinator.Load()
	if c == nil {
		return s, errors.New("this process does not coordinate the job")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return s, c.Ask(ctx, &s, "status")
}

// Collect implements prometheus.Collector.
func (b *board) Collect(out chan<- prometheus.Metric) {
	s, err := b.status(context.Background())
	if err != nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	training := 0.0
	if s.Phase == "training" {
		training = 1
	}
	gauge(descs.training, training)
	gauge(descs.version, float64(s.Version))
	count(descs.samples, float64(s.Samples))
	gauge(descs.limit, float64(s.Limit))
	gauge(descs.loss, float64(s.Loss))
	gauge(descs.testLoss, float64(s.TestLoss))
	gauge(descs.testAcc, s.TestAcc)
	gauge(descs.rate, s.Rate)
	count(descs.switches, float64(s.Switches))
	gauge(descs.efficiency, s.Efficiency)
	gauge(descs.noise, s.Noise.Scale)
	gauge(descs.noiseGrad, s.Noise.Grad2)
	gauge(descs.noiseVar, s.Noise.Var)
	for _, w := range s.Workers {
		id := strconv.Itoa(w.Worker)
		up := 1.0
		if w.State == "absent" || w.State == "gone" {
			up = 0
		}
		gauge(descs.up, up, id)
		count(descs.step, float64(w.Step), id)
		gauge(descs.iteration, w.Iteration, id)
		gauge(descs.compute, w.Compute, id)
		gauge(descs.wait, w.Wait, id)
		gauge(descs.workerRate, w.Rate, id)
		gauge(descs.staleness, float64(w.Stale), id)
		for cause, n := range w.Poison {
			count(descs.poison, float64(n), id, cause)
		}
		for name, v := range w.Telemetry {
			gauge(descs.telemetry, v, id, name)
		}
	}
}

// ready answers /readyz: 200 once the job trains (or if this process only hosts shards), else 503 with the reason for
// waiting.
func (b *board) ready(w http.ResponseWriter, r *http.Request) {
	if b.coordinator.Load() == nil {
		fmt.Fprintln(w, "ok")
		return
	}
	s, err := b.status(r.Context())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case s.Phase == "joining":
		http.Error(w, "waiting for "+s.Waiting, http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, s.Phase)
	}
}
