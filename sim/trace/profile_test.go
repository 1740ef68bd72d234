package trace

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// x is an event of Chrome's trace format.
func x(cat, name string, ts, dur float64) string {
	return fmt.Sprintf(`{"ph":"X","cat":%q,"name":%q,"pid":1,"tid":"7","ts":%v,"dur":%v,"args":{"External id":3}}`, cat, name, ts, dur)
}

// Three steps on a GPU: a collective counts where no other kernel runs.
func TestProfileOfGPU(t *testing.T) {
	text := `{"schemaVersion":1,"deviceProperties":[{"id":0}],"distributedInfo":{"backend":"nccl","rank":3,"world_size":8},"traceEvents":[` + strings.Join([]string{
		`{"ph":"M","name":"process_name","pid":0,"ts":"0","args":{"name":"python"}}`,
		x("user_annotation", "ProfilerStep#2", 1000, 1000), x("gpu_user_annotation", "ProfilerStep#2", 1000, 900),
		x("user_annotation", "ProfilerStep#3", 2000, 2000),
		x("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 2000, 300),
		x("kernel", "volta_sgemm", 1100, 300), x("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 1200, 500),
		x("kernel", "ncclKernel_AllReduce", 3000, 400), x("kernel", "elementwise", 3100, 50), x("gpu_memcpy", "Memcpy HtoD", 3300, 200),
		x("cpu_op", "aten::mm", 1000, 1000),
	}, ",") + `],"traceName":"rank3.json"}`
	p, err := ReadProfile(strings.NewReader(text), "rank3.json")
	if err != nil {
		t.Fatal(err)
	}
	if p.Rank != 3 || p.World != 8 || !p.GPU || len(p.Steps) != 2 {
		t.Fatalf("%+v", p)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("step 2", p.Steps[0].Took, 1000e-6)
	near("its waiting", p.Steps[0].Wait, 300e-6)
	near("step 3", p.Steps[1].Took, 2000e-6)
	near("its loading", p.Steps[1].Load, 300e-6)
	near("its waiting", p.Steps[1].Wait, 250e-6)
}

// Without marks of its own, and on processors: an array, as builds without Kineto write it.
func TestProfileOfProcessors(t *testing.T) {
	text := "[" + strings.Join([]string{
		x("", "Optimizer.step#SGD.step", 900, 100), x("", "aten::mm", 1100, 400), x("", "gloo:all_reduce", 1400, 500), x("", "c10d::allreduce_", 1400, 20),
		x("", "Optimizer.step#SGD.step", 1950, 50), x("", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2000, 400), x("", "aten::randn", 2100, 10),
		x("", "gloo:all_reduce", 2600, 300), x("", "Optimizer.step#SGD.step", 2950, 50),
	}, ",") + "]"
	p, err := ReadProfile(strings.NewReader(text), "a.json")
	if err != nil {
		t.Fatal(err)
	}
	if p.Rank != -1 || p.GPU || len(p.Steps) != 2 || math.Abs(p.Steps[0].Wait-400e-6) > 1e-9 || math.Abs(p.Steps[1].Load-400e-6) > 1e-9 || math.Abs(p.Steps[1].Wait-300e-6) > 1e-9 {
		t.Errorf("%+v", p)
	}
}

func TestProfilesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		`[`:                  "cut off",
		`[]`:                 "no steps",
		`{"traceEvents":{}}`: "no array",
		`{"traceEvents":[` + x("", "aten::mm", 0, 1):         "cut off",
		`{"traceEvents":[` + x("", "aten::mm", 0, -1) + `]}`: "takes -1",
		`7`: "no trace",
	} {
		if _, err := ReadProfile(strings.NewReader(text), "a.json"); err == nil || !strings.HasPrefix(err.Error(), "a.json: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for head, want := range map[string]bool{`[{"ph": "X"`: true, ` {"schemaVersion": 1`: true, `{"rank":0,"step":1}`: false, "rank,step": false, "": false} {
		if IsProfile([]byte(head)) != want {
			t.Errorf("IsProfile(%s)", head)
		}
	}
}

// The unions beside a count of each microsecond.
func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		var marks [2][120]bool
		var lists [2][]span
		for k := range lists {
			for range rng.IntN(12) {
				from := rng.IntN(100)
				to := from + rng.IntN(20)
				lists[k] = append(lists[k], span{float64(from), float64(to)})
				for i := from; i < to; i++ {
					marks[k][i] = true
				}
			}
		}
		in := span{float64(rng.IntN(60)), float64(60 + rng.IntN(60))}
		want := 0
		for i := int(in.from); i < int(in.to); i++ {
			if marks[0][i] && !marks[1][i] {
				want++
			}
		}
		if got := within(without(union(lists[0]), union(lists[1])), in) * 1e6; math.Abs(got-float64(want)) > 1e-6 {
			t.Fatalf("%v without %v in %v: %v, want %d", lists[0], lists[1], in, got, want)
		}
	}
}

func FuzzReadProfile(f *testing.F) {
	f.Add([]byte(`{"distributedInfo":{"rank":1,"world_size":2},"traceEvents":[` + x("", "Optimizer.step#A", 0, 1) + "," + x("kernel", "nccl", 1, 1) + "," + x("", "Optimizer.step#A", 3, 1) + `]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadProfile(bytes.NewReader(b), "f")
		if err != nil {
			return
		}
		for _, s := range p.Steps {
			if !(s.Load >= 0 && s.Wait >= 0 && s.Load+s.Wait <= s.Took*(1+1e-9)+1e-12) {
				t.Errorf("%+v", s)
			}
		}
	})
}
