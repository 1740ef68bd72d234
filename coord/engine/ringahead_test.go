package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"star"
	"star/modes"
	"star/transport/wire"
)

// Members of a ring with fragments know the batch of their next round, except before a change of the ring and at the
// end of the samples, when they exchange all parameters. A checkpoint has the batches ahead, too.
func TestRingFragments(t *testing.T) {
	plan := func(s string) modes.Plan {
		p, err := modes.Parse(s, 2)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	r := newRing(newShards(plan("ssgd local=6 outer=nesterov fragments=3"), 2, 0, 5, 105), wire.Ring{}) // two local steps of 5 samples for each fragment
	show := func(orders []Ready) string {
		var got []string
		for _, o := range orders {
			for _, m := range o.Rings {
				got = append(got, fmt.Sprintf("ring%d→%d", m.Msg.Generation, m.Worker))
			}
			for _, m := range o.Releases {
				s := fmt.Sprintf("%d@%d:%d+%d/%d·%d", m.Worker, m.Version, m.Start, m.Count, m.Local, m.Total)
				if m.Fragments > 0 {
					s += fmt.Sprintf(" part %d/%d ahead %v/%d", m.Fragment, m.Fragments, m.Ahead, m.AheadLocal)
				}
				got = append(got, s)
			}
		}
		return strings.Join(got, ", ")
	}
	generation := int64(1)
	made := func(version int64) string {
		var orders []Ready
		for w := range star.Worker(2) {
			o, err := r.Tally(wire.Tally{Worker: w, Generation: generation, Version: version})
			if err != nil {
				t.Fatal(err)
			}
			orders = append(orders, slices.Clone(o)...)
		}
		return show(orders)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	expect(show(r.Begin(nil)), "ring1→0, ring1→1, 0@0:0+10/2·20 part 0/3 ahead [{20 10}]/2, 1@0:10+10/2·20 part 0/3 ahead [{30 10}]/2, "+
		"0@1:20+10/2·20 part 1/3 ahead [{40 10}]/2, 1@1:30+10/2·20 part 1/3 ahead [{50 10}]/2")
	expect(fmt.Sprint(r.progress().Redo), "[{0 10} {10 10} {20 10} {30 10} {40 10} {50 10}]")
	// A batch is ahead, so before the change comes an exchange of all parameters.
	expect(show(r.Install(plan("ssgd local=4 outer=nesterov fragments=2"))), "")
	expect(made(1), "0@2:40+10/2·20, 1@2:50+10/2·20")
	expect(made(2), "ring2→0, ring2→1, 0@3:60+10/2·20 part 1/2 ahead [{80 10}]/2, 1@3:70+10/2·20 part 1/2 ahead [{90 10}]/2")
	// Too few samples are left for a batch ahead of each member.
	expect(made(3), "0@4:80+10/2·20, 1@4:90+10/2·20")
	generation = 2
	expect(made(4), "0@5:100+5/1·5, 1@5:0+0/1·5")
	made(5)
	if made(6); !r.Drained() || r.used != 105 {
		t.Errorf("%d samples applied", r.used)
	}
}
