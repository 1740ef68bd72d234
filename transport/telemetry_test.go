package transport

import (
	"math"
	"strings"
	"testing"

	"star"
	"star/transport/wire"
)

// An Arrive of a peer that knows nothing of telemetry, or more of it than we do.
func TestTelemetryOfOtherVersions(t *testing.T) {
	head := wire.Arrive{Record: star.Record{Worker: 1, Samples: 2}}.AppendTo(nil)[3:] // without the array's length
	head = head[:len(head)-2]                                                         // and without the empty telemetry
	with := func(n int, tail ...byte) []byte { return append(append([]byte{0xdc, 0, byte(n)}, head...), tail...) }
	one := []byte{0xca, 0x3f, 0x80, 0, 0}
	join := func(bs ...[]byte) (out []byte) {
		for _, b := range bs {
			out = append(out, b...)
		}
		return out
	}

	old, err := wire.ParseArrive(with(16))
	if err != nil || old.Record.Telemetry.Seen != 0 || old.Record.Samples != 2 {
		t.Errorf("16 fields: %+v, %v", old, err)
	}
	// Bits 0 and 62; the second is of the future.
	newer, err := wire.ParseArrive(with(19, join([]byte{0xcf, 0x40, 0, 0, 0, 0, 0, 0, 1, 0x92}, one, one, []byte{0xc3})...))
	if v, ok := newer.Record.Telemetry.Get(star.ComputeCPU); err != nil || !ok || v != 1 || newer.Record.Telemetry.Seen != 1 {
		t.Errorf("a metric of the future: %+v, %v", newer, err)
	}
	// NaN is written by peers that do not know about bits.
	nan, err := wire.ParseArrive(with(18, 1, 0x91, 0xca, 0x7f, 0xc0, 0, 0))
	if err != nil || nan.Record.Telemetry.Seen != 0 {
		t.Errorf("NaN: %+v, %v", nan, err)
	}
	for _, c := range []struct {
		what, want string
		b          []byte
	}{
		{"seen alone", "telemetry: the header ends too early", with(17, 0)},
		{"too few values", "0 values for 1 bits", with(18, 1, 0x90)},
		{"too many values", "1 values for 0 bits", with(18, join([]byte{0, 0x91}, one)...)},
		{"a hostile length", "telemetry", with(18, 1, 0xdd, 0xff, 0xff, 0xff, 0xff)},
		{"a text", "want a number", with(18, 1, 0x91, 0xa1, 'x')},
		{"a negative set", "seen", with(18, 0xff, 0x90)},
	} {
		if m, err := wire.ParseArrive(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want an error with %q", c.what, m, err, c.want)
		}
	}
}

// What does not exist on the wire cannot be sent either.
func TestTelemetryWritesKnownMetricsOnly(t *testing.T) {
	var r star.Record
	r.Telemetry.Seen = math.MaxUint64
	m, err := wire.ParseArrive(wire.Arrive{Record: r}.AppendTo(nil))
	if want := uint64(1<<star.NumMetrics - 1); err != nil || m.Record.Telemetry.Seen != want {
		t.Errorf("seen %#x, %v; want %#x", m.Record.Telemetry.Seen, err, want)
	}
}
