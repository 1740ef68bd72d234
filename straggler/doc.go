// Package straggler finds the workers that are slow, since when and why, and those that will be.
//
// [Detector] judges every record that a worker sends. In the definition of the STAR
// artefact worker i of a job with times τ is a straggler when
//
//	(τ_i − min τ)/min τ > 0.20
//
// In real jobs that holds in almost every iteration of almost every job, because
// single times are noisy. So the detector counts how often the iterations of a worker, or a
// part of them, are beyond what the fast workers take, and calls it slow when that is significantly more often
// than theirs are: Page's cumulative sum, a sequential test with a known rate of false alarms.
// The same test, the other way round, says when a slow worker is as fast as the others again.
//
// A worker's own time is what counts ([star.Record.Busy], or Own where the exchange
// is collective): in a synchronous job each iteration lasts as long as the slowest
// worker's, and waiting for others is not slowness.
//
// The cause follows from the part of the own time that has grown against the
// reference, and from the telemetry of process, host and GPU, while the worker is slow; it has the
// numbers as evidence ([Verdict]), and is named only when it explains clearly more than the next one.
//
// [Pace] compares the job with its own past, for times in which all workers slow down together.
//
// [NewLast], [EWMA] and [LSTM] predict every worker's next times, [Contest] chooses among them
// by their recent errors. The LSTM is that of the artefact (two layers, a head that
// predicts the resources, and a perceptron that predicts the time from these), with
// its inputs standardised and as rates. Its arithmetic is our own, for float32 and
// float64, forwards and backwards: it is checked against PyTorch's numbers, against gorgonia
// and by finite differences.
//
// All of this is pure: no I/O, no goroutine, no clock, no lock; time is
// that of the records, and noise comes from a source that the caller gives.
// These types are not safe for concurrent use.
//
// Limits:
//   - With collective exchange (all-reduce) a slow network of one worker slows the
//     exchange of all. No record shows its origin.
//   - A worker that sleeps and one that waits for a device look alike: both are off
//     the processor while they compute.
//   - Telemetry covers a sampling period, not the iteration. Verdicts rest on means
//     over several records for that reason, too.
//
// References:
//   - Z. Zhang, H. Shen: Straggler Tolerant and Resilient DL Training on Homogeneous GPUs. arXiv 2512.09685, and its
//     artefact.
//   - E. Page: Continuous Inspection Schemes. Biometrika 41, 1954. G. Lorden: Procedures for Reacting to a Change in
//     Distribution.
//     Annals of Mathematical Statistics 42, 1971 (its rate of false alarms).
//   - F. Hampel: The Influence Curve and its Role in Robust Estimation. JASA 69, 1974 (median absolute deviation).
//   - S. Hochreiter, J. Schmidhuber: Long Short-Term Memory. Neural Computation 9(8), 1997.
//   - D. Kingma, J. Ba: Adam: A Method for Stochastic Optimization. ICLR 2015.
package straggler
