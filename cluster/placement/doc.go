// Package placement says on which host each parameter server and each worker of
// several jobs should run, and why.
//
// A host has processors, network in and out, memory and GPUs; a task (a server or
// a worker) has a demand for each. Nothing is put where it does not fit. Among the
// placements that fit, the one is wanted whose fullest link or processor is as
// empty as can be:
//
//	load(h) = max over r in {CPU, in, out} of (used(h, r) + Σ demand(t, r)) / capacity(h, r)
//	minimise  max over h of load(h)
//
// Memory and GPUs are room, not load: half-full memory slows nobody, so they only
// have to suffice. Demands are means over an iteration, as monitors report them.
//
// Traffic between a server and a worker of one job that share a host does not use
// the NIC. With W the workers' and S the servers' rates, what worker w sends to
// server s is out_w · in_s / max(Σ out_W, Σ in_S), and likewise back. A job without
// servers exchanges among its workers, once per host: its share of a NIC is that
// of the greediest of its workers there, and nothing if all are there.
//
// The search. Tasks that complement each other are paired by maximum-weight matching
// (package blossom); tasks are placed by smallest maximum load, the greediest first,
// in several orders; moves, swaps and moves of a whole job's part improve on it; and
// branch and bound, within a budget of nodes, finds the optimum of small instances,
// and a placement that fits where the rest found none. What the optimum leaves of
// Options.Slack is then spent on fewer shared GPUs, less traffic, more pairs.
//
// A job that does not fit is named with what is missing; the others are placed
// without it, those that come first in the list first.
//
// Complementing tasks. A task is active on the processor for a while, then idle
// (or its GPU is active). Two tasks that take turns need, for both iterations,
//
//	T = max(c₁, g₂) + max(g₁, c₂),   γ = (c₁ + g₁ + c₂ + g₂) / 2T  in (1/2, 1]
//
// with c the active and g the other phase: 1 is a perfect fit.
//
// What will bite: demands that are wrong. Nobody measures here; star run measures, and
// the numbers of one run are the demands of the next.
//
// References:
//   - Y. Zhao et al.: Multi-Resource Interleaving for Deep Learning Training (Muri).
//     SIGCOMM 2022, section 4, equations 1 to 4 (interleaving efficiency γ, multi-round grouping).
//   - STAR's public artefact, folders wrk_wrk_pack and ps_wrk_pack: pairs and published, in the tests.
package placement
