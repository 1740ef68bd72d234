package ps

import (
	"fmt"
	"sync"

	"star/internal/compress"
	"star/transport"
	"star/transport/wire"
)

// Gradients may be compressed between worker and shard. A Push names its codec.
// The shard decodes a payload when it is complete, so a [Shard] always gets
// float32, and each worker may use another codec. Parameters are always sent as
// float32: a worker computes on exactly what the shard has.

// none is the codec that a Push does not name.
var none = compress.Float32

// newCodec makes a codec for a shard's slice by name.
func newCodec(name string, tensors []compress.Tensor, shard wire.ShardInfo, seed uint64) (compress.Codec, error) {
	return compress.New(name, compress.Slice{From: int(shard.From), To: int(shard.To), Tensors: tensors}, seed)
}

// packer encodes the gradients of one worker for one shard, and keeps what its
// codec left out. The zero packer sends gradients unchanged.
//
//	idle ──pack──► in hand ──next pack: it was used──► in hand
//	  ▲               │
//	  └───giveBack────┘ its content is in the residual again
type packer struct {
	// mu is held by each method.
	mu       sync.Mutex
	feedback *compress.Feedback
	// name is the codec's, as a Push carries it.
	name string
	// msg is the last message; empty: nothing can be given back.
	msg []byte
	// last means that msg holds everything that was left out.
	last bool
	// step and grad are those of the last message; grad is the caller's.
	step int64
	grad []float32
	// frozen is the residual being read by a checkpoint; nil: none is.
	frozen *frozen
}

// reset sends gradients unchanged from now on.
func (k *packer) reset() {
	k.thaw()
	k.feedback, k.name, k.msg, k.last, k.grad = nil, "", nil, false, nil
}

// use changes the codec for slices of n values. What the previous codec left
// out is sent with the next message.
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
		// The residual begins with zeros.
		k.feedback = compress.NewFeedback(c, n)
	}
	if most := c.MaxBytes(n); cap(k.msg) < most {
		k.msg = make([]byte, 0, most)
	}
	k.msg = k.msg[:0]
}

// pack encodes the gradient of a step and returns the codec's name. Without a
// codec the name is empty and the payload is grad itself. The payload is valid
// until the next call; grad must not change until then.
func (k *packer) pack(step int64, grad []float32) (codec string, payload []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// The last message emptied the residual and was not given back.
	if k.last && len(k.msg) > 0 {
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

// giveBack adds the last message to the residual again: its gradient was
// dropped.
func (k *packer) giveBack() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.msg) == 0 {
		return
	}
	k.thaw()
	if err := k.feedback.Return(k.msg); err != nil {
		// It is our own message.
		panic("ps: " + err.Error())
	}
	k.msg = k.msg[:0]
}

// unpacker decodes the gradients of one connection.
type unpacker struct {
	name  string
	codec compress.Codec
	msg   []byte
}

// room returns a buffer for a payload of the given size that encodes n values.
// It allocates at most what the named codec can make of n values, whatever size
// a frame claims.
func (u *unpacker) room(name string, size int64, n int, fresh func(name string) (compress.Codec, error)) ([]byte, error) {
	if u.codec == nil || u.name != name {
		c, err := fresh(name)
		if err != nil {
			return nil, err
		}
		*u = unpacker{name: name, codec: c}
	}
	// The size comes from a peer: check it before reading.
	most := u.codec.MaxBytes(n)
	if size < 1 || size > int64(most) {
		return nil, fmt.Errorf("%d bytes, but codec %s makes 1 to %d of the shard's %d elements", size, name, most, n)
	}
	if len(u.msg) < most {
		u.msg = make([]byte, most)
	}
	return u.msg[:size], nil
}
