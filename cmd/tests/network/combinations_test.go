package network

import (
	"slices"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/job/combinations"
)

// choice is one value of an axis: what is asked for, and what it means in the table.
type choice struct {
	args []string
	set  combinations.Set
}

// axes are what jobs of TestPairs are made of; the first choice of each is the plain one.
func axes(t *testing.T) [][]choice {
	of := combinations.Of
	_, flags := madeCerts(t, "127.0.0.1")
	return [][]choice{
		{{[]string{"--shards", "2"}, 0}, {[]string{"--arch", "allreduce"}, of(combinations.AllReduce)}},
		{{nil, 0}, {[]string{"--replicas", "2"}, of(combinations.Copies)}},
		{{nil, 0}, {[]string{"--coordinators", "3"}, of(combinations.Coordinators)}},
		{
			{nil, 0}, {[]string{"--compress", "fp16"}, of(combinations.Codec)}, {[]string{"--compress", "int8"}, of(combinations.Codec, combinations.Lossy)},
			{[]string{"--compress", "topk=0.1"}, of(combinations.Codec, combinations.Lossy)}, {[]string{"--compress", "int2"}, of(combinations.Codec, combinations.Lossy)}, {[]string{"--compress", "powersgd=1"}, of(combinations.Codec, combinations.Lossy)},
		},
		{
			{[]string{"--mode", "ssgd"}, 0}, {[]string{"--mode", "tree=0(1,2)"}, of(combinations.Tree)},
			{[]string{"--mode", "ssgd local=4"}, of(combinations.Parts, combinations.Strides)}, {[]string{"--mode", "ssgd local=4 outer=nesterov(0.5,0.7)"}, of(combinations.Parts, combinations.Outward)},
			{[]string{"--baseline", "backup"}, of(combinations.Baseline, combinations.Fixed)},
			{[]string{"--baseline", "lb-bsp"}, of(combinations.Baseline, combinations.Deciding)},
			{[]string{"--baseline", "dc-asgd"}, of(combinations.Baseline, combinations.OwnRule, combinations.ServersOnly)},
			{[]string{"--baseline", "local-sgd"}, of(combinations.Baseline, combinations.OwnSteps, combinations.Parts)},
		},
		{{nil, 0}, {flags("127.0.0.1"), 0}},
	}
}

// allowed says whether a job of these choices may be; -1 is the plain one.
func allowed(axes [][]choice, at []int) bool {
	var s combinations.Set
	for i, c := range at {
		s |= axes[i][max(c, 0)].set
	}
	if s.Has(combinations.AllReduce, combinations.Fixed) { // their workers stop between parts there
		s |= combinations.Of(combinations.Parts)
	}
	return combinations.Check(s) == nil
}

// covering is few jobs in which each pair of choices is that is allowed with all else plain.
func covering(axes [][]choice) (jobs [][]int) {
	type pair struct{ i, a, j, b int }
	left := map[pair]bool{}
	var order []pair
	for i := range axes {
		for j := i + 1; j < len(axes); j++ {
			for a := range axes[i] {
				for b := range axes[j] {
					at := make([]int, len(axes))
					at[i], at[j] = a, b
					if allowed(axes, at) {
						p := pair{i, a, j, b}
						left[p] = true
						order = append(order, p)
					}
				}
			}
		}
	}
	news := func(at []int) (n int) {
		for p := range left {
			if at[p.i] == p.a && at[p.j] == p.b {
				n++
			}
		}
		return n
	}
	for _, p := range order {
		if !left[p] {
			continue
		}
		at := slices.Repeat([]int{-1}, len(axes))
		at[p.i], at[p.j] = p.a, p.b
		for i := range at {
			if at[i] >= 0 {
				continue
			}
			best, most := 0, -1
			for c := range axes[i] {
				if at[i] = c; allowed(axes, at) && news(at) > most {
					best, most = c, news(at)
				}
			}
			at[i] = best
		}
		for p := range left {
			if at[p.i] == p.a && at[p.j] == p.b {
				delete(left, p)
			}
		}
		jobs = append(jobs, at)
	}
	return jobs
}

// Each pair of architecture, copies, coordinators, codec, mode or baseline, and TLS that is allowed trains, in one of
// some twenty small jobs.
func TestPairs(t *testing.T) {
	if testing.Short() {
		t.Skip("some twenty jobs")
	}
	all := axes(t)
	for _, at := range covering(all) {
		var args []string
		for i, c := range at {
			args = append(args, all[i][c].args...)
		}
		name := strings.Join(args, " ")
		if i := strings.Index(name, "--tls-cert"); i >= 0 {
			name = name[:i] + "--tls"
		}
		t.Run(name, func(t *testing.T) {
			r, _ := jobtest.Run(t, append([]string{"--workers", "3", "--model", "softmax", "--batch", "16", "--samples", "2400", "--eval-every", "0", "--optimizer", "sgd", "--lr", "0.05"}, args...)...)
			if r.Samples+r.Wasted < 2400 || r.TestAccuracy < 0.3 {
				t.Errorf("%+v", r)
			}
		})
	}
}
