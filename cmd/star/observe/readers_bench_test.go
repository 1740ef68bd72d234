//go:build unix

package observe

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"star"
	"star/cmd/internal/cli"
	"star/observe/explain"
	"star/observe/web"
	"star/runlog"
)

// writeBig writes the log of a job of that size, with one worker that is slow for a while.
func writeBig(tb testing.TB, path string, workers, rounds int) {
	tb.Helper()
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	w := runlog.NewWriter(f)
	w.Write(0, runlog.Start{Format: 1, Program: "star", Config: []byte("{}")})
	w.Write(0, runlog.Train{Workers: workers, Shards: 1, Limit: 1, Plan: "ssgd"})
	all, staleness := make([]star.Worker, workers), make([]int64, workers)
	samples := int64(0)
	for round := range int64(rounds) {
		at := time.Duration(round) * 100123456
		for i := range workers {
			noise := time.Duration(round*7919+int64(i)*104729) % 1000003
			r := runlog.Record{Start: samples, Record: star.Record{
				Worker: star.Worker(i), Step: round, Basis: round, At: at, Load: 21345 + noise/10, Compute: 20123456 + noise, Push: 345678, Wait: 2345678 - noise, Pull: 456789, Transit: 34567,
				Samples: 32, Loss: 1 / float64(round+3), Norm2: 1 / float64(i+7), CPU: 0.7654321, NetIn: 940584, NetOut: 940712,
			}}
			if i == 1 && round*3 > int64(rounds) && round*2 < int64(rounds) {
				r.Compute *= 3
			}
			for m := range star.NumMetrics / 2 {
				r.Telemetry.Set(m, float64(noise)/1e6/float64(m+1))
			}
			samples += 32
			all[i] = star.Worker(i)
			w.Record(at+time.Duration(i)*1017, &r)
		}
		w.Write(at+5e6, runlog.Fire{Seq: round + 1, Version: round + 1, Workers: all, Staleness: staleness, Samples: samples})
		w.Write(at+5e6, runlog.Noise{Version: round + 1, Grad2: 1.5, Var: 2.5, Scale: 345.678})
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
}

// What the readers of big logs take for a record, of wall time and of processor time.
func BenchmarkReaders(b *testing.B) {
	const records = 100000
	for _, workers := range []int{8, 1000} {
		path := filepath.Join(b.TempDir(), "run.jsonl")
		writeBig(b, path, workers, records/workers)
		for _, c := range []struct {
			name string
			run  func() error
		}{
			{"explain", func() error {
				s, err := readStory(path)
				if err != nil {
					return err
				}
				return s.Text(io.Discard, explain.View{})
			}},
			{"report", func() error {
				f, err := cli.OpenRun(path)
				if err != nil {
					return err
				}
				defer f.Close()
				state := web.NewState()
				if _, err := runlog.Read(f, path, state.Line); err != nil {
					return err
				}
				return web.Report(io.Discard, state)
			}},
			{"export-csv", func() error { return (&exports{csv: b.TempDir()}).write(io.Discard, path) }},
			{"export-parquet", func() error { return (&exports{parquet: b.TempDir()}).write(io.Discard, path) }},
			{"export-tensorboard", func() error { return (&exports{tensorboard: b.TempDir()}).write(io.Discard, path) }},
			{"export-perfetto", func() error {
				return (&exports{perfetto: filepath.Join(b.TempDir(), "p.json")}).write(io.Discard, path)
			}},
		} {
			b.Run(fmt.Sprintf("%s/workers=%d", c.name, workers), func(b *testing.B) {
				began := processorTime()
				for b.Loop() {
					if err := c.run(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(records*b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(records*b.N)/(processorTime()-began).Seconds(), "records/processor-s")
			})
		}
	}
}

// processorTime is what this process has had.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
