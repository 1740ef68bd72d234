package workload

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"star/sched"
)

// TestShort has short forms of clusters, and invalid ones.
func TestShort(t *testing.T) {
	for text, want := range map[string]sched.Cluster{"5gpu+3cpu": {Nodes: 5, GPUs: 1, Plain: 3}, "0gpu+1cpu": {GPUs: 1, Plain: 1}, "n2g8": {Nodes: 2, GPUs: 8}, "n1g64": {Nodes: 1, GPUs: 64}} {
		if c, ok := Short(text); !ok || c != want {
			t.Errorf("%q is %v %v", text, c, ok)
		}
	}
	for _, text := range []string{"0gpu+0cpu", "5gpu", "5gpu+", "-1gpu+2cpu", "5gpu+3cpux", "n2g8+1cpu", "n1g65", "n0g8", "n2g0", "n-1g8", "n2g8x"} {
		if c, ok := Short(text); ok {
			t.Errorf("%q is %v", text, c)
		}
	}
}

// TestClusters has both kinds of files, and what is wrong in them.
func TestClusters(t *testing.T) {
	const one, vcs = "num_switch,num_node_p_switch,num_gpu_p_node\n", ",num\n"
	for text, want := range map[string]map[string]sched.Cluster{
		one + "2,4,64\n":       {"": {Nodes: 8, GPUs: 64, Switch: 4}},
		vcs + "vcA,3\nvcB,1\n": {"vcA": {Nodes: 3, GPUs: 8}, "vcB": {Nodes: 1, GPUs: 8}},
	} {
		if got, err := Clusters(strings.NewReader(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		one:                               "line 2: want a line with the numbers",
		one + "1,2,8\n1,2,8\n":            "line 3: there is a cluster in the line before: want one",
		one + "1,1,65\n":                  "line 2: num_gpu_p_node is 65: want 64 at most",
		one + "0,1,8\n":                   `line 2: num_switch is "0": want a number of at least 1`,
		one + "1,1.5,8\n":                 "line 2: num_node_p_switch is 1.5: want a whole number",
		vcs + "a,1\na,2\n":                `line 3: virtual cluster "a" occurs twice`,
		vcs + "a,0\n":                     `line 2: num is "0": want a number of at least 1`,
		"name,num\na,1\n":                 `line 1: column "" is missing`,
		"num_switch\n1\n":                 `line 1: column "num_node_p_switch" is missing`,
		one + "1,1,1000000000000000000\n": "want 1e+15 at most",
	} {
		if _, err := Clusters(strings.NewReader(text)); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
