// Package host measures what a worker's process, its control group and its host do while it trains, for the records
// that identify slow workers and the cause.
//
// [Sampler] reads counters of /proc and of the control group (v1 and v2) every 100 ms in its own goroutine, outside of
// the training loop, and memory, network and load from gopsutil once a second. Rates are between two reads. A heartbeat
// every 20 ms detects pauses of the whole process, which no counter shows. [Meter] reads the process's own usage
// exactly at the borders of an iteration and adds the sampler's last values.
//
// A value that a host does not have is absent, not zero: no quota, no pressure files, another operating system. This is
// never an error.
//
// Limits:
//   - A process with all threads busy is late for its own heartbeat. Only gaps of more
//     than 50 ms count, and what matters is the comparison with other workers.
//   - A quota of a group further up throttles as well: all levels with a quota are added up.
//   - In a container /proc/stat and /proc/pressure are the host's, the control group is the container's, as intended
//     here.
package host
