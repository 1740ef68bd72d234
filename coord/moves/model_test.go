package moves

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star/transport/wire"
)

// Whatever servers say, and in any order: the old server keeps the shard, or the new one gets it, never both
// and never neither; orders that are held are carried out exactly once; and a move always ends.
func TestMoverModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Mover
		var now time.Time
		var oldServes, newServes, still, lost, prepared bool
		held, routed := 0, 0
		oldServes = true
		do := func(effects []Effect) {
			for _, e := range effects {
				var msg any = e
				switch e := e.(type) {
				case Adopt:
					msg = e.Stage
				case Hand:
					msg = e.Stage
				}
				switch msg {
				case wire.Give:
					if still || newServes {
						t.Fatal("given twice, or after it was owned")
					}
					still, held = true, held+1
				case wire.Own:
					if !still || newServes {
						t.Fatal("owned before everything was there")
					}
					newServes = true
				case wire.Gone:
					if !newServes {
						t.Fatal("gone before it was owned")
					}
					oldServes, still = false, false
				case wire.Keep:
					if !still || newServes {
						t.Fatal("kept without having been given")
					}
					still = false
				case Route{3, 2}:
					if oldServes || !newServes {
						t.Fatal("workers are told before it is owned")
					}
					routed++
				case Resume{}:
					if held--; held != 0 || still || oldServes == newServes {
						t.Fatalf("fired with held %d, still %v, old %v, new %v", held, still, oldServes, newServes)
					}
				case wire.Forget:
					if newServes {
						t.Fatal("forgotten after it was owned")
					}
				}
				switch e := e.(type) {
				case Ended:
					if e.Err != "" && (!oldServes || newServes) {
						t.Fatal("failed, and yet it is elsewhere")
					}
				case Lost:
					lost = true
				}
			}
			if (held > 0) != m.Holds() {
				t.Fatalf("%d held, and holds says %v", held, m.Holds())
			}
		}
		do(m.Begin(now, Job{ShardInfo: wire.ShardInfo{Shard: 3}, Source: 1, Target: 2}))
		saving := rapid.Bool().Draw(t, "saving")
		for i := 0; i < 40 && m.stage != idle && !lost; i++ {
			switch rapid.IntRange(0, 39).Draw(t, "what") {
			case 0:
				do(m.fail("why"))
			case 1:
				server := rapid.IntRange(0, 3).Draw(t, "lost")
				was, stage := server == 1 || server == 2, m.stage
				do(m.Gone(server, errors.New("why")))
				if was && m.stage == stage || !was && m.stage != stage {
					t.Fatalf("the loss of server %d took the move from %d to %d", server, stage, m.stage)
				}
			case 2:
				saving = !saving
				stage := m.stage
				do(m.Tick(now, saving))
				if m.stage != stage && (saving || !prepared) {
					t.Fatal("sent while it is saved, or before there is room for it")
				}
			default:
				msg := wire.Moved{
					Move: rapid.SampledFrom([]int64{1, 1, 1, 0, 2}).Draw(t, "move"), Shard: 3,
					Stage: rapid.SampledFrom([]wire.MovedStage{wire.Prepared, wire.Loaded, wire.Complete}).Draw(t, "stage"),
				}
				if rapid.IntRange(0, 19).Draw(t, "err") == 0 {
					msg.Err = "no"
				}
				server, stage := rapid.SampledFrom([]int{2, 2, 2, 1}).Draw(t, "server"), m.stage
				do(m.Said(now, server, msg, saving))
				if (server != 2 || msg.Move != 1) && m.stage != stage {
					t.Fatalf("server %d moved it with %+v", server, msg)
				}
				if msg.Err == "" && m.stage != stage && m.stage != stage+1 && m.stage != idle {
					t.Fatalf("from %d to %d", stage, m.stage)
				}
				if stage == preparing && m.stage == copying && saving {
					t.Fatal("sent while it is saved")
				}
				if server == 2 && msg.Move == 1 && msg.Stage == wire.Prepared {
					prepared = true
				}
				if stage == routing && m.stage == idle && !lost && msg.Stage != wire.Complete {
					t.Fatal("complete before it was said")
				}
			}
		}
		for i := 0; m.stage != idle; i++ { // in the end all its messages arrive
			if i > 3 {
				t.Fatalf("does not end in stage %d", m.stage)
			}
			do(m.Tick(now, false))
			for s := wire.Prepared; s <= wire.Complete; s++ {
				do(m.Said(now, 2, wire.Moved{Move: 1, Shard: 3, Stage: s}, false))
			}
		}
		if held != 0 || still || !lost && oldServes == newServes || newServes != (routed == 1) {
			t.Fatalf("at the end: held %d, still %v, old %v, new %v, routed %d, lost %v", held, still, oldServes, newServes, routed, lost)
		}
	})
}
