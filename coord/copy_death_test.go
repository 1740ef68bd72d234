package coord

import (
	"slices"
	"sync"
	"testing"
	"time"

	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// TestServerDiesWhileItGetsACopy loses the target of a copy while an order is held and another gradient lacks only the
// target's slice. The loss makes that gradient whole. Its firing must come after the held one, which has a lower
// number.
func TestServerDiesWhileItGetsACopy(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Plan: modes.ASGD(2), Steps: 30}, func(w *world) {
		source := w.server(0, 1, false)
		first := w.server(1, 1, false)
		var mu sync.Mutex
		var target *fakeServer
		pushes, arrived := 0, 0
		between := func(phase string, _ wire.Release) bool {
			mu.Lock()
			defer mu.Unlock()
			source.mu.Lock()
			lent := slices.Contains(source.hands, wire.Lend)
			source.mu.Unlock()
			switch {
			case !lent || arrived > 1:
			case phase == "computed":
				if pushes++; pushes == 1 { // only of the first gradient the target has its slice, too
					target.mu.Lock()
					target.own = []int{0}
					target.mu.Unlock()
				}
			case phase == "pushed":
				target.mu.Lock()
				target.own = nil
				target.mu.Unlock()
			case phase == "arrived":
				if arrived++; arrived == 2 {
					w.wg.Go(func() {
						time.Sleep(50 * time.Millisecond)
						target.m.Close()
					})
				}
			}
			return false
		}
		for rank := range 2 {
			w.worker(rank, func(f *fakeWorker) {
				f.dies, f.pace = between, time.Second+time.Duration(rank)*300*time.Millisecond
			})
		}
		time.Sleep(3500 * time.Millisecond)
		first.m.Close()
		<-first.gone
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		target = w.server(1, 0, false)
		target.moving = func(id int64, stage wire.AdoptStage) {
			if stage == wire.Prepare {
				session.Say(target.m, wire.Moved{Move: id, Shard: 0, Stage: wire.Prepared}, nil)
			}
		}
		mu.Unlock()
		w.finished(5 * time.Minute)
		if w.err != nil {
			t.Errorf("the job ended with %v; the source with %v", w.err, source.last)
		}
		if arrived != 2 {
			t.Fatalf("%d gradients arrived while the copy was sent, want 2", arrived)
		}
		if fires := source.seen(); !slices.IsSortedFunc(fires, func(a, b wire.Fire) int { return int(a.Seq - b.Seq) }) {
			var seqs []int64
			for _, f := range fires {
				seqs = append(seqs, f.Seq)
			}
			t.Errorf("the source got firings in the order %v", seqs)
		}
		w.accounted(30 * 2 * 4)
	})
}
