package auto

import (
	"testing"
	"time"

	"star/modes"
)

// What was refused is not in force, and is left alone for a while, longer each time.
func TestRefused(t *testing.T) {
	c, err := New(Config{Workers: 4, Batch: 32}, modes.ASGD(4))
	if err != nil {
		t.Fatal(err)
	}
	c.Refused(time.Minute, modes.ASGD(4), modes.SSGD(4))
	if !c.Plan().Equal(modes.SSGD(4)) {
		t.Errorf("the plan in force is %v", c.Plan())
	}
	for _, k := range []struct {
		at     time.Duration
		banned bool
	}{{89 * time.Second, true}, {91 * time.Second, false}} {
		if got := c.trials.isBanned(k.at, modes.ASGD(4)); got != k.banned {
			t.Errorf("at %v: %v", k.at, got)
		}
		if c.trials.isBanned(k.at, modes.XOrder(4, 3)) {
			t.Errorf("at %v another plan is left alone, too", k.at)
		}
	}
	queue, shares, others := modes.SSGD(4), modes.SSGD(4), modes.SSGD(4)
	queue.Queue, shares.Shares, others.Shares = 8, []int{32, 32, 40, 24}, []int{32, 32, 24, 40}
	c.Refused(100*time.Second, queue, modes.SSGD(4))
	if !c.trials.isBanned(101*time.Second, queue) || c.trials.isBanned(101*time.Second, shares) || c.trials.isBanned(101*time.Second, modes.SSGD(4)) {
		t.Error("a queue is left alone, and nothing else of the same groups")
	}
	c.Refused(100*time.Second, shares, modes.SSGD(4))
	if !c.trials.isBanned(101*time.Second, others) || c.trials.isBanned(101*time.Second, modes.SSGD(4)) {
		t.Error("shares are left alone whatever they are, and equal ones are not")
	}
	c.Refused(2*time.Minute, modes.ASGD(4), modes.SSGD(4))
	if !c.trials.isBanned(175*time.Second, modes.ASGD(4)) || c.trials.isBanned(185*time.Second, modes.ASGD(4)) {
		t.Error("the second time is not twice as long")
	}
}
