package placement

import (
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// Oracles of spec 13.7, computed with networkx: γ of four jobs, and the packing of the ten
// published models.
func TestInterleavePublished(t *testing.T) {
	jobs := []profile{{35 * ms, 58 * ms}, {36 * ms, 89 * ms}, {21 * ms, 33 * ms}, {150 * ms, 86 * ms}}
	for _, c := range []struct {
		a, b int
		want float64
	}{{1, 2, .716}, {1, 3, .764831}, {1, 0, .741497}, {2, 3, .614407}, {2, 0, .790323}, {3, 0, .697034}} {
		period, got := Interleave(jobs[c.a].Active, jobs[c.a].GPU, jobs[c.b].Active, jobs[c.b].GPU)
		if sum := jobs[c.a].Active + jobs[c.a].GPU + jobs[c.b].Active + jobs[c.b].GPU; math.Abs(got-c.want) > 5e-4 || math.Abs(float64(sum)/float64(2*period)-got) > 1e-12 {
			t.Errorf("γ of %d and %d: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	if mate, sum := pairs(jobs); !slices.Equal(mate, []int{2, 3, 0, 1}) || math.Abs(sum-1.555153089) > 1e-9 {
		t.Errorf("pairs %v, sum %v", mate, sum)
	}
	if period, g := Interleave(0, 0, 0, 0); period != 0 || g != 0 {
		t.Errorf("nothing to do: %v, %v", period, g)
	}
	if mate, sum := pairs(nil); len(mate) != 0 || sum != 0 {
		t.Errorf("nobody: %v, %v", mate, sum)
	}
}

func TestPairsOfTenModels(t *testing.T) {
	names := []string{"alexnet", "resnet20", "resnet56", "vgg13", "vgg16", "densenet121", "googlenet", "mobilenet", "lstm", "transformer"}
	var jobs []profile
	for _, x := range [][2]int{{200, 55}, {261, 79}, {567, 88}, {308, 103}, {365, 122}, {900, 168}, {1175, 147}, {609, 131}, {475, 143}, {480, 164}} {
		jobs = append(jobs, profile{time.Duration(x[0]) * ms, time.Duration(x[1]) * ms})
	}
	mate, sum := pairs(jobs)
	pairs := map[string]string{}
	for i, m := range mate {
		pairs[names[i]] = names[m]
	}
	want := map[string]string{"densenet121": "googlenet", "mobilenet": "resnet56", "alexnet": "transformer", "lstm": "resnet20", "vgg13": "vgg16"}
	for a, b := range want {
		if pairs[a] != b || pairs[b] != a {
			t.Errorf("%s is with %s, want %s", a, pairs[a], b)
		}
	}
	if math.Abs(sum-3.148022450) > 1e-9 {
		t.Errorf("sum %.9f, want 3.148022450", sum)
	}
}

func TestPublishedPacking(t *testing.T) {
	var jobs []publishedTask
	for i, x := range [][2]int{{36, 89}, {66, 33}, {40, 86}, {88, 90}, {35, 58}, {77, 120}, {59, 32}, {33, 66}} {
		jobs = append(jobs, publishedTask{i + 1, time.Duration(x[0]) * ms, time.Duration(x[1]) * ms})
	}
	// Spec 13.7, last line: job 1 is lost.
	want := []publishedPack{{8, 7}, {5, 2}, {3, -1}, {7, -1}, {2, -1}, {6, -1}, {4, -1}}
	if got := published(jobs); !slices.Equal(got, want) {
		t.Errorf("published %v, want %v", got, want)
	}

	// Ours: every server is present, no worker is used twice or with its own server, every pair fits, and the number
	// of pairs is the maximum: workers 8 (66), 5 (58), 7 (32), 2 (33) and 3 (86) find servers with idle times from 88
	// down.
	seen, pairs := map[int]bool{}, 0
	for _, p := range packed(jobs) {
		s := jobs[p.Server-1]
		if p.Worker > 0 {
			pairs++
			if w := jobs[p.Worker-1]; w.Active > s.Idle || p.Worker == p.Server || seen[-p.Worker] {
				t.Errorf("pair %v", p)
			}
			seen[-p.Worker] = true
		}
		seen[p.Server] = true
	}
	for i := 1; i <= 8; i++ {
		if !seen[i] {
			t.Errorf("job %d is lost", i)
		}
	}
	if pairs != 5 {
		t.Errorf("%d pairs, want 5", pairs)
	}

	// The shipped data: every job's worker is active for as long as its server is idle, and the
	// published packing pairs every job with itself.
	var same []publishedTask
	for i, x := range []int{200, 261, 567, 308, 365, 900, 1175, 609, 475, 480} {
		same = append(same, publishedTask{i, time.Duration(x) * ms, time.Duration(x) * ms})
	}
	for _, p := range published(same) {
		if p.Server != p.Worker {
			t.Errorf("published %v: want each job with itself", p)
		}
	}
	pairs = 0
	for _, p := range packed(same) {
		if p.Server == p.Worker {
			t.Errorf("ours pairs %d with itself", p.Server)
		}
		if p.Worker >= 0 {
			pairs++
		}
	}
	if pairs != 9 { // the shortest idle time has no other worker
		t.Errorf("%d pairs, want 9", pairs)
	}
}
