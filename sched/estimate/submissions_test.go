package estimate

import (
	"math"
	"testing"
	"time"
)

// The features of ten minutes are those that Python's statistics module says of the same counts, and none is of the 50
// minutes before them or later.
func TestSubmissions(t *testing.T) {
	jobs, gpus := make([]float64, 160), make([]float64, 160)
	for i := range jobs {
		jobs[i] = float64((i*i*7 + 3*i) % 11) // around entry 150: 139 to 144 are 1, 10, 0, 4, 0, 10
		gpus[i] = 2 * jobs[i]
	}
	when := time.Date(2020, 9, 6, 17, 40, 0, 0, time.UTC)
	want := []float64{9, 6, 17, 40, 6, 250, 36}
	of := []float64{10, 0, 6, 6, 1, 4.5, 25. / 6, 2.5, 4.750438576243952}
	want = append(want, of...)
	for _, v := range of {
		want = append(want, 2*v)
	}
	check := func(what string) {
		t.Helper()
		got := Submissions(when, 150, jobs, gpus)
		if len(got) != len(want) {
			t.Fatalf("%s: %d features, want %d", what, len(got), len(want))
		}
		for i, v := range got {
			if math.Abs(v-want[i]) > 1e-12 {
				t.Errorf("%s: feature %d is %v, want %v", what, i, v, want[i])
			}
		}
	}
	check("all counts")
	jobs, gpus = jobs[:145], gpus[:145]
	check("those up to an hour before")
}
