package baseline

import (
	"fmt"

	"star/modes"
)

// ssp is stale synchronous parallel: no worker waits, unless it is too far ahead of the slowest.
//
// Q. Ho et al.: More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server. NIPS 2013.
var ssp = Entry{
	Name:  "ssp",
	Paper: "Ho et al., NIPS 2013",
	About: "ASGD with a bound on how many iterations a worker may be ahead",
	Settings: []Setting{
		{Name: "slack", Default: "3", Source: "ours", Kind: Whole, Min: 0, Max: 1 << 20, About: "iterations that a worker may be ahead of the slowest (s)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		p := modes.ASGD(j.Workers)
		p.MaxLead = v.Whole("slack", 3) + 1
		return Made{Plan: p}, nil
	},
}

// backup drops the gradients of the last few workers of each update.
//
// J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz: Revisiting Distributed Synchronous SGD. arXiv 1604.00981, 2016.
var backup = Entry{
	Name:  "backup",
	Paper: "Chen, Pan, Monga, Bengio, Jozefowicz, 2016",
	About: "SSGD that waits for all but b workers, and drops late gradients",
	Settings: []Setting{
		{Name: "b", Default: "1", Source: "ours", Kind: Whole, Min: 0, Max: 1 << 16, About: "workers that are not waited for"},
		blocks,
	},
	Ring: true,
	Make: func(j Job, v Values) (Made, error) {
		b := min(v.Whole("b", 1), j.Workers)
		if b >= j.Workers {
			return Made{}, fmt.Errorf("b=%s: fewer than the %d workers", v["b"], j.Workers)
		}
		return parts(j, v, modes.Backup(j.Workers, b))
	},
}

// ksync is backup with the number of workers that are waited for as its setting. The other workers get a stop:
// after their present block they continue with the new parameters, and their gradient is dropped.
//
// S. Dutta, G. Joshi, S. Ghosh, P. Dube, P. Nagpurkar: Slow and Stale Gradients Can Win the Race. AISTATS 2018.
var ksync = Entry{
	Name:  "k-sync",
	Paper: "Dutta, Joshi, Ghosh, Dube, Nagpurkar, AISTATS 2018",
	About: "each update is of the first K gradients on its parameters; the others are dropped",
	Settings: []Setting{
		{Name: "k", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "gradients of an update (K); three quarters of the workers if unset"},
		stops,
	},
	Ring: true,
	Make: func(j Job, v Values) (Made, error) {
		k, err := most(j, v)
		if err != nil {
			return Made{}, err
		}
		return cancelled(j, v, modes.Backup(j.Workers, j.Workers-k))
	},
}

// kasync uses late gradients in a later update.
var kasync = Entry{
	Name:     "k-async",
	Paper:    ksync.Paper,
	About:    "each update is of the first K gradients, on any parameters: static x-order",
	Settings: []Setting{ksync.Settings[0], blocks},
	Ring:     true,
	Make: func(j Job, v Values) (Made, error) {
		k, err := most(j, v)
		if err != nil {
			return Made{}, err
		}
		return parts(j, v, modes.XOrder(j.Workers, k))
	},
}

// kbatchSync makes updates of the first K gradients on the same parameters. A fast worker may send several of them.
var kbatchSync = Entry{
	Name:  "k-batch-sync",
	Paper: ksync.Paper,
	About: "each update is of the first K gradients on its parameters, some perhaps of the same worker; the others are dropped",
	Settings: []Setting{
		{Name: "k", Source: "ours", Kind: Whole, Min: 1, Max: 4096, About: "gradients of an update (K); the number of workers if unset"},
		stops,
	},
	Make: func(j Job, v Values) (Made, error) {
		return cancelled(j, v, modes.Batches(j.Workers, v.Whole("k", j.Workers), true))
	},
}

// kbatchAsync uses late gradients in a later update.
var kbatchAsync = Entry{
	Name:     "k-batch-async",
	Paper:    ksync.Paper,
	About:    "each update is of K gradients, on any parameters; no worker waits",
	Settings: kbatchSync.Settings[:1],
	Make: func(j Job, v Values) (Made, error) {
		return Made{Plan: modes.Batches(j.Workers, v.Whole("k", j.Workers), false)}, nil
	},
}

// stops is the setting of the schemes of Dutta et al. that cancel late gradients.
var stops = Setting{Name: "blocks", Source: "ours", Kind: Whole, Min: 1, Max: 4096,
	About: "parts of a mini-batch; a straggler can stop after each; 1: with servers it finishes; if unset 8, or the number of samples if that is less"}

// blocks is for all-reduce only: with servers a computing straggler delays no other worker, and these schemes use its
// gradient, or do not cancel it.
var blocks = Setting{Name: "blocks", Source: "ours", Kind: Whole, Min: 1, Max: 4096,
	About: "parts of a mini-batch; a straggler of an all-reduce can stop after each; if unset 8 there, or the number of samples if that is less"}

// parts cuts mini-batches into blocks where p runs on an all-reduce.
func parts(j Job, v Values, p modes.Plan) (Made, error) {
	if !j.Ring {
		if v["blocks"] != "" {
			return Made{}, fmt.Errorf("blocks=%s: only for all-reduce, because with servers a straggler delays no other worker: remove it", v["blocks"])
		}
		return Made{Plan: p}, nil
	}
	return cut(j, v, p)
}

// cut is p with mini-batches in blocks.
func cut(j Job, v Values, p modes.Plan) (Made, error) {
	p.Micro, p.ComputeDeadline = v.Whole("blocks", min(8, j.Batch)), modes.NoDeadline
	if p.Micro > j.Batch {
		return Made{}, fmt.Errorf("blocks=%d: a mini-batch has %d samples", p.Micro, j.Batch)
	}
	return Made{Plan: p}, nil
}

// cancelled is p with mini-batches in blocks. A worker that misses an update stops after its present block. In an
// all-reduce the blocks alone close rounds.
func cancelled(j Job, v Values, p modes.Plan) (Made, error) {
	if !j.Ring && v.Whole("blocks", 0) == 1 {
		return Made{Plan: p}, nil
	}
	m, err := cut(j, v, p)
	m.Cancel = !j.Ring
	return m, err
}

func most(j Job, v Values) (k int, err error) {
	k = v.Whole("k", (3*j.Workers+3)/4)
	if k > j.Workers {
		return j.Workers, fmt.Errorf("k=%d: at most the %d workers", k, j.Workers)
	}
	return k, nil
}
