// Package star has the types that all packages of STAR share: Worker and Record. It imports nothing but time, so the
// rules (modes, straggler, pgns) and the programs that follow them (coord, ps, allreduce, sim) can meet on it.
//
// STAR is a runtime for data-parallel training on machines of uneven speed. It finds out which workers are slow and
// why, estimates for every synchronisation mode how long the same progress takes, and changes to the fastest one while
// the job runs. This page has the concepts in one picture and one timeline. docs/architecture.md has the details: which
// package does what, and what happens to one gradient.
//
// # The picture
//
// A job with parameter servers. Gradients and parameters take the double lines, small messages the single ones.
//
//	 your program, or a built-in model
//	┌──────────────────────────────────┐
//	│ worker 0: model, data            │══ gradient ═══════════════╗
//	│   worker.Run or worker.Session   │◄═ parameters ═══════════╗ ║
//	└──────────────────────────────────┘                         ║ ▼
//	   │ Arrive: "step 7 is pushed",    ▲                ┌───────────────────┐
//	   │ with a star.Record             │ Release:       │ ps: shard 0       │   each shard holds a range of the
//	   ▼                                │ next batch     │ ps: shard 1       │   parameters and of the
//	┌──────────────────────────────────────────┐         └───────────────────┘   optimiser's state
//	│ coord: the shell (sockets, clocks, log)  │  Stored:   │        ▲
//	│   ┌──────────────────────────────────┐   │  "held"    │        │ Fire: "update 12 is of
//	│   │ coord/engine: what arrived,      │   │◄───────────┘        │ the gradients of
//	│   │ updates and releases to make     │   │─────────────────────┘ workers 0 and 1"
//	│   │   ┌──────────────────────────┐   │   │
//	│   │   │ modes.Barrier: arrivals  │   │   │   ┌────────────────────────────────────────┐
//	│   │   │ in, updates out, by the  │◄──┼───┼───│ coord/pilot: the next modes.Plan       │
//	│   │   │ current modes.Plan       │   │   │   │   straggler: slow workers, why         │
//	│   │   └──────────────────────────┘   │   │   │   modes: the price of every mode       │
//	│   └──────────────────────────────────┘   │   │   pgns: the gradient's noise           │
//	└──────────────────────────────────────────┘   └────────────────────────────────────────┘
//	   │                                                ▲
//	   ▼  every record, update and decision             │
//	 runlog: run.jsonl ─────────────────────────────────┘   also read by observe, and by people
//
// With --arch allreduce there are no shards: each worker has all parameters, the workers of a ring sum their gradients
// among themselves (allreduce), and each makes the same update. The coordinator, the plan and the pilot are the same;
// coord/engine has an engine for each architecture.
//
// # The ideas
//
// A synchronisation mode is data. A [star/modes.Plan] puts workers into groups and says how many arrivals of a group
// make an update. Synchronous, asynchronous, k-batch, backup workers and stale synchronous training are values of this
// one type, so a job can change from one to another without a restart.
//
// One pure state machine turns arrivals into updates: [star/modes.Barrier], one for each job. It has no clock, lock,
// goroutine or socket. The engine, the shard (ps.Shard), the pilot and the scheduler's policies are pure as well; the
// shells around them do the input and output. The simulator (sim) drives the same machines in virtual time, so its
// results are statements about the program itself.
//
// A gradient has arrived when its worker has said so and every shard holds it. So an update never names a gradient that
// some shard lacks, and a worker that dies in the middle of a push leaves no trace.
//
// Bits are reproducible. Sums go by rank and not by arrival, so the number of shards changes no bit of the parameters,
// and a synchronous job gives the same bits in every run (docs/architecture.md, Bits, has the limits).
//
// Slow is not dead. A slow worker is never removed for being slow; a worker, server or coordinator that dies is
// replaced, or the job ends with an exit code that says what happened. Every wait has a deadline and a name.
//
// # The timeline
//
// Three workers: an iteration takes worker 0 5 units of time, worker 1 6 and worker 2 10. C is the first unit after a
// release, c computes, > pushes the gradient, and a dot waits. TestTimeline plays both pictures with the Barrier.
//
// Mode ssgd: one group, and an update takes all three gradients.
//
//	time      0         10        20
//	worker 0  Cccc>.....Cccc>.....C
//	worker 1  Ccccc>....Ccccc>....C
//	worker 2  Ccccccccc>Ccccccccc>C
//	updates             1         2
//
// The records of the workers reach the pilot. The detector says that worker 2 is slow, and since when. The pilot
// compares how long the modes take for the same progress, with the gradient's noise taken into account, and may change
// the plan.
//
// Mode x=2: one group, and an update takes the first two gradients that wait.
//
//	time      0         10        20
//	worker 0  Cccc>.Cccc>Cccc>Cccc>
//	worker 1  Ccccc>Ccccc>....Ccccc
//	worker 2  Ccccccccc>.Ccccccccc>
//	updates         1    2    3
//
// Update 1 is of workers 0 and 1, update 2 of workers 0 and 2, update 3 of workers 0 and 1: no worker waits for worker
// 2, and its gradients still count.
//
// A change of mode is one event at the barrier: workers that wait are counted under the new plan, and no gradient is
// lost.
//
// # The folders
//
// Imports between top-level folders point down: docs/architecture.md has their order, and layering_test.go checks it.
//
//	cmd         the programs: star, star-ps, star-worker, star-chaos
//	sched       cluster scheduling: policies, workloads, the queue and its service
//	bench       measurements of the hot paths
//	worker      PUBLIC: Run, Join; launch makes any Go program a worker, foreign any other process
//	server      PUBLIC: Run; hosts shards, and coordinates
//	observe     the page, the story, exports, what-if, the watcher of jobs that do not run on STAR, the doctor
//	job         PUBLIC: the types of a job, and what workers and servers do alike
//	sim         virtual time; recorded traces
//	cluster     hosts that jobs share: the ledger, placement, samplers, actuators, gossip
//	coord       the coordinator: shell, engine, pilot, election, takeover; session is a member's side
//	modes       Plan, Barrier, prices and forecasts; baseline has the schemes of other papers
//	ps          parameter servers: the shard, its server, the worker's link, update rules, copies
//	allreduce   schedules and their executor
//	runlog      one type for each line of the run log
//	straggler   which worker is slow, since when, and why
//	train       PUBLIC: Model, Data, optimisers, built-in models, checkpoints
//	transport   connections; wire has the messages
//	star        the shared types, in this folder
//	internal    the lowest layer: arithmetic, codecs, exact sums, settings, exit codes
//	pgns        the noise of the gradient
//	blossom     maximum-weight matching
//	deploy      files for Slurm and Kubernetes
//
// Besides: python has the client for PyTorch and JAX, docs the pages, and examples programs that use STAR.
//
// # Where to begin
//
// To use STAR: README.md and docs/tutorial.md. To train a model of your own from Go: [star/worker/launch] and
// docs/own-model.md; from Python: docs/python.md. To change STAR: CONTRIBUTING.md, the section "Through the code" of
// docs/architecture.md, and [star/modes].
package star
