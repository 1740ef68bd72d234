// Package star holds the nouns that every room of STAR speaks: Worker and
// Record. It imports nothing but time, so that the rules (modes, straggler,
// pgns) and the drivers (coord, ps, allreduce, sim) can meet on it.
//
// STAR is a runtime for data-parallel training on machines that are not
// perfectly even. docs/architecture.md is the map.
package star
