package flightrecorder

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		push := Open("worker 2", "parameters of version", "shard", "")
		defer push.Close()
		release := Open("worker 2", "its release", "", "--dead-after 15s")
		defer release.Close()
		idle := Open("idle", "nothing", "", "")
		defer idle.Close()
		many := Open("ring", "the sum of operation", "rank", "")
		defer many.Close()

		release.Begin(-1, 0)
		time.Sleep(90 * time.Second)
		push.Begin(41, 30*time.Second, 0, 3)
		time.Sleep(1500 * time.Millisecond)
		many.Begin(7, time.Minute, 0, 4095, 2, 3, 4)
		many.Say("2 of 3 steps done")
		idle.Begin(1, time.Second)
		idle.End()
		var b strings.Builder
		if err := Write(&b, 10); err != nil {
			t.Fatal(err)
		}
		const want = `1m32s    worker 2: waits for its release, until --dead-after 15s
1.5s     worker 2: waits for parameters of version 41 of shard 0, 3, at most 30s
0s       ring: waits for the sum of operation 7 of rank 0, 4095, 2, others (2 of 3 steps done), at most 1m0s
`
		if b.String() != want {
			t.Errorf("got\n%swant\n%s", b.String(), want)
		}
		b.Reset()
		Write(&b, 1)
		if got := b.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "… and 2 more") {
			t.Errorf("in one line:\n%s", got)
		}
		push.End()
		release.End()
		many.Close()
		many.Close()
		b.Reset()
		Write(&b, 10)
		if b.String() != "no goroutine waits\n" {
			t.Errorf("got\n%s", b.String())
		}
		var none *Site
		none.Begin(1, 1, 1)
		none.SetPeers(1)
		none.Say("x")
		none.End()
		none.Close()
	})
}

// Sites come and go, and are listed meanwhile.
func TestRace(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				s := Open("x", "y", "worker", "")
				s.Begin(1, 0, i)
				List()
				s.Say("z")
				s.End()
				s.Close()
			}
		})
	}
	wg.Wait()
	if n := len(List()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestAllocations(t *testing.T) {
	s := Open("x", "y", "worker", "")
	defer s.Close()
	if n := testing.AllocsPerRun(100, func() { s.Begin(1, time.Second, 1, 2, 3); s.SetPeers(2); s.End() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWait(b *testing.B) {
	s := Open("x", "y", "worker", "")
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		s.Begin(1, time.Second, 3)
		s.End()
	}
}
