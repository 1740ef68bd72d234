package ps

import (
	"fmt"
	"sync"

	"star/internal/compress"
	"star/transport"
	"star/transport/wire"
)

// Gradients that are compressed on the way from the worker to the shard. A Push
// names its codec. A shard decodes when the payload is complete, so that what a
// [Shard] is given is float32 in any case; it has no opinion about codecs, and
// each worker may use another one. Parameters come back as float32: what a worker
// computes on is what the shard has.

// none is the codec that a Push need not name.
var none = compress.Float32{}

// newCodec makes the codec of a shard's slice from its name.
func newCodec(name string, tensors []compress.Tensor, shard wire.ShardInfo, seed uint64) (compress.Codec, error) {
	return compress.New(name, compress.Slice{From: int(shard.From), To: int(shard.To), Tensors: tensors}, seed)
}

// packer makes the messages of one worker for one shard, and remembers what they
// left out. The zero packer sends gradients as they are.
type packer struct {
	mu       sync.Mutex // held by each method
	feedback *compress.Feedback
	name     string    // of its codec, for the Push
	msg      []byte    // the last message; empty: there is none that could come back
	last     bool      // msg holds all that was left out
	step     int64     // of the last message
	grad     []float32 // of the last message, the caller's
	frozen   *frozen   // is being read; nil: nothing is
}

// reset sends gradients as they are from now on.
func (k *packer) reset() {
	k.thaw()
	k.feedback, k.name, k.msg, k.last, k.grad = nil, "", nil, false, nil
}

// use changes the codec for slices of n values. What the one before left out
// goes out with the next message.
func (k *packer) use(c compress.Codec, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last, k.name = false, c.Name()
	switch {
	case k.feedback != nil:
		k.feedback.Use(c)
	case c == compress.Codec(none):
		k.reset()
		return
	default:
		k.feedback = compress.NewFeedback(c, n)
	}
	if most := c.MaxBytes(n); cap(k.msg) < most {
		k.msg = make([]byte, 0, most)
	}
	k.msg = k.msg[:0]
}

// pack encodes the grad of a step and says with what: the name is empty, and the payload grad
// itself, without a codec. The payload is valid until the next call, and grad must stay as it is until then.
func (k *packer) pack(step int64, grad []float32) (codec string, payload []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last && len(k.msg) > 0 { // and it did not come back
		k.reset()
	}
	if k.feedback == nil {
		return "", transport.Floats(grad)
	}
	k.thaw()
	k.step, k.grad = step, grad
	k.msg = k.feedback.Encode(k.msg[:0], grad)
	if k.feedback.Codec() == compress.Codec(none) {
		k.last = true
		return "", k.msg
	}
	return k.name, k.msg
}

// giveBack takes back the last message, whose gradient was dropped.
func (k *packer) giveBack() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.msg) == 0 {
		return
	}
	k.thaw()
	if err := k.feedback.Return(k.msg); err != nil {
		panic("ps: " + err.Error()) // our own message
	}
	k.msg = k.msg[:0]
}

// unpacker decodes the gradients that come over one connection.
type unpacker struct {
	name  string
	codec compress.Codec
	msg   []byte
}

// room is where a payload of that size for n values goes. Nothing is allocated
// beyond what the codec of that name can make of n values.
func (u *unpacker) room(name string, size int64, n int, fresh func(name string) (compress.Codec, error)) ([]byte, error) {
	if u.codec == nil || u.name != name {
		c, err := fresh(name)
		if err != nil {
			return nil, err
		}
		*u = unpacker{name: name, codec: c}
	}
	most := u.codec.MaxBytes(n)
	if size < 1 || size > int64(most) {
		return nil, fmt.Errorf("%d bytes, but codec %s makes 1 to %d of the shard's %d elements", size, name, most, n)
	}
	if len(u.msg) < most {
		u.msg = make([]byte, most)
	}
	return u.msg[:size], nil
}
