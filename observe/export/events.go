package export

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"star/runlog"
)

// Events writes a log as scalars of a TensorBoard event file: TFRecords of tensorflow.Event (event.proto,
// summary.proto). The step of a scalar is the version of the parameters; that of a worker's own times, its step.
type Events struct {
	w       io.Writer
	scalars *Scalars
	began   time.Time
	buf     []byte
	data    []byte // of an event
}

// EventFile is the name of an event file, which TensorBoard goes by.
func EventFile(began time.Time) string {
	return fmt.Sprintf("events.out.tfevents.%010d.star", began.Unix())
}

// NewEvents writes to w. Of events for every update or iteration it writes at most one in every; 0:
// all.
func NewEvents(w io.Writer, every time.Duration) *Events {
	return &Events{w: w, scalars: NewScalars(every)}
}

// Line implements Sink.
func (t *Events) Line(l runlog.Line) error {
	if e, ok := l.Entry.(runlog.Start); ok {
		t.began = e.Time
		t.event(0, 0)
		t.record(protowire.AppendString(protowire.AppendTag(t.data, 3, protowire.BytesType), "brain.Event:2"))
	}
	t.scalars.Line(l, t.scalar)
	return t.flush(flushAt)
}

// event begins a tensorflow.Event in data: wall_time, step.
func (t *Events) event(at time.Duration, step int64) {
	wall := float64(t.began.Add(at).UnixNano()) / 1e9
	b := protowire.AppendFixed64(protowire.AppendTag(t.data[:0], 1, protowire.Fixed64Type), math.Float64bits(wall))
	t.data = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(step))
}

// scalar adds a number.
func (t *Events) scalar(x Scalar) {
	t.event(x.At, x.Step)
	tag := x.Tag
	value := protowire.SizeTag(1) + protowire.SizeBytes(len(tag)) + protowire.SizeTag(2) + protowire.SizeFixed32()
	summary := protowire.SizeTag(1) + protowire.SizeBytes(value)
	b := protowire.AppendVarint(protowire.AppendTag(t.data, 5, protowire.BytesType), uint64(summary))
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.BytesType), uint64(value))
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), tag)
	t.data = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), math.Float32bits(float32(x.Value)))
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
