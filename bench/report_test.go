package bench

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A page of results says which method is faster by how much, and omits no method that is behind.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, v any) {
		t.Helper()
		text, err := json.Marshal(v)
		if s, ok := v.(string); ok {
			text, err = []byte(s), nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	row := func(n int, size int64, kind, algorithm string, median float64) Row {
		return Row{Ranks: n, Bytes: size, Transport: kind, Algorithm: algorithm, Median: median, BusBW: float64(size) / median, CPU: 1.5, Allocs: -1}
	}
	if err := Report(new(strings.Builder), dir); err == nil {
		t.Error("an empty folder")
	}
	thrifty := row(2, 1<<20, "shm", "openmpi-shm", 120e-6)
	thrifty.CPU = 0.5
	put(ReportRows, []Row{
		// 0.6: promised 0.5
		row(2, 4, "tcp", "doubling", 10e-6), row(2, 4, "tcp", "openmpi-tcp", 6e-6), row(2, 4, "tcp", "gloo", 300e-6),
		// 1.2 of Gloo: promised 1.3
		row(2, 1<<20, "tcp", "ring", 200e-6), row(2, 1<<20, "tcp", "openmpi-tcp", 300e-6), row(2, 1<<20, "tcp", "gloo", 240e-6),
		// 1.5
		row(2, 100e6, "tcp", "ring", 20e-3), row(2, 100e6, "tcp", "openmpi-tcp", 30e-3), row(2, 100e6, "tcp", "gloo", 40e-3),
		row(2, 1<<20, "shm", "ring", 150e-6), thrifty, // 0.8: promised 1
	})
	if err := Report(new(strings.Builder), dir); err == nil || !strings.Contains(err.Error(), ReportConditions) {
		t.Errorf("without conditions: %v", err)
	}
	put(ReportConditions, "On a machine.\n")
	put(ReportPoll, []Row{row(2, 4, "tcp", "doubling", 5e-6), row(2, 4, "tcp", "openmpi-tcp", 6e-6)})
	put(ReportCrowd, []Row{row(4, 1<<20, "tcp", "ring", 1e-3), row(8, 1<<20, "tcp", "ring", 4e-3)}) // half
	put(ReportSteps, map[string]any{"exchange": []ExchangeResult{
		{Model: "lenet", Ranks: 2, Exchange: "star", Transport: "tcp", Median: 1e-3, Ratio: 0.9}, {Model: "lenet", Ranks: 2, Exchange: "gloo", Doorbell: 20e-6, Ratio: 1},
		{Model: "mlp25m", Ranks: 2, Exchange: "star", Transport: "tcp", Ratio: 1.1},
	}})
	var b strings.Builder
	if err := Report(&b, dir); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"On a machine.", "| ranks | link |  | 4 B | 1 MiB | 100 MB |",
		"| 2 | TCP | STAR | 10 | 200 | 20,000 |", "| 2 | TCP | Gloo | 300 | 240 | 40,000 |", "| 2 | one host | STAR | | 150 | |",
		"| 2 | TCP | | **0.60** | 1.20 | **1.50** |", "| 2 | one host | | | 0.80 | |", "| 2 | TCP | | **1.20** |",
		"| tcp | 1 MiB | 4.19 | 2.10 | 0.50 |", "| lenet | 0 | 2 | Gloo, tcp |", "20 µs",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	_, behind, _ := strings.Cut(b.String(), "### Where STAR is behind\n\n")
	want := `- 2 ranks, TCP, 1 MiB: 1.20 times as fast as Gloo; aimed at: 1.3
- 2 ranks, one host, 1 MiB: 0.80 times as fast as Open MPI; aimed at: 1.0
- 2 ranks, one host, 1 MiB: 1.50 s of processor time for each 10⁹ bytes; the better peer 0.50
- 8 ranks, tcp, 1 MiB: 0.50 times the aggregate bandwidth of 4 ranks; aimed at: 0.8
- lenet by 2 ranks over tcp: 0.90 of the samples per second with Gloo; aimed at: 1.0
`
	if behind != want {
		t.Errorf("behind:\n%s\nwant\n%s", behind, want)
	}
	put(ReportPoll, "{}")
	if err := Report(&b, dir); !errors.Is(err, ErrRows) {
		t.Errorf("a file that is none: %v", err)
	}
}
