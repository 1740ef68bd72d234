package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"star/internal/exitcode"
	"star/job"
)

// star trace attribute on a trace that can be checked by hand: two data ranks, one stage, one micro-batch, in which
// rank 1 computes backward three times as long. The scatter of gradients takes 1 from when both are there.
func TestTraceAttribute(t *testing.T) {
	type row struct {
		Data  int32   `parquet:"dp_rank"`
		Stage int32   `parquet:"stage"`
		Step  int64   `parquet:"step"`
		Type  string  `parquet:"optype"`
		Start float32 `parquet:"start_ts"`
		Took  float32 `parquet:"duration"`
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.parquet")
	if err := parquet.WriteFile(path, []row{
		{0, 0, 5, "forward-compute", 0, 2}, {0, 0, 5, "backward-compute", 2, 2}, {0, 0, 5, "grads-reduce-scatter", 4, 5},
		{1, 0, 5, "forward-compute", 0, 2}, {1, 0, 5, "backward-compute", 2, 6}, {1, 0, 5, "grads-reduce-scatter", 8, 1},
	}); err != nil {
		t.Fatal(err)
	}
	// T = 2 + 6 + 1 = 9; with the mean of backward, 4, it is 7.
	published := filepath.Join(dir, "result.json")
	if err := os.WriteFile(published, []byte(`{"blocking_slowdown":1.3, "step_t_base":{"5":9}, "blocking_decompose_by_dp_rank":{"0":1, "1":1.2857142857}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	run := func(args ...string) error {
		out.Reset()
		cmd := root()
		cmd.SetArgs(append([]string{"trace"}, args...))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.Execute()
	}
	if err := run("attribute", path, "--json", "--against", published); err != nil {
		t.Fatal(err)
	}
	var a struct {
		Recorded float64
		Launched float64   `json:"without_gaps"`
		Ideal    float64   `json:"without_stragglers"`
		Data     []float64 `json:"dp_ranks"`
		Steps    int
		Types    map[string]float64
		Workers  []struct{ Slowdown float64 }
		Worst    struct{ Workers [][2]int } `json:"slowest_workers"`
		Against  []json.RawMessage
		MaxError *float64 `json:"max_error"`
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	if a.Recorded != 9 || a.Launched != 9 || a.Ideal != 7 || math.Abs(a.Types["backward-compute"]-9./7) > 1e-9 || a.Types["forward-compute"] != 1 ||
		a.Data[0] != 1 || math.Abs(a.Workers[1].Slowdown-9./7) > 1e-9 || a.Worst.Workers[0] != [2]int{1, 0} || a.Steps != 1 || len(a.Against) != 4 {
		t.Errorf("%+v", a)
	}
	if want := 1.3/(9./7) - 1; a.MaxError == nil || math.Abs(*a.MaxError-(1-9./7/1.3)) > 1e-9 {
		t.Errorf("largest error %v, want %v", a.MaxError, want)
	}
	if err := run("attribute", path, "--against", published); err != nil || !strings.Contains(out.String(), "slowdown S = 1.286") ||
		!strings.Contains(out.String(), "M_W, the slowest workers (1.0): 100.0 % of the damage goes away") || !strings.Contains(out.String(), "largest error 1.099 %") {
		t.Errorf("%v\n%s", err, out.String())
	}
	err := run("attribute", path, "--against", published, "--tolerance", "0.01")
	if off := interface{ ExitCode() int }(nil); !errors.As(err, &off) || off.ExitCode() != exitcode.Failure || !strings.Contains(err.Error(), "result.json: S is 1.1 % off the published number, more than 1.0 %") {
		t.Errorf("%v", err)
	}
	if err := run("import", path); err != nil || !strings.HasSuffix(out.String(), "\n0,0,4,0.666667,0.666667\n0,1,8,1.33333,1.33333\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// Profiles of ranks that do not run on STAR come to the same story as a job of its own.
func TestProfilesTellWhoWasSlow(t *testing.T) {
	dir := t.TempDir()
	for rank := range 3 {
		var events []string
		event := func(name string, at, took float64) {
			events = append(events, fmt.Sprintf(`{"ph":"X","cat":"cpu_op","name":%q,"pid":1,"tid":1,"ts":%g,"dur":%g}`, name, at, took))
		}
		at := 0.0
		for step := range 80 {
			compute, took := 20e3+float64((step*7+rank*3)%11)*100, 72e3 // µs; rank 1 is slow from step 30 on
			if rank == 1 && step >= 30 {
				compute = 70e3
			}
			event("aten::mm", at, compute)
			event("gloo:all_reduce", at+compute, took-compute-500)
			event("Optimizer.step#SGD.step", at+took-500, 500)
			at += took
		}
		text := fmt.Sprintf(`{"distributedInfo":{"rank":%d,"world_size":3},"traceEvents":[%s]}`, rank, strings.Join(events, ","))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank%d.json", rank)), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(args)
		if err := cmd.Execute(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out.String())
		}
		return out.String()
	}
	story := filepath.Join(dir, "story")
	said := run("trace", "import", filepath.Join(dir, "rank2.json"), filepath.Join(dir, "rank0.json"), filepath.Join(dir, "rank1.json"), "--run-log", story)
	for _, want := range []string{"3 ranks of a job", "rank 1 on imported is ", "x slow since step ", "(cause: compute)", "79 steps in"} {
		if !strings.Contains(said, want) {
			t.Errorf("nobody says %q:\n%s", want, said)
		}
	}
	if text := run("explain", story); !strings.Contains(text, "w1 ") || !strings.Contains(text, "slow") {
		t.Error(text)
	}
	if text := run("trace", "import", filepath.Join(dir, "rank0.json"), filepath.Join(dir, "rank1.json"), filepath.Join(dir, "rank2.json")); !strings.Contains(text, "3 workers, 79 steps") {
		t.Error(text)
	}
}

// The flight records of a job come to its story; one that would have something called is refused, and nothing is
// called.
func TestFlightRecordsTellWhoWasSlow(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"trace", "import"}, args...))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.Execute()
		return out.String(), err
	}
	paths, err := filepath.Glob("../../sim/trace/testdata/flight_rank_*.gz")
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	said, err := run(append(paths, "--run-log", filepath.Join(t.TempDir(), "story"))...)
	if err != nil || !strings.Contains(said, "rank 1 on imported is 2.7x slow since step 18: ") || !strings.Contains(said, "(cause: compute)") || strings.Contains(said, "rank 0 on") || strings.Contains(said, "rank 2 on") {
		t.Errorf("%v\n%s", err, said)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	bad := filepath.Join(t.TempDir(), "rank_0")
	if err := os.WriteFile(bad, []byte("\x80\x02cos\nsystem\n\x8c"+string([]byte{byte(len("touch " + ran))})+"touch "+ran+"\x85R."), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := run(bad); err == nil || job.ExitCode(err) != exitcode.Corrupt || !strings.Contains(err.Error(), `rank_0: byte 2: it would have "os.system" of Python called (GLOBAL)`) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it was called")
	}
}
