// Package actuate makes a process take less of its host, so that another one can have
// it, and takes that back, whatever happens to the process.
//
// A [Limit] says how much; an [Actuator] brings about what it can of it:
//
//	Pacer    a pause in each iteration                      anywhere, needs nothing
//	Cgroup   processors, by a CPU quota (cgroup v1 or v2)   Linux, root or a delegated group
//	TC       bytes per second out of an interface (tbf),    Linux, root, the program tc
//	         and into it (tbf on an ifb device)
//
// [Governor] is what a process of a job has: one of each, and the orders of others to
// be slower by so much in each iteration, which it translates into the means that its user chose.
//
// A pause ends with the process. Quotas and filters belong to the kernel and outlive it, so each is
// preceded by a [Lease]: a file, on disk before the kernel hears of anything, that
// says what is changed, from what, and by which process. A process that ends undoes its own
// leases; one that was killed leaves them behind, and whoever starts next, or star limits
// undo, undoes them ([Sweep]). Undoing can be repeated and begun anywhere: it looks at what is
// there, so a process may be killed between any two steps of setting or undoing a limit.
//
// What bites:
//   - A filter is on an interface. It holds for all processes that use that interface.
//   - A quota slows the whole process, also its sending and its heartbeats. Below a tenth of
//     a processor it stands still for up to 90 ms at a time.
//   - A process that is moved to another control group by somebody else (systemd, a container's
//     runtime) has escaped its quota.
//   - Leases are of one host. A restart of the host removes limits and makes leases void.
package actuate
