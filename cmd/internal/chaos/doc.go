// Package chaos breaks running jobs on purpose, and reports whether they kept their promises: a schedule of faults made
// from a seed, a proxy that treats connections badly, and the invariants that a run log must show whatever happened.
//
// It knows no processes: star-chaos, which runs a job, carries out a schedule.
package chaos
