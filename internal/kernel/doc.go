// Package kernel is the float32 arithmetic of models and parameter servers:
// matrix product, convolution, pooling, normalisation, activations, loss,
// optimiser steps and the scans that look for NaN.
//
// It exists because the Go compiler does not vectorise and gorgonia's own
// operations spend most of a training step in copies: after a fast matrix
// product the time of a convolutional network is im2col, transposes and
// statistics. On amd64 the hot loops are assembly for AVX2 with FMA and for
// AVX-512, chosen at the start of the program by the processor's features ([Name]);
// everywhere else, and with the build tag noasm, they are the plain Go loops that
// the assembly is tested against. No cgo: only the build tag openblas swaps
// [Gemm] for OpenBLAS.
//
// Conventions. Matrices are row-major; images are N×C×H×W. Functions write
// their first argument. dst may be the same slice as an input where the
// function works element by element, but must not overlap it in part. Nothing
// allocates in the steady state (scratch is pooled), everything may be called
// from many goroutines as long as the destinations differ, and nothing starts a
// goroutine: one call uses one processor.
//
// Shapes and lengths are the caller's own code, so a wrong one panics with the
// function's name. Values are external input: NaN and Inf never panic and never
// index; each function documents its result for them.
//
// Limits:
//   - The same input gives the same bits on the same implementation. Sums
//     (Gemm, Conv2D, Dot, the norms) differ in the last bits between
//     implementations, because they add in another order.
//   - The elementwise functions and the optimiser steps use no fused
//     multiply-add, so that an element's result depends neither on its position
//     nor on the implementation: a vector cut over k shards is updated to the
//     same bits as an uncut one, on any mixture of machines.
//   - Gemm with beta = 0 does not read C, as BLAS demands; with beta ≠ 0 a NaN
//     in C stays.
//
// References:
//   - K. Goto, R. van de Geijn: Anatomy of High-Performance Matrix
//     Multiplication. ACM TOMS 34(3), 2008.
//   - M. Dukhan: The Indirect Convolution Algorithm. arXiv 1907.02129, 2019.
//   - S. Moshier: Methods and Programs for Mathematical Functions. Ellis
//     Horwood, 1989 (the polynomials of exp and tanh, as in Cephes).
//   - M. Abramowitz, I. Stegun: Handbook of Mathematical Functions, 1964,
//     formula 7.1.26 (erf in GELU).
package kernel
