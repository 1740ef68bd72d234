package runlog

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
)

// Lines that are encoded by hand are those of encoding/json, byte for byte.
func TestLines(t *testing.T) {
	whole := rapid.OneOf(rapid.Float64Range(-1e3, 1e3), rapid.Float64Range(0, 1e-5), rapid.SampledFrom([]float64{
		0, math.Copysign(0, -1), 1, 1e-6, 9.999999e-7, 1e-7, 1.5e-10, 1e-100, 1e20, 1e21, -1e21, 3e100, math.MaxFloat64, math.SmallestNonzeroFloat64,
	}))
	any64 := rapid.OneOf(whole, rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}))
	ints := rapid.OneOf(rapid.SliceOfN(rapid.IntRange(-3, 4095), 0, 5), rapid.Just[[]int](nil))
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string) Number { return Number(any64.Draw(t, name)) }
		i := func(name string) int64 { return rapid.Int64().Draw(t, name) }
		var tele star.Telemetry
		for m := range star.NumMetrics {
			if rapid.Bool().Draw(t, m.String()) {
				tele.Set(m, any64.Draw(t, "of "+m.String()))
			}
		}
		var start *int64
		if rapid.Bool().Draw(t, "starts") {
			v := i("start")
			start = &v
		}
		at := whole.Draw(t, "t")
		s := func(name string) Seconds { return Seconds(whole.Draw(t, name)) }
		l := recordLine{
			Worker: star.Worker(i("worker")), Step: i("step"), Basis: i("basis"), At: s("at"), Load: s("load"), Compute: s("compute"),
			Injected: s("injected"), Push: s("push"), Wait: s("wait"), Pull: s("pull"), Transit: s("transit"), Start: start, Samples: int(i("samples")),
			More: many[int64](ints.Draw(t, "more")), Loss: n("loss"), Norm2: n("norm2"), CPU: n("cpu"), NetIn: n("in"), NetOut: n("out"), Telemetry: telemetry(tele),
		}
		same(t, "record", at, &l)
		same(t, "fire", at, Fire{
			Seq: i("seq"), Version: i("version"), Workers: many[star.Worker](ints.Draw(t, "workers")), Staleness: many[int64](ints.Draw(t, "stale")),
			Reports: many[star.Worker](ints.Draw(t, "reports")), Dropped: many[star.Worker](ints.Draw(t, "dropped")), Pieces: many[int64](ints.Draw(t, "pieces")), More: many[int64](ints.Draw(t, "more of it")),
			Samples: i("samples"), Round: int(i("round")),
		})
		same(t, "noise", at, Noise{
			Version: i("version"), Grad2: n("grad2"), Var: n("var"), Mixed: rapid.Bool().Draw(t, "mixed"),
			Scale: n("scale"), Drift: n("drift"), Strength: n("strength"),
		})
	})
}

// many are x as numbers of another type; nil stays nil.
func many[T ~int | ~int64](x []int) (out []T) {
	for _, v := range x {
		out = append(out, T(v))
	}
	return out
}

// same holds a line that is encoded by hand against encoding/json.
func same(t *rapid.T, kind string, at float64, l appender) {
	fields, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`x{"type":%q,"t":%s,%s`, kind, seconds, fields[1:])
	if got := l.appendTo([]byte("x"), at); string(got) != want {
		t.Fatalf("%s\nwant %s", got, want)
	}
	if _, diff := agree(l.appendTo(nil, at)); diff != "" {
		t.Fatalf("%s is read as something else: %s", want, diff)
	}
}

// What JSON cannot say is an error, and the log keeps it.
func TestLineError(t *testing.T) {
	w := NewWriter(nopCloser{io.Discard})
	w.Write(0, Late{Waited: Seconds(math.NaN())})
	w.Write(0, Fire{})
	if err := w.Close(); err == nil {
		t.Error("a time that is no number was written")
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// A line of the log is a part of every step.
func BenchmarkRecord(b *testing.B) {
	r := star.Record{
		Worker: 3, Step: 12345, Basis: 12345, At: 81234567890, Load: 21345, Compute: 2123456, Push: 345678, Wait: 2345678, Pull: 456789, Transit: 34567,
		Samples: 64, Loss: 0.123456789, Norm2: 1.23456789, CPU: 0.7654321, NetIn: 940584, NetOut: 940712,
	}
	for m := range star.NumMetrics {
		r.Telemetry.Set(m, float64(m)/7)
	}
	w := NewWriter(nopCloser{io.Discard})
	b.ReportAllocs()
	for b.Loop() {
		w.Record(80*time.Second, &Record{Record: r})
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}
