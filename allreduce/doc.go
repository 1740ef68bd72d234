// Package allreduce adds up vectors over many processes, so that every one of
// them ends with the same bits.
//
// It is the second way to combine gradients, beside parameter servers: no
// process has more to do than another, and the wire is used in both directions
// at once. It can be used alone, by any Go program:
//
//	g, err := allreduce.Dial(ctx, allreduce.Config{Rank: rank, Size: n, Rendezvous: "10.0.0.1:7070"})
//	…
//	err = g.AllReduce(ctx, allreduce.Mean, gradient)
//
// The layers, from below:
//
//   - schedule.go, ring.go, doubling.go, tree.go, line.go, hierarchy.go: who sends which block
//     to whom, in which step. Values; pure.
//   - program.go: a schedule cut for one vector, with what must wait for what. Pure.
//   - reduce.go: arithmetic, in Go and, on amd64 with AVX2, in assembly (asmgen). Pure.
//   - cost.go: which schedule is the fastest for a size. Pure.
//   - run.go: executes a program over links: one loop, one thread.
//   - socket_linux.go, shared_linux.go, stream.go: links: raw sockets, shared
//     memory, and goroutines over any net.Conn.
//   - rendezvous.go, control.go: how ranks find each other, and how they agree
//     whose fault it was.
//
// Bits. All ranks end with the same bits, because each element is either summed
// on one rank and copied to the others (ring, halving, trees), or summed
// everywhere from the same two operands in each step (recursive doubling), and
// x+y and y+x are the same bits. The payload bits of a NaN are the exception:
// where an element is NaN on one rank it is NaN on all, but maybe not the same one.
// Which order the ranks' elements are added in depends on schedule, size and
// number of ranks, so two schedules may differ in the last bit.
//
// What will bite: all ranks must call the same operations in the same order. A
// Group is for one goroutine at a time. After an error the group is useless, the
// vector is spoilt (some blocks may be sums, others not), and the way on is
// another Dial with the next generation.
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
