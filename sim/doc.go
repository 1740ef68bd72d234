// Package sim runs a cluster in virtual time. Machines take the time that a [Times] says for an
// iteration; the production [modes.Barrier] turns their arrivals into updates, a [Pilot] (the
// production controller) may change the plan, and a [Learner] says what each update was worth. A run is a function of its
// [Config]: the same one gives the same result to the nanosecond.
//
// What is left out: shards and their queues (an update costs Config.Latency, whatever its size), and
// collectives step by step. Where a result depends on these it is not a statement about the program.
package sim
