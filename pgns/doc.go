// Package pgns measures how noisy the gradient is: the gradient noise scale
//
//	φ = tr Σ / |G|²    [samples]
//
// with G the gradient of the whole data set and Σ the covariance of the gradient
// of one sample. An update of B samples makes 1/(1 + φ/B) of the progress that
// an exact gradient would make, so B ≪ φ wants larger batches and B ≫ φ wastes
// samples. With plain SGD the preconditioner of "preconditioned gradient noise
// scale" is the identity.
//
// Nothing more is needed than what training has anyhow: the norm of every
// worker's gradient and the norm of their weighted sum. Of n gradients over
// b_k samples, taken at the same parameters, with B = Σ b_k and ḡ = Σ b_k·g_k/B,
//
//	S    = Σ b_k·|g_k − ḡ|² = Σ b_k·|g_k|² − B·|ḡ|²
//	trΣ̂  = S/(n−1)                                                     (15)
//	|G|²̂ = |ḡ|² − trΣ̂/B                                                (16)
//
// are unbiased; with equal batches they are the estimator of McCandlish et al.
// (appendix A.1) and of AdaptDL. [Update.Moments] also takes other weights. One
// gradient alone says nothing; [Pair] makes an Update of two consecutive ones, and
// [Change] is how a worker compares them at little cost.
// Both moments are averaged before they are divided ([Estimator]): the quotient
// of two noisy numbers is biased.
//
// Gradients of different versions differ by more than noise, so that (15) is too
// much. They are kept apart ([Noise].Mixed), and what they differ by is itself
// measured: it is the price of staleness ([Estimator.Drift]).
//
// A [Table] has moments by batch and epoch, as a prior for jobs that have
// measured nothing yet.
//
// The package is pure: no I/O, no clock, no randomness. Types are used by one
// goroutine at a time. docs/theory.md has the derivations.
//
// References:
//   - S. McCandlish, J. Kaplan, D. Amodei, OpenAI Dota Team: An Empirical Model of Large-Batch Training. arXiv
//     1812.06162, 2018.
//   - A. Qiao et al.: Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning. OSDI 2021.
package pgns
