// Package resource says what a mode costs the hosts that a job runs on, and whether they can
// afford it.
//
// Leaving SSGD makes updates and gradients more frequent, and so the servers' processors and
// links busier. A job that takes what others need there makes stragglers of them. [Admit]
// decides whether it may: out of what is free; out of what workers of other jobs, who would only
// wait, can do later; or out of what other jobs can do without at a loss that is smaller than
// the gain. [Ledger] is the account of a cluster: who uses what, who was granted
// what, who is delayed for whom, and until when.
//
// Amounts are in base units: cores (processor seconds per second), bytes per second into a
// host and out of it, seconds of delay for each iteration. Nothing here has a clock, a lock
// or a network: time is told, answers and orders are returned.
//
// References:
//   - Z. Zhang, H. Shen: Straggler Tolerant and Resilient DL Training on Homogeneous GPUs (STAR).
//     arXiv 2512.09685, 2025, and its public artefact. docs/resources.md says what is theirs, and where we
//     differ.
package resource
