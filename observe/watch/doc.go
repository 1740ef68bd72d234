// Package watch measures data-parallel jobs that do not run on STAR: which ranks are slow, why, and
// the cost.
//
// The part in the watched process is Python (hook): it times each training step of a rank, and sends a Row for it
// as a line of JSON. A Collector on each node receives them, adds the host's values for the process, and passes them
// to the Head, directly or over a Link. The Head combines the rows of a step, writes an ordinary run log, and
// reports its findings.
//
// The watched job never waits for this package: rows that cannot be taken at once are dropped and
// counted.
//
// Limits:
// - A rank's own time is what it spends outside collectives. On a GPU it includes FSDP's waiting in
// the middle of its passes.
// - The run log is one of an all-reduce: Push is the wait for the others and the exchange together.
// - The savings of modes are simulated with the recorded times, and a noise scale that was not
// measured: they are given as a range.
package watch
