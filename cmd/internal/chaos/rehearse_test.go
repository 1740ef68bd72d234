package chaos

import (
	"reflect"
	"testing"
)

// Whatever happens, and in whatever mode, a job with copies keeps its promises, with a tree or without; without fencing
// it does not for long.
func TestRehearsals(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	faults := 0
	for seed := range seeds {
		r := Rehearsal{Seed: seed, Copies: 1 + int(seed%3), Trees: seed%2 == 1}.Run()
		if r.Broken != "" {
			t.Fatalf("seed %d: %s", seed, r.Broken)
		}
		if r.Updates < 12 { // of all workers, unless one is late
			t.Fatalf("seed %d: %d updates", seed, r.Updates)
		}
		faults += r.Faults
	}
	if faults < 5*int(seeds) {
		t.Errorf("%d faults in %d jobs", faults, seeds)
	}
	for seed := range uint64(20) {
		r := Rehearsal{Seed: seed, Copies: 3, Trees: seed%2 == 1}
		if a, b := r.Run(), r.Run(); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d gives %+v, and then %+v", seed, a, b)
		}
	}
	// A takeover soon after a server was lost, before the others knew of it.
	if r := (Rehearsal{Seed: 1228, Copies: 2}).Run(); r.Broken != "" {
		t.Errorf("a lost server and a takeover: %s", r.Broken)
	}
	for seed := range uint64(500) {
		if (Rehearsal{Seed: seed, Unfenced: true}).Run().Broken != "" {
			return
		}
	}
	t.Error("without fencing nothing is broken in 500 jobs")
}

// Whatever happens, and in whatever mode, a ring keeps its promises.
func TestRingRehearsals(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 80
	}
	faults, updates := 0, int64(0)
	for seed := range seeds {
		r := Rehearsal{Seed: seed, Ring: true}.Run()
		if r.Broken != "" {
			t.Fatalf("seed %d: %s", seed, r.Broken)
		}
		if seed < 20 {
			if again := (Rehearsal{Seed: seed, Ring: true}).Run(); !reflect.DeepEqual(r, again) {
				t.Errorf("seed %d gives %+v, and then %+v", seed, r, again)
			}
		}
		faults, updates = faults+r.Faults, updates+r.Updates
	}
	if faults < 2*int(seeds) || updates < 12*int64(seeds) {
		t.Errorf("%d faults and %d updates in %d jobs", faults, updates, seeds)
	}
}
