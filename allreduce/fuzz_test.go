package allreduce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
)

func FuzzParseOperation(f *testing.F) {
	f.Add(operation{call: callReduce, op: Max, typ: Int64Type, root: 3, generation: 9, number: 1 << 40, count: 12}.appendTo(nil, true))
	f.Add(make([]byte, headerSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != headerSize {
			return
		}
		o, receipt, err := parseOperation(b)
		if err != nil {
			return
		}
		_ = o.String()
		if back := o.appendTo(nil, receipt); !bytes.Equal(back, b) {
			t.Errorf("% x came back as % x", b, back)
		}
	})
}

// A notice with any byte changed is rejected.
func TestDamagedNotice(t *testing.T) {
	long := strings.Repeat("x", noticeSize)
	for _, m := range []notice{
		{noticeVerdict, Error{Rank: 2, Operation: "barrier 3", Step: 1, Steps: 2, Done: 3, Total: 4, Err: errGone}},
		{noticeWaiting, Error{Rank: None, Operation: long, Err: errors.New(long)}},
		{kind: noticeBye},
	} {
		b := m.bytes()
		if got, err := parseNotice(b); err != nil || got.kind != m.kind || got.fault.Rank != m.fault.Rank || len(b) != noticeSize {
			t.Fatalf("%+v came back as %+v, %v, in %d bytes", m, got, err, len(b))
		}
		for i := range b {
			b[i] ^= 0x10
			if got, err := parseNotice(b); err == nil {
				t.Fatalf("with another byte %d: %+v", i, got)
			}
			b[i] ^= 0x10
		}
	}
}

func FuzzParseNotice(f *testing.F) {
	f.Add(notice{noticeVerdict, Error{Rank: None, Operation: "barrier 3", Step: 1, Steps: 2, Done: 3, Total: 4, Err: errGone}}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != noticeSize {
			return
		}
		body := b[:noticeSize-noticeSum] // made-up bytes have no right sum
		m, err := parseNotice(binary.LittleEndian.AppendUint32(slices.Clone(body), crc32.ChecksumIEEE(body)))
		if err != nil {
			return
		}
		again, err := parseNotice(m.bytes())
		if err != nil {
			t.Fatal(err)
		}
		if again.fault.Rank != m.fault.Rank || again.fault.Step != m.fault.Step || again.kind != m.kind {
			t.Errorf("%+v came back as %+v", m, again)
		}
	})
}

func FuzzReceive(f *testing.F) {
	var b bytes.Buffer
	_ = transmit(&b, greeting{Protocol: 1, Rank: 2})
	f.Add(b.Bytes())
	f.Add([]byte("STAR\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var g greeting
		r := bytes.NewReader(b)
		if receive(r, &g) == nil && len(b)-r.Len() < 10 {
			t.Errorf("a greeting in %d bytes", len(b)-r.Len())
		}
	})
}
