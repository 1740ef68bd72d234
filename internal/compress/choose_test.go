package compress

import (
	"math"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	const n = 1e6
	// Round numbers: fp16 at 4 GB/s each way, int8 at 2, top-k at 1 and 100.
	all := []Candidate{{FP16, 4e9, 4e9}, {&Int8{}, 2e9, 2e9}, {NewTopShare(0.01), 1e9, 100e9}}
	for _, c := range []struct {
		name       string
		link       Link
		n          int
		candidates []Candidate
		want       string // name of the codec
		seconds    float64
		why        string
	}{
		// 100 Mbit/s: 320 ms plain, 162 with fp16, 85 with int8, 8.4 with top-k.
		{"slow link", Link{Bps: 12.5e6}, n, all, "topk=0.01", 4e6/12.5e6*float64(NewTopShare(0.01).MaxBytes(n))/4e6 + 4e-3 + 4e-5, "topk=0.01: 1000000 values at 12.5 MB/s take 8."},
		// 10 Gbit/s: 3.2 ms plain, 3.6 with fp16.
		{"fast link", Link{Bps: 1.25e9}, n, all, "", 3.2e-3, "none: 1000000 values at 1250 MB/s take 3.2 ms; fp16 would take 3.6 ms, which is not 20 % less"},
		// 4 Gbit/s: 8 ms plain, 6 with fp16, 6.03 with int8.
		{"the gentler of two that are equal", Link{Bps: 0.5e9}, n, all[:2], "fp16", 6e-3, "fp16: 1000000 values at 500 MB/s take 6 ms in place of 8 ms"},
		// 1 Gbit/s: fp16 18 ms, int8 12.1, top-k 4.5.
		{"ring", Link{Bps: 125e6, Crossings: 1.5}, n, all[:1], "fp16", 1.5*16e-3 + 2e-3, "in place of 48 ms"},
		{"many to decode", Link{Bps: 0.5e9, Decodes: 8}, n, all[:2], "", 8e-3, "none"},
		{"the last is not enough better", Link{Bps: 1e9}, n, []Candidate{{FP16, 0, 0}, {BF16, 0, 0}}, "fp16", 2e-3, "fp16: "},
		{"nothing to choose", Link{Bps: 1e6}, n, nil, "", 4, "none: there is no codec"},
		{"unknown link", Link{}, n, all, "", 0, "none: the speed of the link is not known"},
		{"unknown link", Link{Bps: math.NaN()}, n, all, "", 0, "none: the speed of the link is not known"},
		{"nothing to send", Link{Bps: 1e6}, 0, all[:2], "", 0, "none"},
	} {
		got := Choose(c.link, c.n, c.candidates)
		name := ""
		if got.Codec != nil {
			name = got.Codec.Name()
		}
		if name != c.want {
			t.Errorf("%s: %q, want %q (%s)", c.name, name, c.want, got.Why)
		}
		if !(math.Abs(got.Seconds-c.seconds) <= 1e-9+1e-6*c.seconds) {
			t.Errorf("%s: %v s, want %v", c.name, got.Seconds, c.seconds)
		}
		if !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: because %q, want %q", c.name, got.Why, c.why)
		}
	}
}

// TestChooseMargin: exactly at the margin a codec does not pay, just beyond it
// does. fp16 halves the transfer; an encoder that takes 0.3 of the plain time
// leaves 0.8.
func TestChooseMargin(t *testing.T) {
	for _, c := range []struct {
		encode float64
		pays   bool
	}{{1e9 / 0.301, false}, {1e9 / 0.299, true}} {
		got := Choose(Link{Bps: 1e9}, 1e6, []Candidate{{FP16, c.encode, 0}})
		if (got.Codec != nil) != c.pays {
			t.Errorf("encoding at %.4g B/s: %s", c.encode, got.Why)
		}
	}
}

// TestTypical: the usual links, as docs/compression.md has them.
func TestTypical(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, c := range []struct {
			bps                float64
			withAssembly, inGo string
		}{
			{12.5e6, "int8", "int8"},  // 100 Mbit/s
			{125e6, "int8", "int8"},   // 1 Gbit/s
			{1.25e9, "int8", "none"},  // 10 Gbit/s
			{3.125e9, "none", "none"}, // 25 Gbit/s
			{12.5e9, "none", "none"},
		} {
			want := c.inGo
			if assembly() {
				want = c.withAssembly
			}
			got := "none"
			ch := Choose(Link{Bps: c.bps}, 4<<20, Typical())
			if ch.Codec != nil {
				got = ch.Codec.Name()
			}
			if got != want {
				t.Errorf("%v B/s: %s, want %s (%s)", c.bps, got, want, ch.Why)
			}
		}
	})
}

// TestGauge: the clock moves by a second each time it is read, so every step seems to take one; when it does not move,
// steps seem to be free.
func TestGauge(t *testing.T) {
	in := Typical()
	for _, tick := range []float64{1, 0} {
		clock := 0.0
		for i, c := range Gauge(100_000, in, func() float64 { clock += tick; return clock }) {
			if c.Codec != in[i].Codec {
				t.Errorf("candidate %d is another codec", i)
			}
			if want := 400_000 * tick; c.Encode != want || c.Decode != want {
				t.Errorf("%s: %v and %v bytes/s, want %v", c.Codec.Name(), c.Encode, c.Decode, want)
			}
		}
	}
	if in[0].Encode == 0 {
		t.Error("Gauge changed what it was given")
	}
}
