// Package actuate reduces a process's use of its host in favour of another process, and undoes that reliably, whatever
// happens to the process.
//
// A [Limit] is the amount; an [Actuator] applies the parts that it supports:
//
//	Pacer    a pause in each iteration                      anywhere, needs nothing
//	Cgroup   processors, by a CPU quota (cgroup v1 or v2)   Linux, root or a delegated group
//	TC       bytes per second out of an interface (tbf),    Linux, root, the program tc
//	         and into it (tbf on an ifb device)
//
// A process of a job has a [Governor]: one actuator of each kind, and the orders to delay each iteration, which it
// translates into the means that its user selected.
//
// A pause ends with the process. Quotas and filters belong to the kernel and outlive the process, so each is preceded
// by a
// [Lease]: a file, on disk before the kernel changes, with the change, the former state and the process. A process that
// ends undoes its own leases. A killed process leaves them behind, and the next process that starts, or star limits
// undo, undoes them ([Sweep]). Undoing can be repeated and resumed: it reads the actual state, so a process may be
// killed between any two steps of setting or undoing a limit.
//
// Limits:
//   - A filter is on an interface. It holds for all processes that use that interface.
//   - A quota slows the whole process, including its sending and its heartbeats. Below a tenth of a processor the
//     process is
//     stopped for up to 90 ms at a time.
//   - A process that systemd, a container runtime or another program moves to another control group has escaped its
//     quota.
//   - Leases are of one host. A restart of the host removes limits and makes leases void.
package actuate
