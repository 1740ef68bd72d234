package ps

import (
	"fmt"
	"sync"

	"star/internal/compress"
	"star/ps/rule"
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
	// parts encode parts of a slice, each over its part of feedback's residual;
	// fresh makes their codecs (nil: float32). used encoded the last message, from element at
	// on.
	parts map[rule.Part]*compress.Feedback
	fresh func(from, to int) (compress.Codec, error)
	used  *compress.Feedback
	at    int
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
	k.feedback, k.name, k.msg, k.last, k.grad, k.parts = nil, "", nil, false, nil, nil
}

// use changes the codec for slices of n values. What the previous codec left
// out is sent with the next message.
func (k *packer) use(c compress.Codec, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last, k.name, k.parts = false, c.Name(), nil
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
	codec, payload, err := k.packPart(step, grad, rule.Part{})
	if err != nil {
		panic("ps: " + err.Error()) // only a part needs a codec of its own
	}
	return codec, payload
}

// packPart is pack of a part of the slice.
func (k *packer) packPart(step int64, grad []float32, of rule.Part) (codec string, payload []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// The last message emptied the residual and was not given back.
	if k.last && len(k.msg) > 0 {
		k.reset()
	}
	if k.feedback == nil {
		return "", transport.Floats(grad), nil
	}
	k.thaw()
	if k.used, k.at, err = k.encoder(of); err != nil {
		return "", nil, err
	}
	k.step, k.grad = step, grad
	k.msg = k.used.Encode(k.msg[:0], grad)
	if k.used.Codec() == compress.Codec(none) {
		k.last = of.Parts == 0
		return "", k.msg, nil
	}
	return k.name, k.msg, nil
}

// encoder returns what encodes a part of the slice, and where the part begins.
func (k *packer) encoder(of rule.Part) (*compress.Feedback, int, error) {
	e := k.feedback.Residual()
	from, to := of.Range(len(e))
	if of.Parts == 0 {
		return k.feedback, 0, nil
	}
	if f := k.parts[of]; f != nil {
		return f, from, nil
	}
	c, err := compress.Codec(none), error(nil)
	if k.fresh != nil {
		c, err = k.fresh(from, to)
	}
	if err != nil {
		return nil, 0, err
	}
	if k.parts == nil || len(k.parts) >= of.Parts { // of a plan with another number of parts
		k.parts = map[rule.Part]*compress.Feedback{}
	}
	k.parts[of] = compress.FeedbackOver(c, e[from:to])
	return k.parts[of], from, nil
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
	if err := k.used.Return(k.msg); err != nil {
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
