package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
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
	for _, s := range samples(t) {
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
	for k := Kind(1); k <= LastKind; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
}

// Every message goes behind what dst already holds.
func TestAppendToAppends(t *testing.T) {
	for _, s := range samples(t) {
		got := s.m.AppendTo([]byte("before"))
		if want := append([]byte("before"), s.m.AppendTo(nil)...); !bytes.Equal(got, want) {
			t.Errorf("%v: %x, want %x", s.m.Kind(), got, want)
		}
	}
}

// Headers are msgpack: the library reads them, and says the same of each value.
func TestLibraryReadsHeaders(t *testing.T) {
	for _, s := range samples(t) {
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
	for _, s := range samples(t) {
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

// A header that lacks its last byte, or a field that every peer sends, is refused, whatever the kind; so is one with a
// byte behind it. Fields that older peers do not send may be missing, from the last one on, and count as 0.
func TestShortAndLongHeadersAreRefused(t *testing.T) {
	for _, s := range samples(t) {
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
		if n := len(fields[k].needed) + len(fields[k].absent); n != len(list) {
			t.Errorf("%v has %d fields, want %d", k, len(list), n)
		}
		for n := len(list) - 1; n >= 0; n-- {
			fewer, err := msgpack.Marshal(list[:n])
			if err != nil {
				t.Fatal(err)
			}
			m, err := parseAny(k, fewer)
			f, steps := s.m.(Fire)
			if n < len(fields[k].needed) || k == KindArrive && n == 17 || steps && f.Local > 0 && n < len(list)-1 {
				if e := (*ParseError)(nil); !errors.As(err, &e) || e.Kind != k {
					t.Errorf("%v with %d fields: %+v, %v", k, n, m, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%v with %d fields: %v", k, n, err)
				continue
			}
			var again []any
			if err := msgpack.Unmarshal(m.AppendTo(nil), &again); err != nil {
				t.Fatal(err)
			}
			for i, v := range again {
				want := plain(list[i])
				if i >= n {
					want = map[string]any{"sum2": -1., "pass": "", "process": "", "commit": "", "codec": "", "optimizer": "", "key": "", "rule": "", "telemetry": []any(nil), "more": []any(nil), "ahead": []any(nil), "samples": []any(nil), "behind": []any(nil), "below": []any(nil),
						"outer": "", "leases": []any(nil), "applied": []any(nil), "lives": []any(nil)}[name(k, i)]
					if want == nil {
						want = int64(0)
					}
				}
				if d := cmp.Diff(want, plain(v), cmpopts.EquateEmpty()); d != "" {
					t.Errorf("%v with %d fields, field %s (-want +got):\n%s", k, n, name(k, i), d)
				}
			}
		}
	}
}

// The hello of a program that knew no commit, as it was written, reads as before.
func TestHelloWithoutCommit(t *testing.T) {
	h, err := hex.DecodeString("dc0010a5636f6f7264a6776f726b6572a56c656e6574a6733363726574a5302e312e30a56e6f646537ff00a000ad6c656e65742077696474683d31a435656564cdf10a00a0a0")
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseHello(h)
	want := Hello{Service: ServiceCoord, Role: RoleWorker, Job: "lenet", Token: "s3cret", Version: "0.1.0", Host: "node7", Rank: -1, Model: "lenet width=1", ModelHash: "5eed", Params: 61706}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// name is that of a field.
func name(k Kind, place int) string {
	f := fields[k]
	return slices.Concat(f.needed, f.absent)[place]
}

// An integer is taken at both ends of its range, and refused beyond them.
func TestRanges(t *testing.T) {
	of := map[Kind][]byte{}
	for _, s := range samples(t) {
		of[s.m.Kind()] = s.m.AppendTo(nil)
	}
	for _, r := range ranges {
		var list []msgpack.RawMessage
		if err := msgpack.Unmarshal(of[r.kind], &list); err != nil {
			t.Fatal(err)
		}
		with := func(v int64) error {
			list[r.place] = appendInt(nil, v)
			b, err := msgpack.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parseAny(r.kind, b)
			return err
		}
		if r.field == "seen" || r.field == "local" && r.kind != KindRelease { // other fields must agree
			continue
		}
		for _, v := range []int64{r.lo, r.hi} {
			if err := with(v); err != nil {
				t.Errorf("%v, %s %d: %v", r.kind, r.field, v, err)
			}
		}
		// if it is not beyond what an int64 holds, it is the smallest one, and outside too
		for _, v := range []int64{r.lo - 1, r.hi + 1} {
			var e *ParseError
			if err := with(v); !errors.As(err, &e) || e.Field != r.field {
				t.Errorf("%v, %s %d: %v", r.kind, r.field, v, err)
			}
		}
	}
	if len(ranges) < 100 {
		t.Errorf("%d ranges", len(ranges))
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
		{Ring{ParentAddr: long}, "field parent_addr: 5000 bytes, at most 255"},
		{Ring{MaxStale: -1}, "field max_stale: -1"},
		{Formed{Generation: -1}, "field generation: -1"},
		{Tally{Hash: 1 << 32}, "field hash: 4294967296"},
		{Tally{Carried: []Gradient{{Worker: 4096}}}, "field carried: 4096"},
		{Fault{Suspect: -2}, "field suspect: -2, want -1 to 4095"},
		{Branch{Parent: -2}, "field parent: -2, want -1 to 4095"},
		{Branch{ParentAddr: long}, "field parent_addr: 5000 bytes, at most 255"},
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
		{KindPull, "\x94\x01\x02\x00\xdd\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x94\x01\x02\x00\xdf\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x94\x01\x02\x00\xc6\xff\xff\xff\xff", "the header ends too early"},
		{KindPull, "\x94\x01\x02\x00\xc1", "0xc1"},
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
	ring := Ring{Generation: 1 << 31, From: 1 << 31, Addr: w.Shards[0].Addr, ParentAddr: w.Shards[0].Addr}
	for i := range star.Worker(MaxWorkers) {
		if i < MaxWorkers/2 {
			ring.Members = append(ring.Members, i)
		} else {
			ring.Riders = append(ring.Riders, Rider{i, i - MaxWorkers/2})
		}
	}
	bundle, branch := Bundle{Step: 1 << 31}, Branch{Step: 1 << 31, ParentAddr: ring.ParentAddr}
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
	for _, s := range samples(t) {
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
	for k := Kind(1); k <= LastKind; k++ {
		if other, ok := names[k.String()]; ok || k.String() == "" {
			t.Errorf("%d and %d are both called %q", k, other, k)
		}
		names[k.String()] = k
	}
	if KindHello != 1 || KindPong != 25 || LastKind != 59 {
		t.Errorf("the kinds have moved: hello %d, pong %d, last %d", KindHello, KindPong, LastKind)
	}
	if got := Kind(200).String(); got != "kind 200" || Kind(0).Valid() || (LastKind + 1).Valid() || Kind(200).Payload() != None {
		t.Errorf("unknown kinds: %q", got)
	}
}

// parsing is a message that a header is read into.
type parsing interface {
	Message
	Parse(b []byte) error
}

// parseAny parses a header of kind k into fresh memory.
func parseAny(k Kind, b []byte) (Message, error) {
	m := fresh[k]()
	err := m.Parse(b)
	return reflect.ValueOf(m).Elem().Interface().(Message), err
}

type sample struct{ m Message }

// samples are the messages of the test vectors.
func samples(t testing.TB) (out []sample) {
	b, err := os.ReadFile("../testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]Kind{}
	for k := Kind(1); k <= LastKind; k++ {
		kinds[k.String()] = k
	}
	var k Kind
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && kinds[words[0]] != 0 && line[0] != ' ':
			k = kinds[words[0]]
		case len(words) == 2 && words[0] == "header":
			h, err := hex.DecodeString(words[1])
			if err != nil {
				t.Fatal(err)
			}
			m, err := parseAny(k, h)
			if err != nil {
				t.Fatalf("%v: %v", k, err)
			}
			if again := m.AppendTo(nil); !bytes.Equal(again, h) {
				t.Fatalf("%v: %x becomes %x", k, h, again)
			}
			out = append(out, sample{m})
		}
	}
	return out
}

// A message into which another one was read holds nothing of that.
func TestParseReusesMemory(t *testing.T) {
	into := map[Kind]parsing{}
	for range 2 {
		for _, s := range samples(t) {
			k := s.m.Kind()
			if into[k] == nil {
				into[k] = fresh[k]()
			}
			if err := into[k].Parse(s.m.AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			got := reflect.ValueOf(into[k]).Elem().Interface()
			if d := cmp.Diff(s.m, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%v (-want +got):\n%s", k, d)
			}
		}
	}
}

// FuzzParse parses arbitrary headers of every kind. What parses is written in
// one way only: the message of that is the same, and so are its bytes.
func FuzzParse(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(uint8(s.m.Kind())-1, s.m.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		k := Kind(kind%uint8(LastKind)) + 1
		m, err := parseAny(k, b)
		if err != nil {
			return
		}
		once := m.AppendTo(nil)
		again, err := parseAny(k, once)
		if err != nil {
			t.Fatalf("%v: %x parses, but not as it writes itself: %x: %v", k, b, once, err)
		}
		if twice := again.AppendTo(nil); !bytes.Equal(once, twice) {
			t.Fatalf("%v: %x, then %x", k, once, twice)
		}
	})
}
