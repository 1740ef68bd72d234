package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMain makes the test binary one rank of the all-reduce benchmark, or a process of a
// bare job, where it is started as one.
func TestMain(m *testing.M) {
	if text := os.Getenv(RankVariable); text != "" {
		if err := RankMain(context.Background(), text, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if text := os.Getenv(BareVariable); text != "" {
		if err := BareMain(context.Background(), text, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestAllReduceBench(t *testing.T) {
	rows, err := AllReduce(t.Context(), AllReduceConfig{
		Command: []string{os.Args[0]}, Ranks: []int{2, 3}, Sizes: []int64{4, 64 << 10}, Transports: []string{"tcp", ""}, Rounds: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 8 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	for _, r := range rows {
		if r.Runs != 1 || !(r.P10 > 0) || r.Median < r.P10 || r.P90 < r.Median || r.AlgBW != float64(r.Bytes)/r.Median || r.CPU < 0 || r.Allocs < 0 || r.Transport == "" {
			t.Errorf("%+v", r)
		}
	}
	if two, three := rows[0], rows[4]; two.Ranks != 2 || three.Ranks != 3 || two.BusBW != two.AlgBW {
		t.Errorf("%+v, %+v", two, three)
	}
}

func TestAllReduceBenchFailures(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		cfg  AllReduceConfig
		text string
	}{
		{AllReduceConfig{}, "no command"},
		{AllReduceConfig{Command: []string{"/nowhere"}}, "/nowhere"},
		{AllReduceConfig{Command: []string{os.Args[0]}, Peers: []string{"nccl"}}, `no peer "nccl"`},
		{AllReduceConfig{Command: []string{os.Args[0]}, Ranks: []int{2}, Transports: []string{"pigeon"}}, `Transport is "pigeon"`},
	} {
		if _, err := AllReduce(ctx, c.cfg); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.text)
		}
	}
}
