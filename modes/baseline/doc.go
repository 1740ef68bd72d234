// Package baseline has the synchronisation schemes of other papers, for comparison: a file for each group of them.
//
// A scheme with a fixed plan is a [modes.Plan]. One that decides while the job runs is a [Scheme], a state machine:
//
//	records, updates, workers that left ──► Scheme ──► after an update: the next plan, or none
//
// [Parse] reads "name:key=value,…" and [Spec.Make] makes the job's scheme. Every setting names the source of its
// default: the paper, or us, where the paper is silent or was not at hand. docs/baselines.md has the whole comparison.
//
// Invariants: a scheme only returns plans that are valid for the job's workers, and its decisions follow from its
// calls alone. The package does no I/O, reads no clock and uses no randomness, so a run log replays to the same
// decisions. Only one goroutine may use a value at a time.
package baseline
