package modes

import (
	"testing"
	"time"
)

// What was refused is not in force, and is left alone for a while, longer each time.
func TestRefused(t *testing.T) {
	c, err := NewController(ControllerConfig{Workers: 4, Batch: 32}, ASGD(4))
	if err != nil {
		t.Fatal(err)
	}
	c.Refused(time.Minute, ASGD(4), SSGD(4))
	if !c.Plan().Equal(SSGD(4)) {
		t.Errorf("the plan in force is %v", c.Plan())
	}
	for _, k := range []struct {
		at     time.Duration
		banned bool
	}{{89 * time.Second, true}, {91 * time.Second, false}} {
		if got := c.isBanned(k.at, ASGD(4)); got != k.banned {
			t.Errorf("at %v: %v", k.at, got)
		}
		if c.isBanned(k.at, XOrder(4, 3)) {
			t.Errorf("at %v another plan is left alone, too", k.at)
		}
	}
	queue, shares, others := SSGD(4), SSGD(4), SSGD(4)
	queue.Queue, shares.Shares, others.Shares = 8, []int{32, 32, 40, 24}, []int{32, 32, 24, 40}
	c.Refused(100*time.Second, queue, SSGD(4))
	if !c.isBanned(101*time.Second, queue) || c.isBanned(101*time.Second, shares) || c.isBanned(101*time.Second, SSGD(4)) {
		t.Error("a queue is left alone, and nothing else of the same groups")
	}
	c.Refused(100*time.Second, shares, SSGD(4))
	if !c.isBanned(101*time.Second, others) || c.isBanned(101*time.Second, SSGD(4)) {
		t.Error("shares are left alone whatever they are, and equal ones are not")
	}
	c.Refused(2*time.Minute, ASGD(4), SSGD(4))
	if !c.isBanned(175*time.Second, ASGD(4)) || c.isBanned(185*time.Second, ASGD(4)) {
		t.Error("the second time is not twice as long")
	}
}
