// Package exitcode has the exit codes of processes and their reasons: one table for every program, for members that refuse one another
// (Reject), and for docs/recover.md. 65 to 78 are those of sysexits.h, where their meanings fit; 128 and more are signals', as in a shell.
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

// Code is a row of the table, in the words of docs/recover.md.
type Code struct {
	Number            int
	Meaning, Examples string
}

// Table has every code.
var Table = []Code{
	{OK, "finished", "the job came to its end, or `star ctl stop`"},
	{Failure, "a failure without a class of its own", "a command that the coordinator refuses; a failed check of `star doctor`; the port of a `star-ps` is taken; the run log or the last checkpoint cannot be written"},
	{Usage, "usage", "an unknown flag, key, model or mode; a value out of range; a rank that is taken or out of range; more workers than `--workers`; a bad `--dataset`; the port of `star run` is taken; another job has `--out` or `--checkpoint`"},
	{Corrupt, "data, checkpoint or file of settings (`--config`) corrupt", "the message names file, byte, what was expected and found; a packed file (gzip, NPZ, Parquet) that unpacks to more than 100 times its size and 64 MiB"},
	{Missing, "data, checkpoint or file of settings missing", "the message names the file; `star sched cancel` of a job that was not submitted"},
	{Lost, "lost for good", "no process joined within `--join-timeout`; `star ctl` without a job; a server is gone; most of the `--coordinators` are gone; a `star-ps` that was started in the place of one that may coordinate, and did not get it; the last worker is gone; for a worker: coordinator or shard is gone; an object store with the checkpoint does not answer"},
	{Diverged, "diverged", "a gradient or loss was NaN or Inf, with `--on-nan stop`: for a worker its own, for a job those of most workers; a gradient does not belong, with `--poison fatal`"},
	{Unwritable, "a file cannot be created or written", "`star sched serve` and `submit`: the disk with the queue is full, or the folder cannot be written; what `star sched sim` and `star export` are to write; the folder of `star install`"},
	{Restart, "this member must restart", "a worker that the job goes on without; one that comes back when the job has begun"},
	{Refused, "token or TLS refused", "the token is wrong or missing; a certificate that the other side does not accept; one side speaks TLS and the other does not; an object store refuses its key"},
	{Disagree, "members disagree", "model, seed, data or batch differ from what `star-ps` was told, or from the first worker's; another job's name; another protocol; not the checkpoint's model or data; a member that broke the protocol; a checkpoint of another optimiser; a `star-ps` that may coordinate and stood still until another one had its place"},
	{Interrupt, "SIGINT", "left cleanly, after a checkpoint. Not 0, because an orchestrator would count the rank as completed"},
	{Terminated, "SIGTERM", "as 130"},
}
