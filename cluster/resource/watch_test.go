package resource

import (
	"math"
	"strings"
	"testing"
)

func TestWatch(t *testing.T) {
	prior := Demand{PerGradient: Usage{0.01, 1e6, 1e6}}
	capacity := Usage{4, math.Inf(1), 100e6}
	ssgd := Load{10, 40}
	for _, c := range []struct {
		name   string
		others Usage
		mode   Load
		says   string // empty: yes
	}{
		{"room", Usage{}, Load{90, 90}, ""},
		{"outgoing network", Usage{}, Load{110, 110}, "the servers would need 110 MB/s of outgoing network, now 40 MB/s, and others leave 100 MB/s of 100 MB/s"},
		{"others use the network", Usage{NetOut: 40e6}, Load{90, 90}, "others leave 60 MB/s of 100 MB/s"},
		{"others use the incoming network, of which there is no end", Usage{NetIn: 1e12}, Load{90, 90}, ""},
		{"others use processors", Usage{CPU: 3.5}, Load{90, 90}, "0.9 cores of CPU, now 0.4 cores, and others leave 0.5 cores of 4 cores"},
		{"as much as now", Usage{CPU: 4, NetOut: 100e6}, ssgd, ""},
		{"hardly more", Usage{CPU: 4, NetOut: 100e6}, Load{12, 44}, ""},
	} {
		w, err := NewWatch(prior, 4, capacity)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			others := c.others
			if i%4 == 0 {
				others = Usage{4, 4e6, 100e6} // now and then
			}
			w.Observe(ssgd, prior.At(ssgd), others)
		}
		ok, why := w.Afford(c.mode)
		if ok != (c.says == "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %v, %q; want %q", c.name, ok, why, c.says)
		}
		if (c.name == "hardly more" || c.name == "as much as now") != strings.Contains(why, "which is no more than they take now") {
			t.Errorf("%s: %q", c.name, why)
		}
	}
	w, _ := NewWatch(prior, 4, capacity)
	w.Observe(ssgd, Usage{CPU: math.NaN()}, Usage{})
	w.Observe(ssgd, Usage{}, Usage{NetIn: -1})
	if ok, why := w.Afford(Load{50, 50}); !ok || !strings.Contains(why, "0.5 cores") {
		t.Errorf("nothing measured: %v, %s", ok, why)
	}
	w.Limit(Usage{CPU: 0.25})
	if ok, why := w.Afford(Load{50, 50}); ok || !strings.Contains(why, "0.5 cores of CPU, now 0 cores, and others leave 0.25 cores") {
		t.Errorf("limited: %v, %s", ok, why)
	}
	if _, err := NewWatch(prior, 4, Usage{CPU: -1}); err == nil {
		t.Error("negative capacity")
	}
	if _, err := NewWatch(prior, 0, capacity); err == nil {
		t.Error("nobody")
	}
}
