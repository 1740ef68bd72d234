package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// star trace attribute on a trace that can be checked by hand: two data ranks, one stage, one micro-batch, in which rank 1 computes backward three times
// as long. The scatter of gradients takes 1 from when both are there.
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
	var a attributed
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
	if off := (*offError)(nil); !errors.As(err, &off) || !strings.Contains(err.Error(), "result.json: S is 1.1 % off the published number, more than 1.0 %") {
		t.Errorf("%v", err)
	}
	if err := run("import", path); err != nil || !strings.HasSuffix(out.String(), "\n0,0,4,0.666667,0.666667\n0,1,8,1.33333,1.33333\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
