package coord

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
)

// The last so many, in order: against a list that is cut.
func TestRecollection(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		workers := rapid.IntRange(1, 3).Draw(r, "workers")
		m := newRecollection(workers)
		var all []star.Record
		for i := range rapid.IntRange(0, 250).Draw(r, "records") {
			x := star.Record{Worker: star.Worker(i % workers), Step: int64(i)}
			m.add(x)
			all = append(all, x)
		}
		want := all[max(0, len(all)-rememberEach*workers):]
		got := m.records()
		if len(got) != len(want) {
			r.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i].Step != want[i].Step {
				r.Fatalf("record %d is of step %d, want %d", i, got[i].Step, want[i].Step)
			}
		}
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
	for _, bad := range []string{"nothing\n", `{"type":"fire"}` + "\n", `{"type":"record","worker":-1,"step":0}` + "\n", strings.Repeat(`{"type":"record","worker":0,"step":0}`+"\n", rememberAll+1)} {
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
