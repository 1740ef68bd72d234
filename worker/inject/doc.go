// Package inject makes a worker slow on purpose, so that straggler mitigation can be developed and
// measured on machines without stragglers.
//
// An injection is written as RANK:KIND:
//
//	2:3x              computes three times as long
//	2:+50ms           computes 50 ms longer
//	1:burst=40ms/1s   pauses for 40 ms of every second
//	1:stop=800ms/1s   stops the whole process, heartbeats included
//	0:100mbit         sends no faster than 100 Mbit/s
//
// or is a trace: a CSV of slowdowns of each worker in each step, as recorded in real clusters
// (Alibaba's GPU cluster, ByteDance's straggler study).
//
// The portable way is to sleep after computing: [Injector] computes for how long and is pure. As
// root on Linux resources can be limited instead: [Injector.Start] limits CPU time and bandwidth
// with the actuators of cluster/resource/actuate, and returns a function that undoes it. [Stopper]
// stops a child with signals.
//
// Limits:
// - Sleeping leaves the CPU to the other workers of the same machine. A real straggler often does
// not. Use a quota when that matters.
// - Sleeping cannot make a worker faster: slowdowns below 1 in a trace count as 1.
// - A burst hits computation only: as with a real pause, one that falls into a wait costs nothing.
package inject
