// Package price says what a plan costs: the expected time to the progress that one exact update of SSGD makes.
//
//	Forecast: times, noise, rate ─► Candidates ─► Decider: the cheapest one ─► Decision
//	Plan, Forecast ─► Of            every worker always takes the same time: a Pace
//	Plan, History  ─► Over          iterations that were seen come again, in virtual time
//
// Invariants:
//   - A price is a pure function of its arguments. The same forecast has the same candidates in the same order.
//   - The cost of SSGD with equal shares is max τ·(1 + φ/B), whatever staleness costs.
//   - No plan applies more samples per second than the workers compute when they never wait.
//   - A plan with shares that rest on a guess is charged for it ([GuessCharge]).
//   - All prices go by the same few numbers of the job ([Price]); docs/theory.md derives them.
//
// The package does no I/O, starts no goroutine, reads no clock and holds no lock.
package price
