// Package baseline has the ways of synchronising that other papers propose, to compare with: a file for each group of them.
//
// What a scheme fixes once and for all is a [modes.Plan]. What it decides while the job runs is a [Scheme]: a machine that is told
// what workers measured and which updates were made, and answers with plans. [Parse] reads "name:key=value,…" and [Spec.Make] makes
// the job's scheme of it. Every setting says where its default comes from: the paper, or us, where the paper is silent or was not at
// hand. docs/baselines.md has the whole comparison.
//
// The package does no I/O, reads no clock and knows no randomness, so a run log replays to the same decisions. Types are used by
// one goroutine at a time.
package baseline
