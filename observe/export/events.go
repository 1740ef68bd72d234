package export

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"star"
	"star/runlog"
)

// Events writes a log as scalars of a TensorBoard event file: TFRecords of tensorflow.Event (event.proto,
// summary.proto). The step of a scalar is the version of the parameters; that of a worker's own times, its step.
type Events struct {
	w       io.Writer
	grads   gradients
	began   time.Time
	every   time.Duration
	shown   map[string]time.Duration // when scalars of each kind last were
	rated   time.Duration            // when the rate of samples last was
	samples int64                    // applied then
	buf     []byte
	data    []byte                    // of an event
	tags    map[star.Worker][5]string // of a worker's times
}

// EventFile is the name of an event file, which TensorBoard goes by.
func EventFile(began time.Time) string {
	return fmt.Sprintf("events.out.tfevents.%010d.star", began.Unix())
}

// NewEvents writes to w. Of events for every update or iteration it writes at most one in every; 0:
// all.
func NewEvents(w io.Writer, every time.Duration) *Events {
	return &Events{w: w, every: every, shown: map[string]time.Duration{}, tags: map[star.Worker][5]string{}}
}

// due reports whether scalars of that kind are to be shown again.
func (t *Events) due(kind string, at time.Duration) bool {
	if t.every == 0 {
		return true
	}
	if last, ok := t.shown[kind]; ok && at-last < t.every {
		return false
	}
	t.shown[kind] = at
	return true
}

// Line implements Sink.
func (t *Events) Line(l runlog.Line) error {
	if u, ok := t.grads.take(l); ok {
		t.update(u)
		return t.flush(flushAt)
	}
	switch e := l.Entry.(type) {
	case runlog.Start:
		t.began = e.Time
		t.event(0, 0)
		t.record(protowire.AppendString(protowire.AppendTag(t.data, 3, protowire.BytesType), "brain.Event:2"))
	case runlog.Record:
		of, ok := t.tags[e.Worker]
		if !ok {
			for i, name := range [...]string{"load", "compute", "push", "wait", "pull"} {
				of[i] = fmt.Sprintf("worker %d/%s (s)", e.Worker, name)
			}
			t.tags[e.Worker] = of
		}
		if !t.due(of[0], l.T) {
			return nil
		}
		for i, d := range [...]time.Duration{e.Load, e.Compute, e.Push, e.Wait, e.Pull} {
			t.scalar(l.T, e.Step, of[i], d.Seconds())
		}
	case runlog.Noise:
		if t.due("noise", l.T) {
			t.scalar(l.T, e.Version, "gradient/noise scale (samples)", float64(e.Scale))
		}
	case runlog.Eval:
		t.scalar(l.T, e.To, "test/loss", float64(e.Loss))
		t.scalar(l.T, e.To, "test/accuracy", float64(e.Accuracy))
	}
	return t.flush(flushAt)
}

func (t *Events) update(u Update) {
	if !t.due("update", u.At) {
		return
	}
	if took := u.At - t.rated; t.samples > 0 && took > 0 {
		t.scalar(u.At, u.Fire.Version, "job/samples per second", float64(u.Fire.Samples-t.samples)/took.Seconds())
	}
	t.rated, t.samples = u.At, u.Fire.Samples
	sum := 0.0
	for _, s := range u.Fire.Staleness {
		sum += float64(s)
	}
	t.scalar(u.At, u.Fire.Version, "train/loss", u.Loss)
	t.scalar(u.At, u.Fire.Version, "job/gradients in an update", float64(len(u.Fire.Workers)))
	t.scalar(u.At, u.Fire.Version, "job/staleness", sum/float64(len(u.Fire.Workers)))
}

// event begins a tensorflow.Event in data: wall_time, step.
func (t *Events) event(at time.Duration, step int64) {
	wall := float64(t.began.Add(at).UnixNano()) / 1e9
	b := protowire.AppendFixed64(protowire.AppendTag(t.data[:0], 1, protowire.Fixed64Type), math.Float64bits(wall))
	t.data = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(step))
}

// scalar adds a number; a value that is not finite is skipped.
func (t *Events) scalar(at time.Duration, step int64, tag string, v float64) {
	if v-v != 0 {
		return
	}
	t.event(at, step)
	value := protowire.SizeTag(1) + protowire.SizeBytes(len(tag)) + protowire.SizeTag(2) + protowire.SizeFixed32()
	summary := protowire.SizeTag(1) + protowire.SizeBytes(value)
	b := protowire.AppendVarint(protowire.AppendTag(t.data, 5, protowire.BytesType), uint64(summary))
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.BytesType), uint64(value))
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), tag)
	t.data = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), math.Float32bits(float32(v)))
	t.record(t.data)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the checksum of TFRecords.
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// record adds a TFRecord: length, its checksum, data, their checksum.
func (t *Events) record(data []byte) {
	at := len(t.buf)
	t.buf = binary.LittleEndian.AppendUint64(t.buf, uint64(len(data)))
	t.buf = binary.LittleEndian.AppendUint32(t.buf, masked(t.buf[at:]))
	t.buf = append(t.buf, data...)
	t.buf = binary.LittleEndian.AppendUint32(t.buf, masked(data))
}

// Flush writes the buffer, for readers while the job runs.
func (t *Events) Flush() error { return t.flush(0) }

func (t *Events) flush(least int) error {
	if len(t.buf) <= least {
		return nil
	}
	_, err := t.w.Write(t.buf)
	t.buf = t.buf[:0]
	return err
}

// Close implements Sink.
func (t *Events) Close() error { return t.flush(0) }
