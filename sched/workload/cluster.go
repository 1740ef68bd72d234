package workload

import (
	"fmt"
	"io"

	"star/sched"
)

// Clusters reads a cluster file: of ElasticFlow or Muri (num_switch, num_node_p_switch and num_gpu_p_node, in one
// line), which is one cluster for all jobs, with the name ""; or the virtual clusters of Lucid (names, and num nodes of
// 8 GPUs). The header decides.
func Clusters(r io.Reader) (map[string]sched.Cluster, error) {
	t := newTable(r)
	if t.has("num") {
		return t.virtualClusters()
	}
	var c sched.Cluster
	t.need("num_switch", "num_node_p_switch", "num_gpu_p_node")
	if t.next() {
		switches, nodes := t.whole("num_switch", 1), t.whole("num_node_p_switch", 1)
		if c = (sched.Cluster{Nodes: switches * nodes, GPUs: t.whole("num_gpu_p_node", 1)}); switches > 1 {
			c.Switch = nodes
		}
		if c.GPUs > 64 {
			t.fail(t.line, "num_gpu_p_node is %d: want 64 at most", c.GPUs)
		}
	} else {
		t.fail(2, "want a line with the numbers")
	}
	if t.next() {
		t.fail(t.line, "there is a cluster in the line before: want one")
	}
	return map[string]sched.Cluster{"": c}, t.err
}

// virtualClusters reads Lucid's clusters, with 8 GPUs per node.
func (t *table) virtualClusters() (map[string]sched.Cluster, error) {
	t.need("", "num")
	vcs := map[string]sched.Cluster{}
	for t.next() {
		name := t.text("")
		if _, twice := vcs[name]; twice {
			t.fail(t.line, "virtual cluster %q occurs twice: remove one", name)
		}
		vcs[name] = sched.Cluster{Nodes: t.whole("num", 1), GPUs: 8}
	}
	return vcs, t.err
}

// Short parses the short form of a cluster: n16g8 is 16 nodes of 8 GPUs, 5gpu+3cpu is 5 machines with a GPU and 3
// without. ok is false for other texts.
func Short(text string) (c sched.Cluster, ok bool) {
	var rest string
	if n, _ := fmt.Sscanf(text+" .", "%dgpu+%dcpu %s", &c.Nodes, &c.Plain, &rest); n == 3 && rest == "." && c.Nodes >= 0 && c.Plain >= 0 && c.Nodes+c.Plain > 0 {
		c.GPUs = 1
		return c, true
	}
	c = sched.Cluster{}
	n, _ := fmt.Sscanf(text+" .", "n%dg%d %s", &c.Nodes, &c.GPUs, &rest)
	return c, n == 3 && rest == "." && c.Nodes > 0 && c.GPUs > 0 && c.GPUs <= 64
}
