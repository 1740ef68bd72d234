package coord

import (
	"encoding/json"
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
		f := func(name string) float64 { return whole.Draw(t, name) }
		n := func(name string) Number { return Number(any64.Draw(t, name)) }
		i := func(name string) int64 { return rapid.Int64().Draw(t, name) }
		var tele star.Telemetry
		for m := range star.NumMetrics {
			if rapid.Bool().Draw(t, m.String()) {
				tele.Set(m, any64.Draw(t, "of "+m.String()))
			}
		}
		var stale []int64
		for _, s := range ints.Draw(t, "stale") {
			stale = append(stale, int64(s))
		}
		var start *int64
		if rapid.Bool().Draw(t, "starts") {
			v := i("start")
			start = &v
		}
		for _, l := range []any{
			&logRecord{
				Type: "record", T: f("t"), Worker: int(i("worker")), Step: i("step"), Basis: i("basis"), At: f("at"), Load: f("load"), Compute: f("compute"),
				Injected: f("injected"), Push: f("push"), Wait: f("wait"), Pull: f("pull"), Transit: f("transit"), Start: start, Samples: int(i("samples")),
				Loss: n("loss"), Norm2: n("norm2"), CPU: n("cpu"), NetIn: n("in"), NetOut: n("out"), Telemetry: telemetry(tele),
			},
			&logFire{
				Type: "fire", T: f("t"), Seq: i("seq"), Version: i("version"), Workers: ints.Draw(t, "workers"), Stale: stale,
				Reports: ints.Draw(t, "reports"), Dropped: ints.Draw(t, "dropped"), Pieces: ints.Draw(t, "pieces"), Samples: i("samples"), Round: int(i("round")),
			},
			&logNoise{
				Type: "noise", T: f("t"), Version: i("version"), Grad2: n("grad2"), Var: n("var"), Mixed: rapid.Bool().Draw(t, "mixed"),
				Scale: n("scale"), Drift: n("drift"), Strength: n("strength"),
			},
		} {
			if _, ok := l.(line); !ok {
				t.Fatalf("%T is not encoded by hand", l)
			}
			want, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			got, err := encode([]byte("x"), l)
			if string(got) != "x"+string(want)+"\n" || err != nil {
				t.Fatalf("%s, %v\nwant %s", got[1:], err, want)
			}
		}
	})
}

// What JSON cannot say is an error, and the log keeps it.
func TestLineError(t *testing.T) {
	l := NewRunLog(nopCloser{io.Discard})
	l.write(logStop{Type: "stop", T: math.NaN()})
	l.write(&logFire{Type: "fire"})
	if err := l.close(); err == nil {
		t.Error("a time that is no number was written")
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// A line of the log is a part of every step.
func BenchmarkRunLog(b *testing.B) {
	r := star.Record{
		Worker: 3, Step: 12345, Basis: 12345, At: 81234567890, Load: 21345, Compute: 2123456, Push: 345678, Wait: 2345678, Pull: 456789, Transit: 34567,
		Samples: 64, Loss: 0.123456789, Norm2: 1.23456789, CPU: 0.7654321, NetIn: 940584, NetOut: 940712,
	}
	for m := range star.NumMetrics {
		r.Telemetry.Set(m, float64(m)/7)
	}
	l := NewRunLog(nopCloser{io.Discard})
	b.ReportAllocs()
	for b.Loop() {
		l.record(80*time.Second, r, 0, nil)
	}
	if l.err != nil {
		b.Fatal(l.err)
	}
}
