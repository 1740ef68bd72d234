// Package compress turns gradients into fewer bytes and back.
//
// It exists for links on which the bytes of a gradient take longer than the
// computation that they wait for. A [Codec] writes a vector, or a slice of one,
// as bytes of known maximal size and reads it again, either over a vector or
// added to it. [Feedback] keeps at the sender what a codec left out and adds it
// to the next gradient, without which top-k and low rank do not converge.
// [Averager] is low rank for an all-reduce, in three steps between which the
// caller averages. [Choose] selects the codec that pays on a link, with the reason.
//
//	name       bytes per value   what is lost
//	none       4                 nothing
//	fp16       2                 13 bits of fraction; what is beyond ±65504 or below 2^-25
//	bf16       2                 16 bits of fraction
//	int8       1.016             all but 1/254 of the largest of each 256 values
//	int2       0.266             an eighth of the energy of normal values
//	topk=f     about 5.2·f       all but the largest k = f·n values
//	powersgd=r 4·r·(a+b)/(a·b)   all but r directions of each a×b matrix
//
// Everything is pure: no clock, no I/O, no goroutine; random numbers come from a
// seed that the caller gives. Encoding the same vectors in the same order gives
// the same bytes, and decoding the same bytes gives the same bits (a NaN is a
// NaN), on every processor: the assembly for amd64 and the plain Go loops agree bit for bit, so
// replicas on different machines stay equal. Only the first step of PowerSGD
// (matrix products of the sender) depends on the processor, and its result
// is sent.
//
// Limits:
//   - NaN and Inf are not repaired: they arrive as NaN or Inf, so that a
//     check of gradients still finds them. int8 and int2 make the whole block of 256 NaN,
//     powersgd the whole matrix.
//   - int8, int2, topk and powersgd are biased. Use them with [Feedback], and with the
//     same Feedback for the same slice in every step.
//   - A residual is in units of the gradient. When the learning rate changes
//     much between two steps, [Feedback.Scale] it.
//   - A gradient that was encoded and then discarded (because it was too late) is
//     lost to the residual too: give it back with [Feedback.Return].
//
// References:
//   - F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: 1-Bit Stochastic Gradient
//     Descent and its Application to Data-Parallel Distributed Training of
//     Speech DNNs. Interspeech 2014 (error feedback).
//   - S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi: Error Feedback Fixes
//     SignSGD and other Gradient Compression Schemes. ICML 2019.
//   - D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic: QSGD. NIPS 2017
//     (stochastic rounding).
//   - S. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory. NeurIPS
//     2018 (top-k).
//   - T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: Practical Low-Rank
//     Gradient Compression for Distributed Optimization. NeurIPS 2019.
package compress
