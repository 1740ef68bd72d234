package runlog

import (
	"bytes"
	"testing"
	"time"

	"star"
)

// What a reader takes for the lines of an update by one worker: record, fire and noise.
func BenchmarkRead(b *testing.B) {
	var log bytes.Buffer
	w := NewWriter(nopCloser{&log})
	w.Write(0, Start{Format: 1, Program: "star", Config: []byte("{}")})
	w.Write(0, Train{Workers: 4, Shards: 1, Limit: 1})
	const n = 20000
	for i := range int64(n) {
		at := time.Duration(i) * 1234567
		r := star.Record{
			Worker: star.Worker(i % 4), Step: i / 4, Basis: i, At: at, Load: 21345, Compute: 2123456, Push: 345678, Wait: 2345678, Pull: 456789, Transit: 34567,
			Samples: 64, Loss: 0.123456789, Norm2: 1.23456789, CPU: 0.7654321, NetIn: 940584, NetOut: 940712,
		}
		for m := range star.NumMetrics / 2 {
			r.Telemetry.Set(m, float64(m)/7)
		}
		w.Record(at, &Record{Record: r, Start: 64 * i})
		w.Write(at, Fire{Seq: i + 1, Version: i + 1, Workers: []star.Worker{r.Worker}, Staleness: []int64{3}, Samples: 64 * (i + 1)})
		w.Write(at, Noise{Version: i + 1, Grad2: 1.5, Var: 2.5, Scale: 345.678})
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(log.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(log.Bytes()), "log", func(Line) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
}
