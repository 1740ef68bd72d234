package watch

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"star/cluster/resource/host"
)

// A rank that is stopped in its exchange does not wait for others, they wait for it.
func TestStops(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(seconds(s)) }
	if d := within(host.Span{From: at(1), To: at(3)}, at(2), at(4)); d != time.Second {
		t.Errorf("1 to 3 s is %v within 2 to 4 s, want 1 s", d)
	}
	if d := within(host.Span{From: at(1), To: at(2)}, at(3), at(4)); d != 0 {
		t.Errorf("1 to 2 s is %v within 3 to 4 s, want 0", d)
	}

	rank := exec.Command("sleep", "100")
	if err := rank.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { rank.Process.Kill(); rank.Wait() }()
	p := &sender{sampler: host.Start(host.Config{PID: rank.Process.Pid, Heartbeat: time.Millisecond})}
	defer p.sampler.Close()
	rank.Process.Signal(syscall.SIGSTOP)
	// The rank's clock reads 100 s now. Its steps are nothing but exchange.
	began, last := time.Now(), 100.0
	for stopped, waited := 0.0, 0.0; stopped < 0.1; {
		time.Sleep(20 * time.Millisecond)
		now := 100 + time.Since(began).Seconds()
		row := Row{Kind: "step", Took: now - last, Wait: now - last, At: now, From: last}
		share := p.stops(&row, began.Add(seconds(now-100)))
		if share < 0 || share > 1 || row.At != 0 || row.From != 0 {
			t.Fatalf("stopped for %v of a step, %+v is left", share, row)
		}
		stopped, waited, last = stopped+share*(now-last), waited+row.Wait, now
		if sum := stopped + waited; sum > 1.001*(now-100) || sum < 0.999*(now-100) {
			t.Fatalf("%v s were a stop and %v s waits, of %v s", stopped, waited, now-100)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it was stopped for a minute, and nobody saw that")
		}
	}
}
