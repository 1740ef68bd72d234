package runlog

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star"
)

// What the run log says of a record is what it was.
func TestRecordsReadBack(t *testing.T) {
	var want []star.Record
	for i := range 3 {
		r := star.Record{
			Worker: star.Worker(i), Step: 7, Basis: 6, At: 90 * time.Second, Compute: 180 * time.Millisecond, Load: 2, Push: 900 * time.Microsecond,
			Wait: time.Hour, Pull: time.Nanosecond, Transit: 5, Injected: time.Duration(i), Samples: 64, Loss: 0.25, Norm2: math.NaN(), CPU: 0.875, NetIn: 1, NetOut: 2,
		}
		if i > 0 {
			r.Telemetry.Set(star.ComputeCPU, 0.5)
			r.Telemetry.Set(star.GPUClock, 1980)
		}
		want = append(want, r)
	}
	var w keep
	l := NewWriter(&w)
	l.Write(0, Start{Format: 1})
	l.Write(0, Train{Workers: 3})
	for _, r := range want {
		l.Record(time.Minute, &Record{Record: r, Start: 640})
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	var got []star.Record
	if _, err := Read(strings.NewReader(w.String()+`{"type":"rec`), "run.jsonl", func(l Line) error {
		if r, ok := l.Entry.(Record); ok {
			got = append(got, r.Record)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Records go into a checkpoint and come out the same; what was not measured stays so.
func TestRecordsAreKept(t *testing.T) {
	in := []star.Record{
		{Worker: 1, Step: 7, Basis: 6, At: -3 * time.Second, Compute: 20 * time.Millisecond, Samples: 32, Loss: 0.5, Norm2: 2, CPU: math.NaN()},
		{Worker: 0, Step: 8, At: time.Second, Wait: time.Millisecond, Samples: 16, Loss: math.Inf(1)},
	}
	var b bytes.Buffer
	if err := EncodeRecords(&b, in); err != nil {
		t.Fatal(err)
	}
	out, err := DecodeRecords(b.Bytes())
	if err != nil || len(out) != 2 {
		t.Fatal(out, err)
	}
	if !math.IsNaN(out[0].CPU) || !math.IsNaN(out[1].Loss) { // the log knows finite numbers only
		t.Errorf("%+v", out)
	}
	in[0].CPU, out[0].CPU, in[1].Loss, out[1].Loss = 0, 0, 0, 0
	if !reflect.DeepEqual(in, out) {
		t.Errorf("%+v came back as %+v", in, out)
	}
	if none, err := DecodeRecords(nil); len(none) > 0 || err != nil {
		t.Errorf("of nothing: %v, %v", none, err)
	}
	for _, bad := range []string{"nothing\n", `{"type":"fire"}` + "\n", `{"type":"record","worker":-1,"step":0}` + "\n", strings.Repeat(`{"type":"record","worker":0,"step":0}`+"\n", MaxRecords+1)} {
		if _, err := DecodeRecords([]byte(bad)); err == nil {
			t.Errorf("%.40q was taken", bad)
		}
	}
}

func FuzzDecodeRecords(f *testing.F) {
	f.Add([]byte(`{"type":"record","worker":0,"step":1,"at":2.5,"samples":3}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rs, err := DecodeRecords(b)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := EncodeRecords(&out, rs); err != nil {
			t.Fatal(err)
		}
		again, err := DecodeRecords(out.Bytes())
		if err != nil || len(again) != len(rs) {
			t.Fatalf("%q: %d records came back as %d, %v", b, len(rs), len(again), err)
		}
	})
}
