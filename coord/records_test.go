package coord

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star"
)

type keep struct{ bytes.Buffer }

func (*keep) Close() error { return nil }

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
	l := NewRunLog(&w)
	l.write(logStart{Type: "start"})
	for _, r := range want {
		l.record(time.Minute, r, 640, nil)
		l.write(logFire{Type: "fire"})
	}
	if err := l.flush(); err != nil {
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
		var re *RunError
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
