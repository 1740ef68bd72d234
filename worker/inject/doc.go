// Package inject makes a worker slow on purpose, so that what STAR does about
// stragglers can be developed and measured on machines that have none.
//
// What is wanted is written as RANK:KIND:
//
//	2:3x              computes three times as long
//	2:+50ms           computes 50 ms longer
//	1:burst=40ms/1s   stands still for 40 ms of every second
//	1:stop=800ms/1s   the whole process stands still, heartbeats included
//	0:100mbit         sends no faster than 100 Mbit/s
//
// or is a trace: a CSV of slowdowns of each worker in each step, as recorded in
// real clusters (Alibaba's GPU cluster, ByteDance's straggler study).
//
// The portable way is to sleep after computing: [Injector] says how long and is
// pure. As root on Linux the real thing is possible: [Injector.Start] takes processor
// time and bandwidth away, with the actuators of cluster/resource/actuate, and gives back a function that
// undoes it. [Stopper] stops a child with signals.
//
// What bites:
//   - Sleeping leaves the processor to the other workers of the same machine. A
//     real straggler often does not. Use a quota when that matters.
//   - Sleeping cannot make a worker faster: slowdowns below 1 in a trace count
//     as 1.
//   - A burst hits computation only; a pause that falls into a wait costs
//     nothing, as it would in life.
package inject
