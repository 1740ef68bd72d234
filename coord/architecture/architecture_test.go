package architecture

import (
	"strings"
	"testing"

	"star"
	"star/coord/config"
	"star/coord/engine"
	"star/coord/said"
	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// What the two architectures decide differently.
func TestArchitectures(t *testing.T) {
	with := Of(&config.Config{})
	ring := Of(&config.Config{Ring: &config.RingConfig{Rule: "sgd", RuleOf: func(e session.Enrolment) string { return e.Data }}})
	if !with.Sharded() || ring.Sharded() || !with.Planted() || ring.Planted() {
		t.Error("which has shards and trees")
	}
	says := func(what string, err error, words string) {
		t.Helper()
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", what, err, words)
		}
	}
	says("copies", with.Check(&config.Config{Servers: 3, Coordinators: 1, Replicas: 3}), "as many star-ps, not 2")
	says("enough servers", with.Check(&config.Config{Servers: 3, Coordinators: 1, Replicas: 2}), "")
	says("a validator in a ring", ring.Check(&config.Config{Validation: new(config.Validation)}), "no servers to validate")
	tree, err := modes.Parse("tree=0(1)", 2)
	if err != nil {
		t.Fatal(err)
	}
	says("a tree", with.Fits(tree), "")
	says("a tree in a ring", ring.Fits(tree), "all-reduce")
	says("parts of batches", ring.Replaceable(modes.Plan{Micro: 2}), "--coordinators")
	says("parts of batches with servers", with.Replaceable(modes.Plan{Micro: 2}), "")
	for _, c := range []struct {
		arch Architecture
		addr string
		e    session.Enrolment
		says string
	}{
		{with, "a:1", session.Enrolment{}, ""},
		{with, "a:1", session.Enrolment{Rule: "sgd"}, "architecture is ps, the worker's allreduce"},
		{ring, "a:1,a:2", session.Enrolment{Rule: "m", Data: "m"}, ""},
		{ring, "a:1,a:2", session.Enrolment{Data: "m"}, "architecture is allreduce, the worker's ps"},
		{ring, "a:1,a:2", session.Enrolment{Rule: "n", Data: "m"}, `the job says "m", the worker "n"`},
		{ring, "a:1", session.Enrolment{Rule: "m", Data: "m"}, "two addresses"},
	} {
		says(c.addr, c.arch.Enrols(wire.Hello{Addr: c.addr}, c.e), c.says)
	}
	replaceable := config.Config{Coordinators: 2}
	if with.MinWorkers(&replaceable) != 1 || ring.MinWorkers(&replaceable) != 0 {
		t.Error("how many workers a job needs that can be taken over")
	}
	if got := ring.Spec(modes.Ring(5, 1, 3)); got != "ring-minus=1,3" {
		t.Errorf("a ring with riders is %q", got)
	}
	for kind, of := range map[wire.Kind]Architecture{wire.KindBundle: ring, wire.KindFormed: with, wire.KindTally: with, wire.KindHello: ring} {
		_, err := of.Reported(nil, &said.Message{Kind: kind})
		says(kind.String(), err, "unexpected frame")
	}
	g := engine.Config{Workers: 2, Shards: 1, Batch: 4, Limit: 40, Plan: modes.SSGD(2)}
	if _, ok := with.Engine(g, func(w star.Worker) bool { return w == 1 }, 0).(engine.ShardEngine); !ok {
		t.Error("no engine with shards")
	}
	g.Shards = 0
	if _, ok := ring.Engine(g, nil, 2).(engine.RingEngine); !ok {
		t.Error("no engine of a ring")
	}
}
