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
