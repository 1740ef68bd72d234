// Package cluster lets jobs share hosts. It has a resource service, which accounts for the resources that jobs use
// (resource.Ledger), and a client for the processes of a job.
//
// Every star-ps and star-worker that knows a service reports once a second what it uses and how long its workers take.
// The coordinator's process asks before its job leaves SSGD; the service answers from the account, and may order other
// jobs to run slower for that. One goroutine owns the account; connections only carry messages to it and from it.
//
// No job depends on the service. A request is answered within a deadline, with a refusal if the service does not
// answer; grants and orders end when the service is unreachable for a lease; and the client reconnects by itself, with
// back-off. The service considers a job dead when its connection has ended or was silent for a lease: then its
// resources are free, and jobs that were delayed for it no longer are.
//
// Gossip (hashicorp/memberlist, at its timings for a LAN) finds the service and detects a second one of the same name.
// It decides neither which process is dead nor which is slow.
//
// The service follows the resource manager of STAR (its artefact's res_dist_managing.py: START_JOB, IF_ASGD, DELAY_WRK,
// UNSET_DLY), with ids, leases and timeouts where that waits without limit.
package cluster
