package trace

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorded are the records of testdata.
func recorded(t testing.TB) (flights []*Flight) {
	paths, _ := filepath.Glob("testdata/flight_rank_*.gz")
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ReadFlight(bytes.NewReader(b), path)
		if err != nil {
			t.Fatal(err)
		}
		flights = append(flights, f)
	}
	return flights
}

// PyTorch 2.15 recorded this of a job in which rank 1 slept 60 ms more in each step from step 20 on. It does not say
// how long collectives took.
func TestFlightOfPyTorch(t *testing.T) {
	flights := recorded(t)
	profiles, notices, err := FlightProfiles(flights)
	if err != nil || len(profiles) != 3 || len(notices) != 1 || !strings.Contains(notices[0], "by the clocks of the hosts") {
		t.Fatalf("%d profiles, %q, %v", len(profiles), notices, err)
	}
	for r, p := range profiles {
		// The first step has no beginning, its successor's collectives are others, and after step 40 and 80 there is one
		// more.
		if p.Rank != r || p.World != 3 || len(p.Steps) != 96 {
			t.Errorf("rank %d of %d, %d steps, in place %d", p.Rank, p.World, len(p.Steps), r)
		}
		own := func(from, to int) (sum float64) {
			for _, s := range p.Steps[from:to] {
				sum += (s.Took - s.Wait) / float64(to-from)
			}
			return sum
		}
		// Sleep is at least what was asked for; what a busy host adds was recorded as well.
		before, after := own(0, 17), own(20, 96)
		if want := 0.03 + 0.06*float64(r%2); before < 0.03 || before > 0.06 || after < want || after > want+0.03 {
			t.Errorf("rank %d: %.4f s of its own in a step, %.4f later", r, before, after)
		}
	}
}

// flights makes records of three ranks as JSON: 20 steps of two collectives, and the ranks wait for the second. Rank 1
// computes 60 ms, others 20 ms; an exchange takes 2 ms.
func flights(t *testing.T, backend string, ended, timed bool) []*Flight {
	t.Helper()
	var out []*Flight
	for r := range 3 {
		var entries []string
		at := 1e9
		for s := range 20 {
			for k := range 2 {
				mine, last := at+10e6*float64(k+1), at+30e6*float64(k+1) // ns
				if r == 1 {
					mine = last
				}
				e := fmt.Sprintf(`{"process_group":["0","default_pg"],"collective_seq_id":%d,"profiling_name":"%s:all_reduce","input_sizes":[[%d]],"time_created_ns":%.0f,"state":"completed"`,
					2*s+k, backend, 100+k, mine)
				if ended {
					e += fmt.Sprintf(`,"time_discovered_completed_ns":%.0f`, last+2e6)
				}
				if timed {
					// of the second one nothing is waited for before the first has ended
					e += fmt.Sprintf(`,"duration_ms":%f`, (last+2e6-mine)/1e6-28*float64(k)*float64((r+1)%2))
				}
				entries = append(entries, e+"}")
			}
			at += 62e6
		}
		text := fmt.Sprintf(`{"version":"2.9","pg_config":{"0":{"ranks":"[0, 1, 2]"},"7":{"ranks":"[0, 1]"}},"entries":[
			{"process_group":["7","tensors"],"collective_seq_id":1,"profiling_name":"x","time_created_ns":1},
			{"process_group":["0","default_pg"],"is_p2p":true},%s]}`, strings.Join(entries, ","))
		f, err := ReadFlight(strings.NewReader(text), fmt.Sprintf("nccl_trace_rank_%d", r))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// Waiting is distinguished from work by ends, by the GPU's clock, or by the clocks of hosts.
func TestFlightProfiles(t *testing.T) {
	for _, x := range []struct {
		backend      string
		ended, timed bool
		own          [3]float64 // ms
		gpu          bool
	}{
		{"gloo", true, false, [3]float64{20, 58, 20}, false},  // a rank that asks only after an end may have waited
		{"gloo", false, false, [3]float64{22, 62, 22}, false}, // the exchange is not known
		{"nccl", true, false, [3]float64{22, 62, 22}, false},  // ends are only noticed: they do not count
		// the first collective's waiting counts as well; the exchange is not known
		{"nccl", true, true, [3]float64{30, 62, 30}, true},
	} {
		profiles, notices, err := FlightProfiles(flights(t, x.backend, x.ended, x.timed))
		if err != nil {
			t.Fatal(err)
		}
		if (len(notices) > 0) != (!x.timed && (!x.ended || x.backend == "nccl")) {
			t.Errorf("%+v: %q", x, notices)
		}
		for r, p := range profiles {
			if len(p.Steps) != 19 || p.GPU != x.gpu || p.World != 3 {
				t.Errorf("%+v: rank %d: %d steps, GPU %v, of %d", x, r, len(p.Steps), p.GPU, p.World)
			}
			for _, s := range p.Steps {
				if own := 1e3 * (s.Took - s.Wait); math.Abs(own-x.own[r]) > 1e-3 || math.Abs(s.Took-0.062) > 1e-6 {
					t.Fatalf("%+v: rank %d: %v ms of %v s are its own, want %v", x, r, own, s.Took, x.own[r])
				}
			}
		}
	}
}

// A step ends with the collective behind which the first rank takes longest, wherever the records begin.
func TestFlightPhase(t *testing.T) {
	m := &meeting{calls: [][]call{nil}}
	var what []int
	at := 0.0
	for i := range 20 {
		what = append(what, (i+2)%3) // 2, 0, 1, 2, 0, 1, …
		m.calls[0] = append(m.calls[0], call{created: at})
		at++
		if what[i] == 1 {
			at += 5
		}
	}
	for _, step := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
		if got := m.phase(what, step); !slices.Equal(got, []int{2, 0, 1}) {
			t.Errorf("of %v: %v, want 2, 0, 1", step, got)
		}
	}
}

// A rank that is not where the others wait is named, and records that do not belong together are refused.
func TestFlightsTogether(t *testing.T) {
	fs := flights(t, "nccl", false, true)
	last := len(fs[0].calls) - 1
	fs[0].calls[last].done, fs[2].calls[last].done = false, false
	fs[1].calls = fs[1].calls[:last]
	_, notices, err := FlightProfiles(fs)
	if want := "rank 1 had not begun nccl:all_reduce 101, collective 39 of group 0, in which rank 0, 2 was waiting"; err != nil || len(notices) != 1 || !strings.HasPrefix(notices[0], want) {
		t.Errorf("%q, %v, want %q", notices, err, want)
	}
	fs[0].calls[last].done = true // as it is where the records were written one after the other
	if _, notices, err := FlightProfiles(fs); err != nil || len(notices) > 0 {
		t.Errorf("%q, %v: nobody waits in a collective that has ended", notices, err)
	}
	for _, x := range []struct {
		name   string
		change func([]*Flight)
		want   string
	}{
		{"two of a rank", func(fs []*Flight) { fs[2].Rank = 1 }, "rank 1 is already in nccl_trace_rank_1"},
		{"one is not there", func(fs []*Flight) { fs[1].World, fs[0].World, fs[2].World = 4, 4, 4 }, "the job has 4 ranks, and there is no record of rank 3: give one of each"},
		{"another job", func(fs []*Flight) {
			for i := range fs[1].calls {
				fs[1].calls[i].what = "another"
			}
		}, "the ranks have 0 collectives in common"},
		{"nothing twice", func(fs []*Flight) {
			for _, f := range fs {
				for i := range f.calls {
					f.calls[i].what = fmt.Sprint(i)
				}
			}
		}, "do not repeat"},
	} {
		fs := flights(t, "gloo", true, false)
		x.change(fs)
		if _, _, err := FlightProfiles(fs); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
}

func TestReadFlightRefuses(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{`{"pg_config":{},"version":"3.0","entries":[]}`, `version "3.0" of flight records`},
		{`{"pg_config":{},"version":"2.1"}`, "no entries"},
		{`{"pg_config":{},"version":"2.1","entries":[]}`, "no collective of all ranks in 0 entries"},
		{`{"pg_config":{},"version":"2.1","entries":[7]}`, "entry 0: a int64, want a dict"},
		{`{"pg_config":{},"version":"2.1","entries":[{"collective_seq_id":"x","time_created_ns":1}]}`, "entry 0: its collective_seq_id is x"},
		{`{"pg_config":{},"version":"2.1","entr`, "it is cut off"},
		{"\x80\x02].", "it is a *trace.list, and not the dict"},
		{"\x80\x02cos\nsystem\n", `it would have "os.system" of Python called`},
	} {
		if !IsFlight([]byte(x.text)) {
			t.Errorf("%q does not look like a flight record", x.text)
		}
		if _, err := ReadFlight(strings.NewReader(x.text), "f"); err == nil || !strings.HasPrefix(err.Error(), "f: ") || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, want %q", x.text, err, x.want)
		}
	}
	for _, text := range []string{"", "rank,step,seconds\n", `{"rank":0,"step":1,"seconds":2}`, `{"traceEvents":[`} {
		if IsFlight([]byte(text)) {
			t.Errorf("%q looks like a flight record", text)
		}
	}
	for name, want := range map[string]int{"/a/nccl_trace_rank_12": 12, "rank3.pkl": 3, "r_0.json.gz": 0, "flight": -1, "a7b": -1, "nccl_trace_rank_123456": 23456} {
		if n := endNumber(name); n != want {
			t.Errorf("%s: %d, want %d", name, n, want)
		}
	}
}

// FuzzReadFlight reads the input twice, as records of two ranks.
func FuzzReadFlight(f *testing.F) {
	for _, text := range pickled {
		f.Add([]byte(text))
	}
	paths, _ := filepath.Glob("testdata/flight_rank_*.gz")
	for _, path := range paths {
		b, _ := os.ReadFile(path)
		f.Add(b)
	}
	f.Add([]byte(`{"version":"2.9","pg_config":{"0":{"ranks":"[0, 1]"}},"entries":[{"process_group":["0",""],"collective_seq_id":1,"time_created_ns":5,"duration_ms":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := ReadFlight(bytes.NewReader(b), "one_0")
		if err != nil {
			return
		}
		other := *one
		one.Rank, other.Rank = 0, 1
		profiles, _, err := FlightProfiles([]*Flight{one, &other})
		if err != nil {
			return
		}
		for _, p := range profiles {
			for _, s := range p.Steps {
				if !(s.Took > 0) || !(s.Wait >= 0) || s.Wait > s.Took {
					t.Fatalf("a step of %v s, of which %v waiting", s.Took, s.Wait)
				}
			}
		}
	})
}
