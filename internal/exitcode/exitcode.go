// Package exitcode has the exit codes of all programs, their meanings, and the codes that a member sends when it
// rejects another one (Reject). docs/recover.md prints the table. Codes 65 to 78 follow sysexits.h as far as their
// meanings go; 128 and more are signals, as in a shell.
package exitcode

// The codes.
const (
	OK         = 0
	Failure    = 1
	Usage      = 2
	Corrupt    = 65 // EX_DATAERR
	Missing    = 66 // EX_NOINPUT
	Lost       = 69 // EX_UNAVAILABLE
	Diverged   = 70 // EX_SOFTWARE
	Unwritable = 73 // EX_CANTCREAT
	Restart    = 75 // EX_TEMPFAIL
	Refused    = 77 // EX_NOPERM
	Disagree   = 78 // EX_CONFIG
	Interrupt  = 130
	Terminated = 143
)

// Code is a row of the table in docs/recover.md.
type Code struct {
	Number            int
	Meaning, Examples string
}

// Table has every code.
var Table = []Code{
	{OK, "finished", "the job reached its end, or `star ctl stop`"},
	{Failure, "a failure without a class of its own", "a command that the coordinator rejects; a failed check of `star doctor`; the port of a `star-ps` is taken; the run log or the last checkpoint cannot be written"},
	{Usage, "usage", "an unknown flag, key, model or mode; a value out of range; a rank that is taken; more workers than `--workers`; an invalid `--dataset`; the port of `star run` is taken; another job uses `--out` or `--checkpoint`"},
	{Corrupt, "data, checkpoint or settings (`--config`) corrupt", "the message names file, byte, expected and found value; an archive (gzip, NPZ, Parquet) that unpacks to more than 100 times its size and 64 MiB"},
	{Missing, "data, checkpoint or settings missing", "the message names the file; `star sched cancel` of an unknown job"},
	{Lost, "lost for good", "no member joined within `--join-timeout`; `star ctl` without a job; coordinator, server, shard or last worker lost; most of the `--coordinators` lost, or a replacement got no place; the checkpoint's object store does not answer"},
	{Diverged, "diverged", "NaN or Inf in a gradient or loss, with `--on-nan stop`: a worker's own, for a job that of most workers; an implausible gradient, with `--poison fatal`"},
	{Unwritable, "a file cannot be created or written", "the queue of `star sched`; output of `star sched sim`, `star export`, `star install`"},
	{Restart, "this member must restart", "the job continues without this worker; a member that comes back after the job started"},
	{Refused, "token or TLS rejected", "a wrong or missing token; a certificate that the other side rejects; TLS on one side only; an object store rejects its key"},
	{Disagree, "members disagree", "model, seed, data, batch, optimiser, job name or protocol differ from the job's or the checkpoint's; a member that violated the protocol; a candidate coordinator that was suspended until another process had its place"},
	{Interrupt, "SIGINT", "left cleanly, after a checkpoint. Not 0, because an orchestrator would count the rank as completed"},
	{Terminated, "SIGTERM", "as 130"},
}
