// Package election has several processes agree on which of them coordinates a job, and on the little that whoever comes
// next must know.
//
// The agreement is Raft (Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm, USENIX ATC 2014), and
// the program that keeps it is etcd's, go.etcd.io/raft: a state machine without network, clock or disk. This package
// brings it messages over our own connections, with the job's TLS or token, and time.
//
// A member that is elected and has learned all that was agreed before holds a [Leadership], with a term that is higher than that
// of every leadership before. While the leadership lasts it may Note what its successor must know: that is agreed when Note returns.
//
// Two promises, and what they rest on:
//
//   - At any time at most one member's Hold returns nil. It rests on the members' clocks going at the same rate: a
//     lease, as in section 6.4.1 of Ongaro's thesis (Consensus: Bridging Theory and Practice, Stanford 2014).
//   - What was noted in one leadership is known to all later ones. It rests on nothing but a majority being alive.
//
// The first one can be broken by a process that stands still between Hold and what it does next. Whoever must not hear two
// coordinators compares their terms: shards do (package ps).
//
// Members with a folder (Config.Dir) keep all of it on disk, and are the same ones when they are started again: what a majority's disks have is never lost. Others keep it in memory. One of these that ends has forgotten what it voted for, and is never taken for the same one when it is started again: as another
// one, it gets the place when the rest has agreed on that. So a group of three survives the end of one, one of five that of two, and the end of others when these have
// been replaced.
package election
