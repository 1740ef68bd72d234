// Package cluster lets jobs share hosts: a resource service that keeps account of who uses
// what (resource.Ledger), and a client for the processes of a job.
//
// Every star-ps and star-worker that knows a service tells it once a second what it uses and how
// long its workers take. The coordinator's process asks before its job leaves SSGD; the
// service answers from the account, and may tell other jobs to be slower for that. One goroutine owns the
// account; the connections only carry messages to it and from it.
//
// Nobody depends on the service. A question is answered within a deadline, with no if nobody
// else answers; what a job was granted and what it was told end by themselves when the service is
// gone for a lease; and the client comes back by itself, with back-off. What the service takes for
// dead is a job whose connection has ended, or that was silent for a lease: then what it held is
// free, and who was delayed for it no longer is.
//
// Gossip (hashicorp/memberlist, at its timings for a LAN) says where the service is and whether there is a
// second one of the same name. It decides nothing else: neither who is dead nor who is slow.
//
// The service follows the resource manager of STAR (its artefact's res_dist_managing.py: START_JOB, IF_ASGD,
// DELAY_WRK, UNSET_DLY), with ids, leases and time-outs where that waits for ever.
package cluster
