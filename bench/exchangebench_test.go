package bench

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestExchanges(t *testing.T) {
	cfg := ExchangeConfig{Command: []string{os.Args[0]}, Models: []string{"lenet"}, Ranks: []int{2}, Transports: []string{"tcp", "unix"}, Steps: 3, Rounds: 2, Bucket: 0.1}
	want := []string{"none ", "star tcp", "star unix"}
	if !testing.Short() && exec.Command("/usr/bin/python3", "-c", "import torch").Run() == nil {
		cfg.Against, cfg.Congestion = "gloo", "kernel" // cubic needs a compiler
		want = append(want, "gloo tcp")
	}
	rows, err := Exchanges(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(want) {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	for i, r := range rows {
		if got := r.Exchange + " " + r.Transport; got != want[i] || r.Params != 61706 || r.Buckets != 3 || r.Runs != 2 || r.Steps != 6 {
			t.Errorf("%+v, want %s", r, want[i])
		}
		if !(r.P10 > 0) || r.P90 < r.P10 || !(r.CPU > 0) || math.Abs(r.Rate*r.Median-128) > 1e-6 || (r.Doorbell > 0) != (r.Exchange == "gloo") || r.Exposed < 0 || r.Exposed > r.P90 {
			t.Errorf("%+v", r)
		}
		if (r.Ratio > 0) != (cfg.Against != "" && r.Exchange != "none") {
			t.Errorf("%+v", r)
		}
	}
}

func TestExchangesFailures(t *testing.T) {
	us := []string{os.Args[0]}
	for text, cfg := range map[string]ExchangeConfig{
		"no command":      {},
		`model "vgg"`:     {Command: us, Models: []string{"vgg"}},
		`peer "nccl"`:     {Command: us, Against: "nccl"},
		"python3-torch":   {Command: us, Models: []string{"lenet"}, Ranks: []int{2}, Transports: []string{"unix"}, Against: "gloo", Python: "/bin/false", Congestion: "kernel", Rounds: 1, Steps: 1},
		`is "pigeon"`:     {Command: us, Models: []string{"lenet"}, Ranks: []int{2}, Transports: []string{"pigeon"}, Rounds: 1, Steps: 1},
		"buckets of 1e-1": {Command: us, Bucket: 1e-10},
	} {
		if _, err := Exchanges(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// Sides that have not done the same are found; a row that exchanges nothing is not compared.
func TestAgree(t *testing.T) {
	rows := []ExchangeResult{{Exchange: "none"}, {Exchange: "star"}, {Exchange: "gloo"}}
	turns := func(norms ...float64) (ts [][]exchanged) {
		for _, n := range norms {
			ts = append(ts, []exchanged{{Norm: n}})
		}
		return ts
	}
	if err := agree(rows, turns(5, 1, 1.00001)); err != nil {
		t.Error(err)
	}
	for _, bad := range []float64{1.01, math.NaN(), 0} {
		if err := agree(rows, turns(5, 1, bad)); err == nil || !strings.Contains(err.Error(), "not done the same") {
			t.Errorf("norm %v: %v", bad, err)
		}
	}
}
