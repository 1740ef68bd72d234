package chaos

import (
	"reflect"
	"testing"
)

// Whatever happens, and in whatever mode, a job with copies keeps its promises; without fencing it does not for long.
func TestRehearsals(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	faults := 0
	for seed := range seeds {
		r := Rehearsal{Seed: seed, Copies: 1 + int(seed%3)}.Run()
		if r.Broken != "" {
			t.Fatalf("seed %d: %s", seed, r.Broken)
		}
		if r.Updates < 12 { // of all three workers, unless one is late
			t.Fatalf("seed %d: %d updates", seed, r.Updates)
		}
		faults += r.Faults
	}
	if faults < 5*int(seeds) {
		t.Errorf("%d faults in %d jobs", faults, seeds)
	}
	for seed := range uint64(20) {
		if a, b := (Rehearsal{Seed: seed, Copies: 3}).Run(), (Rehearsal{Seed: seed, Copies: 3}).Run(); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d gives %+v, and then %+v", seed, a, b)
		}
	}
	for seed := range uint64(500) {
		if (Rehearsal{Seed: seed, Unfenced: true}).Run().Broken != "" {
			return
		}
	}
	t.Error("without fencing nothing is broken in 500 jobs")
}
