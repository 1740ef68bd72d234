package ps

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"star/internal/compress"
	"star/transport/wire"
)

// FuzzUnpack reads pushes of one connection: whatever codec a worker names and whatever bytes it sends, they are
// refused, with the gradient as it was, or they are a gradient. Memory is bounded by the shard, not by what is claimed.
func FuzzUnpack(f *testing.F) {
	tensors := []compress.Tensor{{Shape: []int{16, 24}, Offset: 0}, {Shape: []int{24}, Offset: 384}}
	const whole = 408
	shard := func(n int) wire.ShardInfo { return wire.ShardInfo{From: 0, To: int64(n)} }
	fresh := func(n int) func(string) (compress.Codec, error) {
		return func(name string) (compress.Codec, error) { return newCodec(name, tensors, shard(n), 0) }
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"fp16", "bf16", "int8", "int8-stochastic", "int2", "topk=0.1", "topk=7", "powersgd=2", "powersgd=999999999", "topk=1e300", "none", "", "powersgd=-1"} {
		for _, n := range []int{1, 100, whole} {
			var msg []byte
			if c, err := fresh(n)(name); err == nil && n <= whole {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(rnd.NormFloat64())
				}
				msg = c.Encode(nil, v)
			}
			f.Add(name, "fp16", uint16(n), msg)
		}
	}
	f.Fuzz(func(t *testing.T, first, second string, length uint16, msg []byte) {
		n := 1 + int(length)%whole
		var u unpacker
		for _, name := range []string{first, second, first} { // a worker may change its codec
			room, err := u.room(name, int64(len(msg)), n, fresh(n))
			if err != nil {
				continue
			}
			if len(room) != len(msg) || cap(u.msg) > 64*n+4096 {
				t.Fatalf("codec %q: room for %d bytes of %d elements is %d, of a buffer of %d", name, len(msg), n, len(room), cap(u.msg))
			}
			copy(room, msg)
			vec := slices.Repeat([]float32{3}, n)
			if err := u.codec.Decode(vec, room); err != nil {
				for i, x := range vec {
					if x != 3 {
						t.Fatalf("codec %q: refused (%v), but element %d was written", name, err, i)
					}
				}
			}
			if !bytes.Equal(room, msg) {
				t.Fatalf("codec %q: decoding has changed the message", name)
			}
			for _, size := range []int64{0, -1, int64(u.codec.MaxBytes(n)) + 1, 1 << 62} {
				if _, err := u.room(name, size, n, fresh(n)); err == nil {
					t.Fatalf("codec %q: there is room for %d bytes", name, size)
				}
			}
		}
	})
}
