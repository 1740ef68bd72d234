package baseline

import (
	"slices"
	"testing"
	"time"

	"star"
)

// What the released LB-BSP has printed for these times.
func TestArtefactBatches(t *testing.T) {
	for _, c := range []struct {
		times     []float64
		last      int
		iteration int64
		want      []int
	}{
		{[]float64{100, 100, 100, 160}, 128, 6, []int{133, 133, 133, 123}},
		{[]float64{90, 100, 110, 136}, 128, 6, []int{133, 128, 128, 123}},
		{[]float64{90, 100, 110, 135}, 128, 6, []int{128, 128, 128, 128}},
		{[]float64{90, 100, 110, 400}, 10, 6, []int{133, 128, 128, 10}},
		{[]float64{100, 100, 100, 160}, 128, 5, []int{128, 128, 128, 128}},
	} {
		given := []int{128, 128, 128, c.last}
		if got := ArtefactBatches(c.times, given, c.iteration); !slices.Equal(got, c.want) {
			t.Errorf("%v at %d: %v, want %v", c.times, c.iteration, got, c.want)
		}
		if !slices.Equal(given, []int{128, 128, 128, c.last}) {
			t.Error("the given batches are written to")
		}
	}
}

// What the two released versions of Sync-Switch's controller have said to these polls.
func TestArtefactController(t *testing.T) {
	polls := [][]float64{{100, 100, 100, 100}, {100, 100, 100, 151}, {100, 100, 100, 150}, {100, 100, 100, 160}, {100, 100, 100, 100}}
	for latch, want := range map[bool][]bool{false: {false, true, false, true, false}, true: {false, true, true, true, true}} {
		c := ArtefactController{Latch: latch}
		var got []bool
		for _, p := range polls {
			got = append(got, c.Poll(p))
		}
		if !slices.Equal(got, want) {
			t.Errorf("latch %v: %v, want %v", latch, got, want)
		}
	}
}

// In a job they decide the same, when they look at it.
func TestArtefactSchemes(t *testing.T) {
	make4 := func(text string) Scheme {
		t.Helper()
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Make(Job{Workers: 4, Batch: 128})
		if err != nil {
			t.Fatal(err)
		}
		return m.Scheme
	}
	tell := func(s Scheme, step int64, ms ...time.Duration) {
		for w, d := range ms {
			s.Observe(star.Record{Worker: star.Worker(w), Step: step, Compute: d * time.Millisecond})
		}
	}
	s := make4("artefact-lb-bsp")
	tell(s, 5, 100, 100, 100, 160)
	if d, ok := s.Fired(Update{}); ok {
		t.Errorf("before the sixth iteration: %v", d.Plan)
	}
	tell(s, 6, 100, 100, 100, 160)
	if d, ok := s.Fired(Update{}); !ok || !slices.Equal(d.Plan.Shares, []int{133, 133, 133, 123}) {
		t.Errorf("%v, %v", d.Plan, ok)
	}
	tell(s, 7, 100, 100, 100, 160)
	if d, ok := s.Fired(Update{}); !ok || d.Plan.Shares != nil {
		t.Errorf("one iteration later: %v, %v", d.Plan, ok)
	}
	s.Observe(star.Record{Worker: 3, Step: 8, Compute: 100 * time.Millisecond, Pull: 90 * time.Second})
	s.Observe(star.Record{Worker: 3, Step: 9, Compute: 100 * time.Millisecond, Pull: 90 * time.Second})
	s.Observe(star.Record{Worker: 0, Step: 8, Compute: 90 * time.Millisecond})
	s.Observe(star.Record{Worker: 1, Step: 8, Compute: 110 * time.Millisecond}) // rows of 3, 3, 0, 1
	if d, ok := s.Fired(Update{}); !ok || !slices.Equal(d.Plan.Shares, []int{133, 128, 128, 123}) {
		t.Errorf("last rows: %v, %v", d.Plan, ok)
	}

	y := make4("artefact-sync-switch:wait=10s,every=20s")
	var got []string
	for i, ms := range [][4]time.Duration{{100, 100, 100, 200}, {100, 100, 100, 200}, {100, 100, 100, 100}, {100, 100, 100, 100}} {
		tell(y, int64(i), ms[:]...)
		if d, ok := y.Fired(Update{At: time.Duration(i*8+4) * time.Second}); ok { // 4, 12, 20 and 28 s
			got = append(got, d.Plan.String())
		}
	}
	tell(y, 9, 100, 100, 100, 100)
	if d, ok := y.Fired(Update{At: 32 * time.Second}); ok {
		got = append(got, d.Plan.String())
	}
	if !slices.Equal(got, []string{"asgd", "ssgd"}) {
		t.Errorf("plans %v, want asgd at 12 s and ssgd at 32 s", got)
	}
	for _, name := range []string{"artefact-lb-bsp", "artefact-sync-switch"} {
		spec, _ := Parse(name)
		if _, err := spec.Make(Job{Workers: 5, Batch: 128}); err == nil {
			t.Errorf("%s for 5 workers", name)
		}
	}
}
