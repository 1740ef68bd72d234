// Package price estimates the cost of a plan: the expected time for the progress of one exact update of SSGD.
//
//	Forecast: times, noise, rate ─► Candidates ─► Decider: the cheapest one ─► Decision
//	Plan, Forecast ─► Of            every worker always takes the same time: a Pace
//	Plan, History  ─► Over          measured iterations repeat, in virtual time
//
// Invariants:
//   - A price is a pure function of its arguments. The same forecast has the same candidates in the same order.
//   - The cost of SSGD with equal shares is max τ·(1 + φ/B), whatever staleness costs.
//   - No plan applies more samples per second than the workers compute when they never wait.
//   - A plan with shares that rest on a guess is charged for it ([GuessCharge]).
//   - All prices use the same few numbers of the job ([Price]); docs/theory.md derives them.
//
// The package does no I/O, starts no goroutine, reads no clock and holds no lock.
package price
