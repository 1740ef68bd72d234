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
	{Failure, "another failure", "the coordinator rejects a command; a check of `star doctor` failed, or `--sweep` named a host; the port of a `star-ps` is taken; the run log or the last checkpoint cannot be written"},
	{Usage, "usage", "an unknown flag, key, model or mode; an invalid value; a rank that is taken; the port of `star run` is taken; another job uses `--out` or `--checkpoint`"},
	{Corrupt, "corrupt data, checkpoint or settings", "the message names file, byte, expected and found value; an archive (gzip, NPZ, Parquet) that unpacks to more than 100 times its size and 64 MiB"},
	{Missing, "missing data, checkpoint or settings", "the message names the file; `star sched cancel` of an unknown job"},
	{Lost, "lost for good", "no member joined within `--join-timeout`; `star ctl` finds no job; coordinator, server, shard or last worker lost; most `--coordinators` lost; the checkpoint's object store does not answer; the tool of `star export --follow` did not answer after the job's end"},
	{Diverged, "diverged", "NaN or Inf in a gradient or loss, with `--on-nan stop`: of this worker, for a job of most workers; an implausible gradient, with `--poison fatal`"},
	{Unwritable, "a file cannot be created or written", "the queue of `star sched`; output of `star sched sim`, `star export`, `star install`"},
	{Restart, "this member must restart", "the job continues without this worker; the member came back after the job started; the log that `star export --follow` reads stopped growing before its end"},
	{Refused, "token or TLS rejected", "a wrong or missing token; a rejected certificate; TLS on one side only; an object store, or the tool of `star export --to`, rejects its key"},
	{Disagree, "members disagree", "model, seed, data, batch, optimiser, job name or protocol differ from the job's or the checkpoint's; a member violated the protocol; a candidate coordinator was suspended until another process had its place"},
	{Interrupt, "SIGINT", "left after a checkpoint; not 0, which an orchestrator would count as completed"},
	{Terminated, "SIGTERM", "as 130"},
}
