// Package resource estimates what a mode costs the hosts of a job, and decides whether they can afford it.
//
// Leaving SSGD makes updates and gradients more frequent, and so the servers' processors and links busier. A job that
// takes resources that others need turns them into stragglers. [Admit] decides whether it may: from free resources;
// from work that workers of other jobs, which would only wait, can do later; or from what other jobs can free at a loss
// smaller than the gain. [Ledger] is the account of a cluster: the use, the grants and the delays of each job, and
// their end.
//
// Amounts are in base units: cores (processor seconds per second), bytes per second into a host and out of it, seconds
// of delay per iteration. The package has no clock, lock or network: callers pass the time, and get answers and orders.
//
// References:
//   - Z. Zhang, H. Shen: Straggler Tolerant and Resilient DL Training on Homogeneous GPUs (STAR).
//     arXiv 2512.09685, 2025, and its public artefact. docs/resources.md describes what follows them and what differs.
package resource
