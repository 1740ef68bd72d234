package whatif

import (
	"testing"
	"time"
)

// A job that went over to a queue has shown that a part costs a tenth of an iteration by itself: a share of 10 samples
// in one part takes 100 ms, 10 samples in 5 parts took 140.
func TestPartsOfALog(t *testing.T) {
	for _, tell := range []bool{true, false} {
		l := begin("ps", "ssgd", 2)
		at := 1.0
		for k := range 40 {
			compute, parts := "0.1", "1"
			if k >= 20 {
				compute, parts = "0.14", "5"
			}
			if !tell {
				parts = "null"
			}
			for w := range 2 {
				l.record(at+0.2, w, k, k, `,"compute":`+compute+`,"telemetry":{"parts":`+parts+`}`)
			}
			at += 0.21
			l.fire(at, k+1, 20*(k+1), "0,1", "0,0")
		}
		r, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		times, err := r.Times(nil)
		if err != nil {
			t.Fatal(err)
		}
		none, whole := 10*ms, 100*ms
		if !tell {
			none, whole = 0, 140*ms
		}
		if got := times.Spend(1, 30, 0, 0).Compute.Round(ms); got != none {
			t.Errorf("told: %v: a part by itself costs %v, want %v", tell, got, none)
		}
		if got := times.Spend(1, 30, 0, 1).Compute.Round(ms); got != whole {
			t.Errorf("told: %v: an equal share in one part takes %v, want %v", tell, got, whole)
		}
		if got, want := times.Spend(1, 30, 0, 0.5).Compute.Round(time.Millisecond), (none+whole)/2; got != want {
			t.Errorf("told: %v: half a share in one part takes %v, want %v", tell, got, want)
		}
	}
}
