package runlog

import (
	"bytes"
	"errors"
	"io"
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
	l.Write(0, Start{})
	for _, r := range want {
		l.Record(time.Minute, &Record{Record: r, Start: 640})
		l.Write(time.Minute, Fire{})
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	var got []star.Record
	text := w.String()
	if err := ReadRecords(strings.NewReader(text+`{"type":"rec`), "run.jsonl", func(r star.Record) error { got = append(got, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if err := ReadRecords(strings.NewReader(text), "", func(star.Record) error { return io.EOF }); err != io.EOF {
		t.Errorf("the reader's error becomes %v", err)
	}
}

func TestReadRecordsRefuses(t *testing.T) {
	const start = `{"type":"start"}` + "\n"
	for _, c := range []struct{ log, want string }{
		{"", "run.jsonl:1: empty"},
		{"{", "run.jsonl:1: not a line"},
		{`{"type":"record"}`, "run.jsonl:1: begins with a line of type \"record\""},
		{"PK\x03\x04", "run.jsonl:1: not a line"},
		{start + "{broken\n" + start, "run.jsonl:2: not a line"},
		{start + `{"type":"record","worker":-1}`, "run.jsonl:2: record: worker -1"},
		{start + `{"type":"record","worker":4096,"step":0}`, "worker 4096"},
		{start + `{"type":"record","worker":0,"step":0,"compute":1e300}`, "record: compute is 1e+300 s, want 0 to 1e+09"},
		{start + `{"type":"record","worker":0,"step":0,"push":-1}`, "run.jsonl:2: record: push is -1 s, want 0 to 1e+09"},
		{start + `{"type":"record","worker":0,"step":3}` + "\n" + `{"type":"record","worker":1,"step":3}` + "\n" + `{"type":"record","worker":0,"step":3}`,
			"run.jsonl:4: record: step 3 of worker 0 after its step 3 in line 2: want each step once, in order"},
		{start + `{"type":"record","compute":"long"}`, "run.jsonl:2: record:"},
	} {
		err := ReadRecords(strings.NewReader(c.log), "run.jsonl", func(star.Record) error { return nil })
		var re *Error
		if !errors.As(err, &re) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
}

func FuzzReadRecords(f *testing.F) {
	f.Add([]byte(`{"type":"start"}` + "\n" + `{"type":"record","worker":1,"telemetry":{"steal":0.5,"new":1,"quota":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ReadRecords(bytes.NewReader(b), "f", func(r star.Record) error {
			if r.Worker < 0 || r.Step < 0 {
				t.Fatalf("%+v", r)
			}
			return nil
		})
	})
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
