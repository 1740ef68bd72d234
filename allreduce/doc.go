// Package allreduce combines vectors across many processes, so that all of them
// end with the same bits.
//
// It is the second way to combine gradients, beside parameter servers: every
// process does the same work, and the network is used in both directions at
// once. Any Go program can use it alone:
//
//	g, err := allreduce.Dial(ctx, allreduce.Config{Rank: rank, Size: n, Rendezvous: "10.0.0.1:7070"})
//	…
//	err = g.AllReduce(ctx, allreduce.Mean, gradient)
//
// The layers, from below:
//
//   - schedule.go, ring.go, doubling.go, tree.go, line.go, hierarchy.go: which rank
//     sends which block to which rank, in which step. Values; pure.
//   - program.go: a schedule cut for one vector, with the order that transfers must
//     keep. Pure.
//   - reduce.go: arithmetic, in Go and, on amd64 with AVX2, in assembly (asmgen). Pure.
//   - cost.go: which schedule is the fastest for a size. Pure.
//   - run.go: executes a program over links: one loop, one thread.
//   - socket_linux.go, shared_linux.go, stream.go: links: raw sockets, shared
//     memory, and goroutines over any net.Conn.
//   - rendezvous.go, control.go: how ranks find each other, and how they agree on
//     the rank at fault.
//
// Bits. All ranks end with the same bits, because each element is either summed
// on one rank and copied to the others (ring, halving, trees), or summed
// everywhere from the same two operands in each step (recursive doubling), and
// x+y and y+x are the same bits. The payload bits of a NaN are the exception: an
// element that is NaN on one rank is NaN on all, but perhaps with another payload.
// The order in which elements are added depends on schedule, size and number of
// ranks, so two schedules may differ in the last bit.
//
// Requirements: all ranks must call the same operations in the same order. A
// Group is for one goroutine at a time. After an error the group is unusable and
// the vector undefined (some blocks may be sums, others not); recover with
// another Dial with the next generation.
//
// States of a group:
//
//	Dial ──all ranks connected──► idle ──operation──► running ──► idle
//	  └─error─► (no group)         └─Close─► closed       └─error─► failed
//
// References:
//   - P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters
//     of workstations. JPDC 69(2), 2009 (ring).
//   - R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective
//     Communication Operations in MPICH. IJHPCA 19(1), 2005 (recursive doubling and
//     halving, and the fold for other numbers than powers of two).
//   - P. Sanders, J. Speck, J. L. Träff: Two-tree algorithms for full bandwidth
//     broadcast, reduction and scan. Parallel Computing 35(12), 2009.
//   - D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier
//     synchronization. IJPP 17(1), 1988 (dissemination).
package allreduce
