package transport

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmihailenco/msgpack/v5"

	"star"
)

func TestRoundTrip(t *testing.T) {
	seen := map[Kind]bool{}
	for _, s := range samples {
		seen[s.m.Kind()] = true
		got, err := parseAny(s.m.Kind(), s.m.AppendTo(nil))
		if err != nil {
			t.Errorf("%v: %v", s.m.Kind(), err)
			continue
		}
		if d := cmp.Diff(s.m, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%v (-want +got):\n%s", s.m.Kind(), d)
		}
	}
	for k := KindHello; k <= lastKind; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
}

// Every message goes behind what dst already holds.
func TestAppendToAppends(t *testing.T) {
	for _, s := range samples {
		got := s.m.AppendTo([]byte("before"))
		if want := append([]byte("before"), s.m.AppendTo(nil)...); !bytes.Equal(got, want) {
			t.Errorf("%v: %x, want %x", s.m.Kind(), got, want)
		}
	}
}

// Headers are msgpack: the library reads them, and says the same of each value.
func TestLibraryReadsHeaders(t *testing.T) {
	for _, s := range samples {
		h := s.m.AppendTo(nil)
		var got []any
		if err := msgpack.Unmarshal(h, &got); err != nil {
			t.Errorf("%v: %v", s.m.Kind(), err)
			continue
		}
		m := s.m
		if f, ok := m.(Fire); ok && f.Local > 0 {
			f.Samples = -1 - f.Samples // which older shards refuse
			m = f
		}
		want := flat(reflect.ValueOf(m))
		if len(got) != len(want) {
			t.Errorf("%v: %d elements, want %d", s.m.Kind(), len(got), len(want))
			continue
		}
		for i := range got {
			if g, w := plain(got[i]), want[i]; !cmp.Equal(g, w, cmpopts.EquateEmpty()) {
				t.Errorf("%v, element %d: %v (%T), want %v (%T)", s.m.Kind(), i, g, g, w, w)
			}
		}
	}
}

// flat is a message as the list of its fields in the order of the wire, which
// is that of the struct; a Record's differs, see below.
func flat(v reflect.Value) []any {
	if a, ok := v.Interface().(Arrive); ok {
		r := a.Record
		v = reflect.ValueOf(struct {
			Worker, Step, Basis, At, Compute, Load, Push, Wait, Pull, Injected, Samples int64
			Loss, Norm2, CPU, NetIn, NetOut                                             float64
			Seen                                                                        int64
			Telemetry                                                                   []float32
		}{int64(r.Worker), r.Step, r.Basis, int64(r.At), int64(r.Compute), int64(r.Load), int64(r.Push), int64(r.Wait),
			int64(r.Pull), int64(r.Injected), int64(r.Samples), r.Loss, r.Norm2, r.CPU, r.NetIn, r.NetOut, int64(r.Telemetry.Seen), measured(r.Telemetry)})
	}
	var out []any
	for i := range v.NumField() {
		out = append(out, plainValue(v.Field(i)))
	}
	return out
}

// measured are the values that are there.
func measured(t star.Telemetry) (vs []float32) {
	for m := range star.NumMetrics {
		if v, ok := t.Get(m); ok {
			vs = append(vs, float32(v))
		}
	}
	return vs
}

func plainValue(v reflect.Value) any {
	switch {
	case v.Kind() == reflect.Slice:
		var out []any
		for i := range v.Len() {
			out = append(out, plainValue(v.Index(i)))
		}
		return out
	case v.Kind() == reflect.Struct:
		return flat(v)
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return v.Interface()
}

func plain(v any) any {
	if list, ok := v.([]any); ok {
		var out []any
		for _, e := range list {
			out = append(out, plain(e))
		}
		return out
	}
	return plainValue(reflect.ValueOf(v))
}

// Integers at the edges of their forms are written as the library writes them,
// and read in every form that holds them.
func TestIntegers(t *testing.T) {
	for _, v := range []int64{0, 1, 1<<7 - 1, 1 << 7, 1<<8 - 1, 1 << 8, 1<<15 - 1, 1 << 15, 1<<16 - 1, 1 << 16, 1<<31 - 1, 1 << 31,
		1<<32 - 1, 1 << 32, 1<<63 - 1, -1, -32, -33, -1 << 7, -1<<7 - 1, -1 << 15, -1<<15 - 1, -1 << 31, -1<<31 - 1, -1 << 63} {
		want, err := msgpack.Marshal(&v)
		if err != nil {
			t.Fatal(err)
		}
		var compact bytes.Buffer
		e := msgpack.NewEncoder(&compact)
		e.UseCompactInts(true)
		if err := e.EncodeInt(v); err != nil {
			t.Fatal(err)
		}
		if got := appendInt(nil, v); !bytes.Equal(got, compact.Bytes()) {
			t.Errorf("%d is written as %x, want %x", v, got, compact.Bytes())
		}
		for _, b := range [][]byte{want, compact.Bytes()} {
			p := parser{rest: b}
			if got := p.raw(""); got != v || p.err != nil || len(p.rest) != 0 {
				t.Errorf("%x is read as %d, want %d (%v)", b, got, v, p.err)
			}
		}
		for _, form := range []any{int8(v), int16(v), int32(v), v} {
			b, err := msgpack.Marshal(form)
			if err != nil {
				t.Fatal(err)
			}
			p := parser{rest: b}
			if got, want := p.raw(""), reflect.ValueOf(form).Int(); got != want {
				t.Errorf("%x is read as %d, want %d", b, got, want)
			}
		}
	}
}

// What a dynamic language writes is read too: wide integers, float64 for a
// weight, an integer for a float.
func TestLooseNumbers(t *testing.T) {
	b, err := msgpack.Marshal([]any{int64(7), uint64(8), int16(9), []any{[]any{uint32(1), 2, 0.25}, []any{3, 4, 1}}, []any{}, []any{}, false, false})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseFire(b)
	want := Fire{Seq: 7, Version: 8, Samples: 9, Gradients: []Gradient{{1, 2, 0.25}, {3, 4, 1}}}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

// A newer peer may append fields of any type.
func TestMoreFieldsAreSkipped(t *testing.T) {
	extra := []any{nil, true, -1, "words", []byte{1, 2}, 1.5, float32(2), map[string]any{"a": []any{1, map[string]int{"b": 2}}},
		strings.Repeat("long", 100), make([]byte, 300), make([]int, 20), make([]byte, 70_000), strings.Repeat("x", 70_000), int64(1) << 40,
		&msgpack.RawMessage{0xd4, 1, 2}, &msgpack.RawMessage{0xc7, 3, 1, 2, 3, 4}, uint16(40000), int32(-70000), int8(-100), uint8(200)}
	for _, s := range samples {
		var list []msgpack.RawMessage
		if err := msgpack.Unmarshal(s.m.AppendTo(nil), &list); err != nil {
			t.Fatal(err)
		}
		all := make([]any, 0, len(list)+len(extra))
		for _, r := range list {
			all = append(all, r)
		}
		b, err := msgpack.Marshal(append(all, extra...))
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseAny(s.m.Kind(), b)
		if d := cmp.Diff(s.m, got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v: %v (-want +got):\n%s", s.m.Kind(), err, d)
		}
	}
}

// A header that lacks its last field, or its last byte, is refused, whatever
// the kind; so is one with a byte behind it.
func TestShortAndLongHeadersAreRefused(t *testing.T) {
	for _, s := range samples {
		k, h := s.m.Kind(), s.m.AppendTo(nil)
		for n := range h {
			if _, err := parseAny(k, h[:n]); err == nil {
				t.Errorf("%v: the first %d of %d bytes parse", k, n, len(h))
			}
		}
		if _, err := parseAny(k, append(h, 0)); err == nil {
			t.Errorf("%v: a byte too many parses", k)
		}
		var list []any
		if err := msgpack.Unmarshal(h, &list); err != nil {
			t.Fatal(err)
		}
		fewer, err := msgpack.Marshal(list[:len(list)-1])
		if err != nil {
			t.Fatal(err)
		}
		if k == KindStored { // its last field came later
			if m, err := parseAny(k, fewer); err != nil || m.(Stored).Sum2 != -1 {
				t.Errorf("a stored without sum2: %+v, %v", m, err)
			}
			if fewer, err = msgpack.Marshal(list[:len(list)-2]); err != nil {
				t.Fatal(err)
			}
		}
		if k == KindRelease { // its last fields came later
			for ; len(list) > 11; list = list[:len(list)-1] {
				if m, err := parseAny(k, fewer); err != nil || m.(Release).Cap != 0 {
					t.Errorf("a release without its last fields: %+v, %v", m, err)
				}
				if fewer, err = msgpack.Marshal(list[:len(list)-1]); err != nil {
					t.Fatal(err)
				}
			}
			if m, err := parseAny(k, fewer); err != nil || m.(Release).Delay != 0 {
				t.Errorf("a release without delay: %+v, %v", m, err)
			}
			continue
		}
		if k == KindTally { // so did the samples, and how stale riders are
			if m, err := parseAny(k, fewer); err != nil || m.(Tally).Behind != nil || m.(Tally).Samples == nil {
				t.Errorf("a tally without behind: %+v, %v", m, err)
			}
			if fewer, err = msgpack.Marshal(list[:7]); err != nil {
				t.Fatal(err)
			}
			if m, err := parseAny(k, fewer); err != nil || m.(Tally).Samples != nil || m.(Tally).Sum2 == 0 {
				t.Errorf("a tally without samples: %+v, %v", m, err)
			}
			continue
		}
		if k == KindWelcome { // so did the term, and the pass
			if m, err := parseAny(k, fewer); err != nil || m.(Welcome).Pass != "" || m.(Welcome).Term == 0 {
				t.Errorf("a welcome without pass: %+v, %v", m, err)
			}
			if fewer, err = msgpack.Marshal(list[:8]); err != nil {
				t.Fatal(err)
			}
			if m, err := parseAny(k, fewer); err != nil || m.(Welcome).Term != 0 || m.(Welcome).Step == 0 {
				t.Errorf("a welcome without term: %+v, %v", m, err)
			}
			continue
		}
		if k == KindHello || k == KindAssign || k == KindState { // so did what passes need
			m, err := parseAny(k, fewer)
			if got := fmt.Sprintf("%+v", m); err != nil || !strings.Contains(got, "Pass:}") && !strings.Contains(got, "Key:}") && !strings.Contains(got, "Lives:[]}") {
				t.Errorf("%v without its last field: %s, %v", k, got, err)
			}
			if fewer, err = msgpack.Marshal(list[:len(list)-2]); err != nil {
				t.Fatal(err)
			}
		}
		if k == KindStanding { // so did what was applied
			if m, err := parseAny(k, fewer); err != nil || m.(Standing).Applied != nil || m.(Standing).Shards == nil {
				t.Errorf("a standing without what was applied: %+v, %v", m, err)
			}
			if fewer, err = msgpack.Marshal(list[:len(list)-2]); err != nil {
				t.Fatal(err)
			}
		}
		if k == KindFire || k == KindAhead { // and what workers have done by themselves
			m, err := parseAny(k, fewer)
			if f, _ := s.m.(Fire); f.Local > 0 {
				if err == nil {
					t.Errorf("a fire of local steps without their number: %+v", m)
				}
			} else if err != nil {
				t.Errorf("a fire without local steps: %v", err)
			}
			if fewer, err = msgpack.Marshal(list[:len(list)-2]); err != nil {
				t.Fatal(err)
			}
		}
		if k == KindBranch { // and who is below
			if m, err := parseAny(k, fewer); err != nil || m.(Branch).Below != nil || m.(Branch).Children == nil {
				t.Errorf("a branch without who is below: %+v, %v", m, err)
			}
			if fewer, err = msgpack.Marshal(list[:len(list)-2]); err != nil {
				t.Fatal(err)
			}
		}
		if k == KindUsage { // so did the leases and the memory
			for _, n := range []int{9, 8} {
				if fewer, err = msgpack.Marshal(list[:n]); err != nil {
					t.Fatal(err)
				}
				if m, err := parseAny(k, fewer); err != nil || m.(Usage).Free != 0 || n == 8 && m.(Usage).Leases != nil {
					t.Errorf("a usage of %d fields: %+v, %v", n, m, err)
				}
			}
			if fewer, err = msgpack.Marshal(list[:7]); err != nil {
				t.Fatal(err)
			}
		}
		var e *ParseError
		if _, err := parseAny(k, fewer); !errors.As(err, &e) || e.Kind != k {
			t.Errorf("%v with a field too few: %v", k, err)
		}
	}
}

func TestParseErrorsNameTheField(t *testing.T) {
	long := strings.Repeat("x", 5000)
	many := make([]string, maxArgs+1)
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Stored{Worker: MaxWorkers}, "header of stored: field worker: 4096, want 0 to 4095"},
		{Stored{Worker: -1}, "field worker: -1, want 0 to 4095"},
		{Ready{Shard: MaxShards}, "field shard: 1024, want 0 to 1023"},
		{Stored{Step: -1}, "field step"},
		{Push{Samples: 1 << 40}, "field samples"},
		{Push{Codec: long}, "field codec: 5000 bytes, at most 32"},
		{Push{Codec: "\xff"}, "field codec: not UTF-8"},
		{Hello{Rank: -2}, "field rank: -2, want -1 to 4095"},
		{Hello{Job: long}, "field job: 5000 bytes, at most 255"},
		{Hello{Token: long}, "field token: 5000 bytes, at most 1024"},
		{Hello{Job: "\xff"}, "field job: not UTF-8"},
		{Hello{Params: MaxParams + 1}, "field params"},
		{Standing{Applied: make([]Apply, MaxApplied+1)}, "field applied: 1025 elements, at most 1024"},
		{Standing{Applied: []Apply{{Seq: -1}}}, "field applied: -1"},
		{Welcome{Shards: make([]ShardInfo, MaxShards+1)}, "field shards: 1025 elements, at most 1024"},
		{Assign{Shards: []ShardInfo{{To: -1}}}, "field shards: -1"},
		{Fire{Gradients: make([]Gradient, MaxWorkers+1)}, "field gradients: 4097 elements, at most 4096"},
		{Fire{Gradients: []Gradient{{Worker: 4096}}}, "field gradients: 4096"},
		{Fire{Quiet: []star.Worker{-1}}, "field quiet: -1"},
		{Release{Action: Stop + 1}, "field action: 4, want 0 to 3"},
		{Release{To: 10_001}, "field to: 10001"},
		{Release{Total: -1}, "field total: -1"},
		{Ring{From: -2}, "field from: -2"},
		{Ring{Members: []star.Worker{4096}}, "field members: 4096, want 0 to 4095"},
		{Ring{Members: make([]star.Worker, MaxWorkers+1)}, "field members: 4097 elements, at most 4096"},
		{Ring{Riders: []Rider{{Worker: 1, Parent: -1}}}, "field riders: -1"},
		{Ring{Door: long}, "field door: 5000 bytes, at most 255"},
		{Ring{MaxStale: -1}, "field max_stale: -1"},
		{Formed{Generation: -1}, "field generation: -1"},
		{Tally{Hash: 1 << 32}, "field hash: 4294967296"},
		{Tally{Carried: []Gradient{{Worker: 4096}}}, "field carried: 4096"},
		{Fault{Suspect: -2}, "field suspect: -2, want -1 to 4095"},
		{Branch{Parent: -2}, "field parent: -2, want -1 to 4095"},
		{Branch{Door: long}, "field door: 5000 bytes, at most 255"},
		{Branch{Children: []Child{{Worker: 4096}}}, "field children: 4096, want 0 to 4095"},
		{Branch{Below: []Below{{Samples: -1}}}, "field below: -1, want 0 to 2147483647"},
		{Bundle{Members: make([]Share, MaxWorkers+1)}, "field members: 4097 elements, at most 4096"},
		{Bundle{Members: []Share{{Samples: -1}}}, "field members: -1"},
		{Want{Version: -1}, "field version: -1"},
		{Compression{Version: -1}, "field version: -1"},
		{Compression{Codec: long[:40]}, "field codec: 40 bytes, at most 32"},
		{Enlist{Job: long}, "field job: 5000 bytes, at most 255"},
		{Enlist{Rank: -2}, "field rank: -2, want -1 to 4095"},
		{Enlist{Workers: 4097}, "field workers: 4097, want 0 to 4096"},
		{Enlist{Capacity: Amounts{CPU: -1}}, "field capacity: -1, want 0 to 1e+18"},
		{Enlist{CostNet: math.Inf(1)}, "field cost_net: +Inf, want 0 to 1e+18"},
		{Usage{Own: Amounts{In: math.NaN()}}, "field own: NaN, want 0 to 1e+18"},
		{Usage{Host: Amounts{Out: math.Inf(1)}}, "field host: +Inf, want 0 to 1e+18"},
		{Usage{Times: make([]time.Duration, MaxWorkers+1)}, "field times: 4097 elements, at most 4096"},
		{Usage{Times: []time.Duration{-1}}, "field times: -1"},
		{Usage{Delay: -1}, "field delay: -1"},
		{Usage{Free: -1}, "field free: -1"},
		{Usage{Leases: make([]Lease, MaxLeases+1)}, "field leases: 9 elements, at most 8"},
		{Ask{Extra: Amounts{CPU: -0.5}}, "field extra: -0.5"},
		{Ask{Lag: -1}, "field lag: -1"},
		{Grant{Lease: -1}, "field lease: -1"},
		{Order{Delay: -1}, "field delay: -1"},
		{Order{For: long}, "field for: 5000 bytes, at most 255"},
		{Obeyed{ID: -1}, "field id: -1"},
		{Yield{ID: -1}, "field id: -1"},
		{Reject{Exit: 256}, "field exit: 256"},
		{Control{Args: many}, "field args: 65 elements, at most 64"},
		{Control{Args: []string{long}}, "field args: 5000 bytes"},
	} {
		_, err := parseAny(c.m.Kind(), c.m.AppendTo(nil))
		var e *ParseError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%#v: %v, want %q", c.m, err, c.want)
		}
	}
	for _, c := range []struct {
		k    Kind
		b    string
		want string
	}{
		{KindPull, "", "the header ends too early"},
		{KindPull, "\x80", "want an array, found a map"},
		{KindPull, "\x91\x01", "1 fields, want 2"},
		{KindPull, "\x92\x01\xa1x", "field worker: want an integer, found a string"},
		{KindPull, "\x92\x01\xc0", "field worker: want an integer, found nil"},
		{KindPull, "\x92\x01\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", "field worker: want an integer, found a float"},
		{KindPull, "\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "field worker: 18446744073709551615 does not fit"},
		{KindPull, "\xdd\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x93\x01\x02\xdd\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x93\x01\x02\xdf\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x93\x01\x02\xc6\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x93\x01\x02\xc1", "0xc1"},
		{KindApply, "\x93\x01\xc3\xc3", "field norm: want a number, found a boolean"},
		{KindApply, "\x93\x01\xa0\xc3", "field norm: want a number, found a string"},
		{KindReject, "\x92\x01\xdb\xff\xff\xff\xff", "field reason: 4294967295 bytes, at most 4096"},
		{KindReject, "\x92\x01\xc4\x01x", "field reason: want a string, found bytes"},
		{KindFire, "\x98\x01\x01\x01\x91\x92\x01\x01\x90\x90\xc2\xc2", "field gradients: 2 fields, want 3"},
	} {
		_, err := parseAny(c.k, []byte(c.b))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %x: %v, want %q", c.k, c.b, err, c.want)
		}
	}
}

// Words for people are shortened rather than refused.
func TestLongReasonsAreCut(t *testing.T) {
	m, err := ParseReject(Reject{Reason: strings.Repeat("é", maxText)}.AppendTo(nil))
	if err != nil || !utf8.ValidString(m.Reason) || len(m.Reason) < maxText-3 {
		t.Errorf("%d bytes, %v", len(m.Reason), err)
	}
	m, err = ParseReject(Reject{Reason: "odd \xff"}.AppendTo(nil))
	if err != nil || m.Reason != "odd \uFFFD" {
		t.Errorf("%q, %v", m.Reason, err)
	}
}

// The largest job that the limits allow fits into its headers.
func TestLargestHeadersFit(t *testing.T) {
	w := Welcome{Rank: MaxWorkers - 1, Workers: MaxWorkers}
	for i := range MaxShards {
		w.Shards = append(w.Shards, ShardInfo{i, "worker-1023.star.default.svc.cluster.local:70", 1 << 31, 1 << 31})
	}
	f := Fire{Seq: 1 << 31, Version: 1 << 31, Samples: 1 << 40}
	for i := range MaxWorkers {
		f.Gradients = append(f.Gradients, Gradient{star.Worker(i), 1 << 31, 1})
	}
	ring := Ring{Generation: 1 << 31, From: 1 << 31, Addr: w.Shards[0].Addr, Door: w.Shards[0].Addr}
	for i := range star.Worker(MaxWorkers) {
		if i < MaxWorkers/2 {
			ring.Members = append(ring.Members, i)
		} else {
			ring.Riders = append(ring.Riders, Rider{i, i - MaxWorkers/2})
		}
	}
	bundle, branch := Bundle{Step: 1 << 31}, Branch{Step: 1 << 31, Door: ring.Door}
	for i := range star.Worker(MaxWorkers) {
		bundle.Members = append(bundle.Members, Share{i, 1 << 31, 1 << 20})
		branch.Children = append(branch.Children, Child{i, 1 << 31})
		if i < MaxBelow {
			branch.Below = append(branch.Below, Below{i, i, 1 << 31, 1 << 20})
		}
	}
	st := Standing{Term: 1 << 40, Seq: 1 << 40}
	for i := range MaxShards {
		st.Shards = append(st.Shards, ShardVersion{i, 1 << 40})
	}
	for range MaxApplied {
		st.Applied = append(st.Applied, Apply{1 << 40, 1, 1})
	}
	for _, m := range []Message{w, f, ring, bundle, branch, st} {
		if n := len(m.AppendTo(nil)); n > MaxHeader {
			t.Errorf("%v of the largest job: %d bytes, at most %d", m.Kind(), n, MaxHeader)
		}
	}
}

func TestHotMessagesDoNotAllocate(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	fire, push := Fire{}, Push{}
	buf := make([]byte, 0, 4096)
	for _, s := range samples {
		var run func()
		switch h := s.m.AppendTo(nil); m := s.m.(type) {
		case Push:
			run = func() { push.Parse(h); buf = m.AppendTo(buf[:0]) }
		case Params:
			run = func() { ParseParams(h); buf = m.AppendTo(buf[:0]) }
		case Stored:
			run = func() { ParseStored(h); buf = m.AppendTo(buf[:0]) }
		case Arrive:
			run = func() { ParseArrive(h); buf = m.AppendTo(buf[:0]) }
		case Release:
			run = func() { ParseRelease(h); buf = m.AppendTo(buf[:0]) }
		case Pull:
			run = func() { ParsePull(h); buf = m.AppendTo(buf[:0]) }
		case Fire:
			run = func() { fire.Parse(h); buf = m.AppendTo(buf[:0]) }
		case Ping:
			run = func() { ParsePing(h); buf = m.AppendTo(buf[:0]) }
		case Pong:
			run = func() { ParsePong(h); buf = m.AppendTo(buf[:0]) }
		default:
			continue
		}
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%v: %v allocations, want 0", s.m.Kind(), n)
		}
	}
}

func TestKindNames(t *testing.T) {
	names := map[string]Kind{}
	for k := KindHello; k <= lastKind; k++ {
		if other, ok := names[k.String()]; ok || k.String() == "" {
			t.Errorf("%d and %d are both called %q", k, other, k)
		}
		names[k.String()] = k
	}
	if KindHello != 1 || KindPong != 25 || lastKind != 58 {
		t.Errorf("the kinds have moved: hello %d, pong %d, last %d", KindHello, KindPong, lastKind)
	}
	if got := Kind(200).String(); got != "kind 200" || Kind(0).Valid() || (lastKind + 1).Valid() {
		t.Errorf("unknown kinds: %q", got)
	}
}
