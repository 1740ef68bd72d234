// Package election lets several processes agree on which of them coordinates a job, and on the state that its next
// coordinator needs.
//
// The agreement is Raft (Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm, USENIX ATC 2014).
// Its implementation is etcd's, go.etcd.io/raft: a state machine without network, clock or disk. This package adds
// time, and messages over the job's connections, with its TLS or token.
//
//	Run ──► form: founder ────────────────────────────┐
//	          └──► late: waits for the place of its rank ──► follower ──► leader ──► Leadership
//	                                                        ▲                            │
//	                                                        └── lost, resigned, disk full ◄──┘
//
// A member that is elected and has applied all earlier entries holds a [Leadership], with a higher term than every
// leadership before. While it lasts, the member may note what its successor needs (SetNote, Add): the members have
// agreed on it when the call returns.
//
// Invariants:
//
//   - At any time at most one member's Hold returns nil. This assumes that the members' clocks run at the same rate: a
//     lease, as in section 6.4.1 of Ongaro's thesis (Consensus: Bridging Theory and Practice, Stanford 2014).
//   - Every later leadership knows the notes of one. This assumes only that a majority is alive.
//
// A process that is suspended between Hold and its next action can break the first one. So a process that must not obey
// two coordinators compares their terms, as shards do (package ps).
//
// Members with a folder (Config.Dir) keep their state on disk, and are the same members after a restart: what a
// majority's disks contain is never lost. Members without one keep it in memory. After a restart such a process no
// longer knows its votes, so it is never taken for the same member: it gets the place of its rank as a new member,
// once the others have agreed on that. So a group of three survives the end of one member, and a group of five that of
// two, and more once these have been replaced.
package election
