// Package sim runs a cluster in virtual time. Machines take the time that a [Times] says for an
// iteration; the production [modes.Barrier] turns their arrivals into updates, a [Pilot] (the
// production controller) may change the plan, and a [Learner] says what each update was worth. A run is a function of its
// [Config]: the same one gives the same result to the nanosecond.
//
// A [Trained] Learner trains: real gradients of a [Task], made into updates by the production ps.Shard with its rules and
// optimisers. So time to accuracy is that of real learning, and exactly reproducible: a learning curve depends on who read what when, which is the same
// in every run of a Config.
//
// An all-reduce whose rounds are closed by those who were first, or that is told to (Ring.Engine), is decided by the production engine.Ring: rounds are granted one ahead,
// riders are carried by the exchange that comes next, a ring that has lost somebody is formed anew. A test of package coord has it fire the same workers at the same nanosecond
// as the coordinator, as another one has the Barrier.
//
// What is left out: the queues of shards (an update costs Config.Latency, whatever its size), and
// collectives step by step. Where a result depends on these it is not a statement about the program.
package sim
