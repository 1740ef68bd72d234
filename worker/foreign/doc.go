// Package foreign is a train.Model that lives in another process: a program in Python, C or Rust that computes gradients, while this
// process, its agent, joins the job and exchanges them. docs/link.md describes the link between the two so that a third language can be
// written from it.
//
// Parameters, gradient and buffers are shared memory, mapped by both: nothing is copied on the way from the computation to the network.
// What is said goes over a Unix socket in frames of 32 bytes. A step is two frames: Compute, with the indices of the samples, and Done. The
// program may send Part in between, when a part of the gradient is complete, so that its exchange begins. The agent is woken once in a step: whoever waits for the
// answer reads all that has come, past Go's poller and scheduler (direct_linux.go).
//
// An agent is a process of its own and no library because the runtime of Go does not survive the fork() by which PyTorch's DataLoader
// starts its workers (golang/go#15538), and because a panic must not end the training.
//
// What bites:
//   - The program is trusted with the gradient, as every worker is, and with nothing else: frames are checked, and the memory is sealed, so
//     that shrinking it cannot end the agent by SIGBUS.
//   - Parameters are the job's between two steps. The program must not compute while it waits for Compute.
//   - It works on Linux alone: elsewhere memory has no seals.
package foreign
