// Package ps is the parameter server: the shard that holds a range of the
// parameters, its server, and the worker's link to all shards.
//
// A [Shard] is a pure machine: gradients, firings and norms go in, and Next says
// what to tell whom. A [Server] is its shell: connections, buffers, one
// goroutine that owns each shard. A [Link] is the other end, in the worker.
//
// The update is the same in every mode,
//
//	w ← w − η(samples)·step(Σ cᵢ·gᵢ)
//
// summed in order of the worker's rank. Which gradients make an update, and
// with which weights, is the coordinator's word (a Fire); a shard chooses
// nothing, so that all shards live through the same history of versions. See
// docs/architecture.md, "One gradient", and docs/decisions.
//
// The design follows
//
//   - M. Li et al.: Scaling Distributed Machine Learning with the Parameter
//     Server. OSDI 2014. (Ranges of one flat vector, push and pull.)
//   - J. Chen et al.: Revisiting Distributed Synchronous SGD. ICLR 2016 workshop,
//     arXiv 1604.00981. (The rank of a gradient decides nothing but the order.)
//
// # What will bite
//
// Floating-point addition is not associative. Everything done to parameters
// here is done element by element, in an order that does not depend on where a
// range begins, with products rounded before they are added (no fused
// multiply-add): only so do k shards give the bits of one. A Rule or an
// Optimizer that breaks this breaks resuming with another number of shards.
//
// Memory of a shard is (optimiser state + 2 + one per worker) times its range, with
// WorkerMomentum one more per worker.
// The two are the parameters and a spare vector; a worker's buffer holds its
// gradient, or an older snapshot that is still being sent to it, but never both.
// A connection over which gradients come compressed has room for one message
// besides, and the worker keeps what its codec left out.
package ps
