// Package ps is the parameter server: the shard that holds a range of the
// parameters, its server, and the worker's link to all shards.
//
// A [Shard] is a pure state machine: gradients, firings and norms go in, and
// Next returns the events that others must learn of. A [Server] is its shell:
// connections, buffers, and one goroutine that owns each shard. A [Link] is the
// worker's end.
//
// The update is the same in every mode,
//
//	w ← w − η(samples)·step(Σ cᵢ·gᵢ)
//
// summed in order of the worker's rank. The coordinator chooses the gradients of
// an update and their weights, and sends them as a Fire (a firing). A shard chooses
// nothing, so all shards go through the same history of versions. See
// docs/architecture.md, "One gradient", and docs/decisions.
//
// The design follows
//
//   - M. Li et al.: Scaling Distributed Machine Learning with the Parameter
//     Server. OSDI 2014. (Ranges of one flat vector, push and pull.)
//   - J. Chen et al.: Revisiting Distributed Synchronous SGD. ICLR 2016 workshop,
//     arXiv 1604.00981. (The rank of a gradient decides only the order of summation.)
//
// # Invariants
//
//   - Bits do not depend on the number of shards. Floating-point addition is not
//     associative, so every operation on parameters is done element by element, in an
//     order that does not depend on where a range begins, with products rounded before
//     they are added (no fused multiply-add). A Rule or an Optimizer that breaks this
//     breaks resuming with another number of shards.
//   - A shard executes firings in order of their numbers, without gaps, and each
//     stored gradient is used or dropped by exactly one firing.
//   - Memory of a shard is (optimiser state + 2 + one per worker) times its range;
//     WorkerMomentum adds one more per worker. The two are the parameters and a spare
//     vector. A worker's buffer holds its gradient, or an older snapshot that is still
//     being sent to it, but never both. A connection with compressed gradients also
//     has room for one message, and the worker keeps the codec's residual.
package ps
