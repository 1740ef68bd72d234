// Package auto decides while a job runs which plan the job has (package modes), by what plans cost (package price).
//
//	observe: records ──► price: forecast, candidates ──► trial: the cheapest plan, confirmed ──► keep
//	   ▲                                                                 │                        │
//	   │                                              revert: it costs more than the plan before  │
//	   └─────────────────────────────────────────────────────────────────┴────────────────────────┘
//
// A plan that was reverted is avoided for a while. A change waits until the plan in force has stayed for its dwell, and
// until several decisions in a row want it. The return to SSGD needs no trial.
//
// From every state the controller returns to SSGD at once when records cannot be trusted, or when the loss grows in
// another plan. It leaves a round of SSGD that late workers hold up without waiting for the end of their iterations.
//
// Invariants:
//   - A plan stays for its dwell, except one that was chosen blind, and except for the return to SSGD when records
//     cannot be trusted.
//   - Each change to a plan other than SSGD is on trial. A plan that costs more than the one before would have cost in
//     the same iterations is reverted, and avoided for longer each time.
//   - SSGD is left only for a plan that is cheaper also if staleness costs as much as [price.CautiousRate] says.
//   - Decisions follow from the calls and their times alone: a run log replays to the same decisions.
//
// Each part owns what it knows: observations (observe.go), what updates are worth (worth.go), the loss (ascent.go), the
// slow worker (suspect.go), trials (trial.go), the return to SSGD (home.go), the plan in force and the last look
// (decide.go). The package does no I/O, starts no goroutine, reads no clock and holds no lock.
package auto
