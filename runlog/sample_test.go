package runlog

import (
	"strings"
	"testing"
	"time"

	"star"
)

// crowded writes a log of a job with that many workers, each with perSecond iterations a second, and returns it with
// the records that were written.
func crowded(t *testing.T, workers, sample, perSecond, seconds int) (string, []star.Record) {
	t.Helper()
	var w keep
	l := NewWriter(&w)
	l.Sample(sample)
	l.Write(0, Start{Format: 1})
	l.Write(0, Train{Workers: workers})
	var records []star.Record
	for step := range perSecond * seconds {
		for id := range workers {
			at := time.Duration(step)*time.Second/time.Duration(perSecond) + time.Duration(id)*time.Microsecond
			r := star.Record{Worker: star.Worker(id), Step: int64(step), Basis: int64(step), At: at, Compute: 50 * time.Millisecond, Samples: 1}
			for m := range star.NumMetrics {
				if m != star.Paused || step%3 == 0 {
					r.Telemetry.Set(m, float64(1+int(m)+step%7))
				}
			}
			l.Record(at, &Record{Record: r, Start: -1})
			records = append(records, r)
		}
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	return w.String(), records
}

// A job of many workers has a bound for full records. All records have what verdicts and simulations depend on, and are
// read with the metrics of the worker's last full one.
func TestSampledRecords(t *testing.T) {
	text, want := crowded(t, 100, 100, 16, 6)
	var every int64 = 1
	var fulls [6]int // by second
	last := make([]star.Telemetry, 100)
	i := 0
	if _, err := Read(strings.NewReader(text), "run.jsonl", func(l Line) error {
		switch e := l.Entry.(type) {
		case Sampled:
			if every = e.Every; e.Rate < 1550 || e.Rate > 1650 {
				t.Errorf("rate %v, want about 1600", e.Rate)
			}
		case Record:
			r := want[i]
			i++
			if full(every, r.Worker, r.Step) {
				fulls[int(l.T.Seconds())]++
				last[r.Worker] = r.Telemetry
			} else {
				own := r.Telemetry
				r.Telemetry = last[r.Worker]
				for _, m := range []star.Metric{star.ComputeCPU, star.Throttled, star.Stalled, star.Parts, star.Paused, star.FarIn, star.FarOut,
					star.Processes, star.SlowProcess, star.SlowProcessTime, star.OtherProcesses} {
					r.Telemetry.Seen &^= 1 << m
					if v, ok := own.Get(m); ok {
						r.Telemetry.Set(m, v)
					}
				}
			}
			if e.Record != r {
				t.Fatalf("record %d: got %+v, want %+v", i, e.Record, r)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if i != len(want) {
		t.Errorf("%d records, want %d", i, len(want))
	}
	if every != 4 {
		t.Errorf("every %d at the end, want 4", every)
	}
	for second, n := range fulls[2:] {
		if n > fullRate+1 {
			t.Errorf("%d full records in second %d, at most %d", n, second+2, fullRate)
		}
	}
	if got := strings.Count(text, `"gpu_power"`); got != fulls[0]+fulls[1]+fulls[2]+fulls[3]+fulls[4]+fulls[5] {
		t.Errorf("%d lines have all metrics, want those of full records only: %v", got, fulls)
	}
}

// A job of few workers has full records at any rate, and the log of one that does not ask for sampling is the same.
func TestFewWorkersAreNotSampled(t *testing.T) {
	all, _ := crowded(t, 8, 8, 500, 3)
	if plain, _ := crowded(t, 8, 0, 500, 3); all != plain {
		t.Error("the log differs from one without sampling")
	}
}

// When the rate falls records are full again.
func TestSamplingEnds(t *testing.T) {
	s := sampling{on: true, every: 1}
	at := time.Duration(0)
	run := func(rate, seconds int) {
		for range rate * seconds {
			at += time.Second / time.Duration(rate)
			s.count(at)
		}
	}
	for _, c := range []struct {
		rate int
		want int64
	}{{400, 1}, {900, 2}, {9000, 32}, {1100, 8}, {600, 4}, {400, 2}, {100, 1}} {
		if run(c.rate, 4); s.every != c.want {
			t.Errorf("at %d records a second every is %d, want %d", c.rate, s.every, c.want)
		}
	}
}
