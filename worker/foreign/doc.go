// Package foreign is a train.Model in another process: a program in Python, C or Rust computes
// gradients, while this process, its agent, joins the job and exchanges them. docs/link.md specifies
// the link between the two, so that it can be implemented in any language.
//
// Parameters, gradient and buffers are shared memory, mapped by both: nothing is copied between the
// computation and the network. Messages are frames of 32 bytes over a Unix socket. A step is two
// frames: Compute, with the indices of the samples, and Done. In between the program may send Part
// when a part of the gradient is complete, so that its exchange starts. The agent is woken once in a
// step: the goroutine that waits for the answer reads everything that has come, without Go's poller
// and scheduler (direct_linux.go).
//
// An agent is a separate process and not a library, because the Go runtime does not survive the
// fork() with which PyTorch's DataLoader starts its workers (golang/go#15538), and because a panic
// must not end the training.
//
// Limits:
// - The program is trusted with the gradient, as every worker is, and with nothing else: frames are
// checked, and the memory is sealed, so that shrinking it cannot end the agent by SIGBUS.
// - Between two steps the parameters belong to the job. The program must not compute while it waits
// for Compute.
// - It works only on Linux: other systems have no memory seals.
package foreign
