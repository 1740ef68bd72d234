// Package placement decides on which host each parameter server and each worker of several jobs should run, and gives
// the reasons.
//
// A host has processors, network in and out, memory and GPUs; a task (a server or
// a worker) has a demand for each. A task is only placed where it fits. Among the placements that fit, it selects the
// one with the smallest maximum load of a link or processor:
//
//	load(h) = max over r in {CPU, in, out} of (used(h, r) + Σ demand(t, r)) / capacity(h, r)
//	minimise  max over h of load(h)
//
// Memory and GPUs are constraints, not load: half-full memory slows no process, so they only have to suffice. Demands
// are means over an iteration, as monitors report them.
//
// Traffic between a server and a worker of one job that share a host does not use
// the NIC. With the rates W of the workers and S of the servers, worker w sends out_w · in_s / max(Σ out_W, Σ in_S) to
// server s, and likewise back. A job without servers exchanges among its workers, once per host: its share of a NIC is
// that of the worker with the largest demand there, and zero if all workers are there.
//
// The search. Tasks that complement each other are paired by maximum-weight matching (package blossom). Tasks are
// placed by smallest maximum load, the largest demand first, in several orders. Moves, swaps and moves of a job's whole
// part improve the placement. Branch and bound, within a budget of nodes, finds the optimum of small instances, and a
// placement that fits where the other steps found none. The remaining part of Options.Slack is then spent on fewer
// shared GPUs, less traffic and more pairs.
//
// A job that does not fit is reported with the missing resource; the others are placed without it, in the order of the
// list.
//
// Complementing tasks. A task is active on the processor for a while, then idle
// (or its GPU is active). Two tasks that take turns need, for both iterations,
//
//	T = max(c₁, g₂) + max(g₁, c₂),   γ = (c₁ + g₁ + c₂ + g₂) / 2T  in (1/2, 1]
//
// with c the active and g the other phase: 1 is a perfect fit.
//
// Limits: the result is only as good as the demands. This package measures nothing; star run does, and the numbers of
// one run are the demands of the next.
//
// References:
//   - Y. Zhao et al.: Multi-Resource Interleaving for Deep Learning Training (Muri).
//     SIGCOMM 2022, section 4, equations 1 to 4 (interleaving efficiency γ, multi-round grouping).
//   - STAR's public artefact, folders wrk_wrk_pack and ps_wrk_pack: pairs and published, in the tests.
package placement
