// Package modes decides when gradients become an update.
//
// A synchronisation mode is data, a [Plan]: a partition of the workers into groups, each with the number
// of arrivals at which it fires, and riders, which no worker waits for: a firing takes those that wait.
// SSGD, ASGD, static and dynamic x-order, backup workers and a ring without its stragglers are values of
// that one type. So one state machine, the [Barrier], runs them all, and can change from one to another
// while workers wait:
//
//	arrival of a gradient ─► Barrier ─► Firing: these gradients make version v+1
//
// A plan may have a tree, in which workers add up gradients on the way to the servers; a report counts as
// all the gradients in it. [TreeRule] builds a tree from measured load.
//
// Package price estimates the cost of a plan, package auto chooses the plan of a job, and package baseline
// has the schemes of other papers.
//
// There is one Barrier per job, not one per shard: shards that decided for themselves could decide
// differently, and then workers would deadlock.
//
// The package does no I/O, starts no goroutine, reads no clock and holds no lock. Time enters as data, so
// the same code runs under the coordinator and under a simulator. Only one goroutine may use a value at a
// time.
//
// Two pitfalls. The slices in a [Firing] are reused by the next call on the Barrier. And x-order waits: a
// worker that has arrived computes nothing until it is released, so an update takes x different workers,
// and the rate of updates does not follow from the x-th order statistic of their times alone. Package price
// simulates it.
//
// References:
//   - S. Dutta et al.: Slow and Stale Gradients Can Win the Race. AISTATS 2018 (K-async SGD is x-order).
//   - J. Chen et al.: Revisiting Distributed Synchronous SGD. arXiv 1604.00981, 2016 (backup workers).
//   - Z. Zhang, H. Shen: Straggler Tolerant and Resilient DL Training on Homogeneous GPUs. arXiv 2512.09685, 2025.
package modes
