package ps

import (
	"math"
	"strings"
	"testing"
	"time"

	"star/internal/compress"
)

// quick codecs: only the link counts.
func free() []compress.Candidate {
	return []compress.Candidate{{Codec: compress.FP16}, {Codec: &compress.Int8{}}}
}

func TestTunerMeasuresNowAndThen(t *testing.T) {
	tn := newTuner(1000, 1, free())
	var at []int
	for push := range 2*tunePeriod + 10 {
		if tn.measure() {
			at = append(at, push)
		}
	}
	want := []int{2, 3, 4, 5, 6, 200, 201, 202, 203, 204, 400, 401, 402, 403, 404}
	if len(at) != len(want) {
		t.Fatalf("measured pushes %v, want %v", at, want)
	}
	for i := range at {
		if at[i] != want[i] {
			t.Fatalf("measured pushes %v, want %v", at, want)
		}
	}
}

// The median counts, and a choice is made again only when the link has changed
// for good.
func TestTunerHysteresis(t *testing.T) {
	// A codec at 1 GB/s in all: fp16 pays below 0.3 GB/s, int8 below 0.546.
	speed := func(c compress.Codec) compress.Candidate { return compress.Candidate{Codec: c, Encode: 1e9} }
	tn := newTuner(1e6, 1, []compress.Candidate{speed(compress.FP16), speed(&compress.Int8{})})
	for i, c := range []struct {
		bps    float64
		change bool
		want   string
	}{
		{1e9, true, "none"},    // the first choice is always news
		{0.5e9, false, "none"}, // at a quarter more none would be chosen
		{0.4e9, true, "int8"},
		{0.6e9, false, "int8"}, // at a fifth less int8 would be chosen
		{0.4e9, false, "int8"},
		{0.75e9, true, "none"},
		{math.Inf(1), false, "none"},
	} {
		for range 3 {
			tn.sample(4e6, time.Duration(4e6/c.bps*1e9), 0)
		}
		// Two that a busy moment spoilt.
		tn.sample(4e6, time.Hour, 0)
		tn.sample(4e6, 1, 0)
		choice, ok := tn.choose()
		name := "none"
		if tn.current != nil {
			name = tn.current.Name()
		}
		if ok != c.change || name != c.want {
			t.Errorf("round %d, %v bytes/s: changed %v, codec %s; want %v, %s (%s)", i, c.bps, ok, name, c.change, c.want, choice.Why)
		}
		if ok && !strings.HasPrefix(choice.Why, c.want) {
			t.Errorf("round %d: the reason is %q", i, choice.Why)
		}
	}
	if _, ok := tn.choose(); ok {
		t.Error("a choice without a measurement")
	}
}

// A shard decodes the gradients of all workers.
func TestTunerCountsWorkers(t *testing.T) {
	for workers, want := range map[int]bool{0: true, 1: true, 4: false} {
		tn := newTuner(1e6, workers, []compress.Candidate{{Codec: compress.FP16, Decode: 1e9}})
		tn.sample(4e6, 20*time.Millisecond, 0) // 10 ms saved, 4 ms for each decoding
		if choice, _ := tn.choose(); (choice.Codec != nil) != want {
			t.Errorf("%d workers: %s", workers, choice.Why)
		}
	}
}

// What shards spend on decoding is not the link's, up to half of the time.
func TestTunerTakesDecodingOff(t *testing.T) {
	tn := newTuner(1000, 1, free())
	for _, c := range []struct {
		passed, decoded time.Duration
		want            float64
	}{{time.Second, 0, 1000}, {time.Second, 200 * time.Millisecond, 1250}, {time.Second, 2 * time.Second, 2000}, {0, 0, math.Inf(1)}} {
		tn.speeds = nil
		tn.sample(1000, c.passed, c.decoded)
		if got := tn.speeds[0]; got != c.want {
			t.Errorf("1000 bytes in %v, %v of it decoding: %v bytes/s, want %v", c.passed, c.decoded, got, c.want)
		}
	}
	tn.candidates[1].Decode = 1e6
	if d := tn.decoding(1e6); d != 0 {
		t.Errorf("without a codec decoding takes %v", d)
	}
	tn.current = tn.candidates[1].Codec
	if d := tn.decoding(1e6); d != 4*time.Second {
		t.Errorf("1e6 values at 1 MB/s: %v, want 4 s", d)
	}
}

func TestIsLocal(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:7070": true, "[::1]:7070": true, "[::ffff:127.0.0.1]:1": true, "192.0.2.7:7070": false, "ps": false, "": false, "host:7070": false,
	} {
		if got := isLocal(addr); got != want {
			t.Errorf("isLocal(%q) = %v", addr, got)
		}
	}
}
