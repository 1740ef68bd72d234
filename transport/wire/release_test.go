package wire

import (
	"reflect"
	"testing"
	"time"
)

// A release of local steps, or of a batch in parts, comes back as it was.
func TestReleaseOfSteps(t *testing.T) {
	plain := Release{Worker: 2, Version: 7, Start: 96, Count: 32, Delay: time.Millisecond}
	short := plain.AppendTo(nil)
	for _, change := range []func(m *Release){
		func(m *Release) { m.Local = 8 },
		func(m *Release) { m.Local, m.Outer = 8, "nesterov(0.9,0.7)" },
		func(m *Release) { m.Micro, m.Cap = 4, 120*time.Millisecond },
		func(m *Release) { m.Part, m.More = 4, []Piece{{Start: 1 << 40, Count: 8}, {Start: 3, Count: 4}} },
		func(m *Release) {},
	} {
		want := plain
		change(&want)
		b := want.AppendTo(nil)
		got, err := ParseRelease(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v came back as %+v, %v", want, got, err)
		}
		if len(b) < len(short) {
			t.Errorf("%+v has %d bytes, fewer than %d without steps", want, len(b), len(short))
		}
	}
	for _, bad := range []Release{{Local: maxSteps + 1}, {Micro: maxSteps + 1, Cap: 1}, {Local: 1, Cap: -1}, {Part: -1}, {Part: 1, More: []Piece{{Start: 1}}}, {Part: 1, More: []Piece{{Start: -1, Count: 1}}}, {Part: 1, More: make([]Piece, MaxPieces+1)}} {
		if m, err := ParseRelease(bad.AppendTo(nil)); err == nil {
			t.Errorf("%+v parses, as %+v", bad, m)
		}
	}
}

// A Fire with an outer step comes back as it was, and a shard that knows no outer steps refuses it.
func TestFireOfOuterStep(t *testing.T) {
	want := Fire{Seq: 3, Version: 2, Samples: 640, Gradients: []Gradient{{Worker: 1, Step: 4, Weight: 0.5}}, Outer: "nesterov(0.9,0.7)"}
	f := want
	b := f.AppendTo(nil)
	var got Fire
	if err := got.Parse(b); err != nil || got.Outer != want.Outer || got.Samples != want.Samples || got.Local != 0 {
		t.Errorf("%+v came back as %+v, %v", want, got, err)
	}
	// Without the last field it is what an older shard reads: samples are negative, without steps.
	old := append([]byte{b[0] - 1}, b[1:len(b)-len(want.Outer)-1]...)
	if err := got.Parse(old); err == nil {
		t.Error("an older shard takes distances for gradients")
	}
	f = want
	f.Local = 8
	if err := got.Parse(f.AppendTo(nil)); err == nil {
		t.Error("an outer step with local steps of the mean parses")
	}
}
