package workload

import (
	"io"
	"maps"
	"slices"

	"star/sched"
)

// ReadSlow reads when nodes are slow: node (from 0), from and to (s of the trace's clock), factor (the slowdown), and
// vc if there are several virtual clusters.
func ReadSlow(r io.Reader, vcs map[string]sched.Cluster) (map[string][]sched.Spell, error) {
	t := newTable(r)
	t.need("node", "from", "to", "factor")
	spells := map[string][]sched.Spell{}
	for t.next() {
		x := sched.Spell{Node: t.whole("node", 0), From: t.number("from", 0), To: t.number("to", 0), Factor: t.number("factor", 1)}
		c, ok := vcs[t.text("vc")]
		switch {
		case !ok:
			t.fail(t.line, "unknown virtual cluster %q: want one of --cluster", t.text("vc"))
		case x.Node >= c.Nodes:
			t.fail(t.line, "node is %d: the cluster has %d, the first one is 0", x.Node, c.Nodes)
		case x.To <= x.From:
			t.fail(t.line, "to is %v: want a time after from, %v", x.To, x.From)
		}
		spells[t.text("vc")] = append(spells[t.text("vc")], x)
	}
	return spells, t.err
}

// Disturbed returns the period in which nodes are slow or absent at random, s: from the first submission until 100 days
// after the last one.
func Disturbed(jobs []*sched.Job) (from, until float64) {
	from = never
	for _, j := range jobs {
		from, until = min(from, j.Submit), max(until, j.Submit)
	}
	return from, until + 100*86400
}

// RandomSlow makes nodes slow at random times in the period Disturbed. random returns the numbers for a node of a
// virtual cluster.
func RandomSlow(vcs map[string]sched.Cluster, jobs []*sched.Job, random func(vc string, node int) sched.Random) map[string][]sched.Spell {
	first, until := Disturbed(jobs)
	spells := map[string][]sched.Spell{}
	for _, vc := range slices.Sorted(maps.Keys(vcs)) {
		spells[vc] = sched.RandomSpells(vcs[vc].Nodes, first, until, func(node int) sched.Random { return random(vc, node) })
	}
	return spells
}
