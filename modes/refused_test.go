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
	c.Refused(2*time.Minute, ASGD(4), SSGD(4))
	if !c.isBanned(175*time.Second, ASGD(4)) || c.isBanned(185*time.Second, ASGD(4)) {
		t.Error("the second time is not twice as long")
	}
}
