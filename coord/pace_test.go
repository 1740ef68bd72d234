package coord

import (
	"fmt"
	"testing"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/runlog"
	"star/transport/wire"
)

// Of three workers that are released at once the second and the third wait, if their times are
// steady, and if it is not everybody for whom everybody waits.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		mode   string
		jitter time.Duration
		beside bool
		want   string
	}{
		{"x=1", 0, false, "[0s 100ms 200ms]"},
		{"ssgd", 0, false, "[0s 100ms 0s]"}, // the last one does not wait
		{"x=1", 400 * time.Millisecond, false, "[0s 0s 0s]"},
		{"x=1", 0, true, "[0s 0s 0s]"},
		{"tree=0(1)", 0, false, "[0s 0s 0s]"},
	} {
		p, err := modes.Parse(c.mode, 3)
		if err != nil {
			t.Fatal(err)
		}
		co := &Coordinator{arch: servers{}, cfg: Config{Workers: 3, RunLog: runlog.NewWriter(nil)}, timing: timing{begun: time.Now()}, membership: membership{servers: []*peer{{at: "a"}}},
			applying: applying{engine: engine.NewShards(engine.Config{Plan: p, Workers: 3, Shards: 1, Batch: 1, Limit: 100})}, placing: placing{pacer: newPacer(3), owner: []int{0}}}
		co.pacer.took = 100 * time.Millisecond
		var rs []wire.Release
		for w := range 3 {
			at := fmt.Sprint("host", w)
			if c.beside {
				at = "a"
			}
			co.workers = append(co.workers, &peer{rank: w, at: at})
			for i := range 10 {
				co.pacer.observe(&star.Record{Worker: star.Worker(w), Compute: time.Second + time.Duration(i%2)*c.jitter})
			}
			rs = append(rs, wire.Release{Worker: star.Worker(w), Count: 1})
		}
		co.pace(rs)
		var got []time.Duration
		for _, r := range rs {
			got = append(got, r.Delay)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s, jitter %v, beside the shards %v: %v, want %s", c.mode, c.jitter, c.beside, got, c.want)
		}
	}
}
