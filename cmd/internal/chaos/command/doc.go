// Package command is the command line of star-chaos: it starts a job through proxies, breaks it by a schedule of
// faults, and judges from the run logs, the checkpoints and a job without faults which promises were kept. The package
// above has the schedules, the proxies and the promises.
package command
