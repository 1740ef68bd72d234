// Package host measures what a worker's process, its control group and its host do
// while it trains, for the records that say who is slow and why.
//
// [Sampler] looks every 100 ms in a goroutine of its own, off the path of the
// training: counters of /proc and of the control group (v1 and v2), and once a second what gopsutil
// knows of memory, network and load. Rates are between two looks. A heartbeat
// every 20 ms finds pauses of the whole process, which no counter shows.
// [Meter] takes the process's own usage exactly at the borders of an iteration and adds
// the sampler's last look.
//
// What a host does not have is absent, not zero: no quota, no pressure files, another
// operating system. Nothing here fails.
//
// What bites:
//   - A process whose threads are all busy is late for its own heartbeat. Only gaps of more
//     than 50 ms count, and what matters is the comparison with other workers.
//   - A quota of a group further up holds back as well: all levels with a
//     quota are added up.
//   - In a container /proc/stat and /proc/pressure are the host's, the control
//     group is the container's. That is what they are for here.
package host
