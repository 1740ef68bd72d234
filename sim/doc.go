// Package sim runs a cluster in virtual time. Machines take the time that a [Times] says for an iteration; the
// production [modes.Barrier] turns their arrivals into updates, a [Pilot] (the production controller) may change
// the plan, and a [Learner] says what each update was worth. A run is a function of its [Config]: the same one
// gives the same result to the nanosecond.
//
// A [Trained] Learner trains: real gradients of a [Task], made into updates by the production
// ps.Shard with its rules and optimizers. So time to accuracy is that of real learning, and exactly
// reproducible: a learning curve depends on the order of reads, which is the same in every run of a
// Config.
//
// The engines of coordinators, engine.Ring and engine.Shards, decide about an all-reduce that closes
// rounds after the first arrivals, about servers with a tree of workers, and with Config.Engine. In
// all other runs the Barrier decides alone, which takes a fourth of the time. Tests of package coord
// have both fire the same workers at the same nanosecond as the coordinator, and one here compares
// the engine with the Barrier on random runs.
// does whatever happens.
//
// What is left out: the queues of shards (an update costs Config.Latency, whatever its size), and
// collectives step by step. Where a result depends on these it is not a statement about the program.
package sim
