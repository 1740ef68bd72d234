package runlog

import (
	"math"
	"strconv"

	"star"
)

// The lines that occur several times for each update are encoded here by hand, to the same bytes as
// encoding/json: the coordinator writes them while shards and workers wait for it.

// appender is an entry that encodes itself: its whole line but the end, of something t seconds after the
// coordinator began.
type appender interface {
	appendTo(b []byte, t float64) []byte
}

func appendHead(b []byte, kind string, t float64) []byte {
	b = appendText(append(b, `{"type":`...), kind)
	return appendFloat(append(b, `,"t":`...), t)
}

func (l *recordLine) appendTo(b []byte, t float64) []byte {
	b = appendHead(b, "record", t)
	b = strconv.AppendInt(append(b, `,"worker":`...), int64(l.Worker), 10)
	b = strconv.AppendInt(append(b, `,"step":`...), l.Step, 10)
	b = strconv.AppendInt(append(b, `,"basis":`...), l.Basis, 10)
	b = appendFloat(append(b, `,"at":`...), float64(l.At))
	b = appendFloat(append(b, `,"load":`...), float64(l.Load))
	b = appendFloat(append(b, `,"compute":`...), float64(l.Compute))
	if l.Injected != 0 {
		b = appendFloat(append(b, `,"injected":`...), float64(l.Injected))
	}
	b = appendFloat(append(b, `,"push":`...), float64(l.Push))
	b = appendFloat(append(b, `,"wait":`...), float64(l.Wait))
	b = appendFloat(append(b, `,"pull":`...), float64(l.Pull))
	b = appendFloat(append(b, `,"transit":`...), float64(l.Transit))
	if l.Start != nil {
		b = strconv.AppendInt(append(b, `,"start":`...), *l.Start, 10)
	}
	b = strconv.AppendInt(append(b, `,"samples":`...), int64(l.Samples), 10)
	if len(l.More) > 0 {
		b = appendInts(append(b, `,"more":`...), l.More)
	}
	b = appendFloat(append(b, `,"loss":`...), float64(l.Loss))
	b = appendFloat(append(b, `,"norm2":`...), float64(l.Norm2))
	b = appendFloat(append(b, `,"cpu":`...), float64(l.CPU))
	b = appendFloat(append(b, `,"net_in":`...), float64(l.NetIn))
	b = appendFloat(append(b, `,"net_out":`...), float64(l.NetOut))
	if l.Telemetry != (telemetry{}) {
		b = l.Telemetry.appendTo(append(b, `,"telemetry":`...))
	}
	return append(b, '}')
}

func (l Fire) appendTo(b []byte, t float64) []byte {
	b = appendHead(b, l.kind(), t)
	b = strconv.AppendInt(append(b, `,"seq":`...), l.Seq, 10)
	b = strconv.AppendInt(append(b, `,"version":`...), l.Version, 10)
	b = appendInts(append(b, `,"workers":`...), l.Workers)
	b = appendInts(append(b, `,"staleness":`...), l.Staleness)
	if len(l.Reports) > 0 {
		b = appendInts(append(b, `,"reports":`...), l.Reports)
	}
	if len(l.Dropped) > 0 {
		b = appendInts(append(b, `,"dropped":`...), l.Dropped)
	}
	if len(l.Pieces) > 0 {
		b = appendInts(append(b, `,"pieces":`...), l.Pieces)
	}
	if len(l.More) > 0 {
		b = appendInts(append(b, `,"more":`...), l.More)
	}
	b = strconv.AppendInt(append(b, `,"samples":`...), l.Samples, 10)
	if l.Round != 0 {
		b = strconv.AppendInt(append(b, `,"round":`...), int64(l.Round), 10)
	}
	return append(b, '}')
}

func (l Noise) appendTo(b []byte, t float64) []byte {
	b = appendHead(b, l.kind(), t)
	b = strconv.AppendInt(append(b, `,"version":`...), l.Version, 10)
	b = appendFloat(append(b, `,"grad2":`...), float64(l.Grad2))
	b = appendFloat(append(b, `,"var":`...), float64(l.Var))
	if l.Mixed {
		b = append(b, `,"mixed":true`...)
	}
	b = appendFloat(append(b, `,"scale":`...), float64(l.Scale))
	b = appendFloat(append(b, `,"drift":`...), float64(l.Drift))
	b = appendFloat(append(b, `,"strength":`...), float64(l.Strength))
	return append(b, '}')
}

// appendTo writes the metrics that were measured, in the order of their numbers.
func (t *telemetry) appendTo(b []byte) []byte {
	b = append(b, '{')
	first := true
	for m := range star.NumMetrics {
		if v, ok := (*star.Telemetry)(t).Get(m); ok {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendText(b, m.String())
			b = append(b, ':')
			b = strconv.AppendFloat(b, v, 'g', 6, 32)
		}
	}
	return append(b, '}')
}

// appendText is for names of ours, in which JSON has nothing to escape.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendInts[T ~int | int64](b []byte, xs []T) []byte {
	if xs == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, x := range xs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(x), 10)
	}
	return append(b, ']')
}

// appendFloat writes x as encoding/json does, the shortest form that reads back as x, and null for what is not
// finite.
func appendFloat(b []byte, x float64) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return append(b, "null"...)
	}
	if abs := math.Abs(x); abs == 0 || abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, x, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, x, 'e', -1, 64)
	if n := len(b); b[n-2] == '0' && (b[n-3] == '-' || b[n-3] == '+') { // e-09 is e-9 there
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}
