package ps

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"star/internal/compress"
	"star/internal/kernel"
)

// What codecs have left out of a worker's gradients belongs to the state of a job: a checkpoint has it, and a job that goes on
// begins with it.

// frozen is what a packer had left out at one moment. It is read from where it lies, beside the training; what is not read when it is
// about to change is copied. So nothing waits for a disk, and a disk that is quicker than an iteration costs no memory.
type frozen struct {
	mu   sync.Mutex
	rest []float32 // not read yet
	own  bool      // rest is a copy
}

// next reads what follows into dst, and says how much that was.
func (f *frozen) next(dst []float32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(dst, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) == 0 {
		f.rest = nil
	}
	return n
}

// thaw lets what is being read change. The caller holds k.mu.
func (k *packer) thaw() {
	if k.frozen == nil {
		return
	}
	k.frozen.mu.Lock()
	defer k.frozen.mu.Unlock()
	if !k.frozen.own {
		k.frozen.rest, k.frozen.own = slices.Clone(k.frozen.rest), true
	}
	k.frozen = nil
}

// freeze is what was left out when the gradients before a step had been used, and what the encoder remembers. The gradient of that step may
// be on its way: then it is as if it had not been computed. back: the gradient before was thrown away, whether or not giveBack has heard of it.
func (k *packer) freeze(step int64, back bool) (f *frozen, codec string, m compress.Memory) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.feedback == nil {
		return nil, "", m
	}
	k.thaw()
	codec, m = k.feedback.Codec().Name(), compress.Remember(k.feedback.Codec())
	e := k.feedback.Residual()
	ahead := k.step >= step
	if len(k.msg) == 0 || !ahead && !back {
		k.frozen = &frozen{rest: e}
		return k.frozen, codec, m
	}
	own := compress.FeedbackOver(k.feedback.Codec(), slices.Clone(e))
	if err := own.Return(k.msg); err != nil {
		panic("ps: " + err.Error()) // our own message
	}
	e = own.Residual()
	if ahead {
		// e' = e + g − m, and so e = e' + m − g but for roundings. What the encoder remembers is of one step later: that changes
		// what goes out next, and no sum.
		for i, g := range k.grad {
			if e[i] -= g; e[i]-e[i] != 0 { // g is not finite
				e[i] = 0
			}
		}
	}
	return &frozen{rest: e, own: true}, codec, m
}

// recall begins with what fill says was left out, and, where it is of this codec and slice, with what the encoder remembered. It is true
// if that was so, or nothing was remembered. Without a codec all that was left out goes out with the next message, as it is.
func (k *packer) recall(n int, fill func(dst []float32) error, m *compress.Memory) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.thaw()
	if k.feedback == nil {
		k.feedback, k.name = compress.NewFeedback(none, n), ""
	}
	if err := fill(k.feedback.Residual()); err != nil {
		return false, err
	}
	if !kernel.Finite(k.feedback.Residual()) {
		return false, errors.New("it is not finite")
	}
	return m == nil || compress.Recall(k.feedback.Codec(), *m) == nil, nil
}

// Residual is what a worker's codecs had left out at one moment (Link.Freeze).
type Residual struct {
	Codec  string           // its name
	Pieces []compress.Piece // where an encoder remembers something
	slices []slab
}

// slab is one shard's slice of it; without frozen: zeros.
type slab struct {
	left int64
	*frozen
}

// Next fills dst with the values that follow, of as many as there are parameters. Zeros follow those.
func (r *Residual) Next(dst []float32) {
	for len(dst) > 0 && len(r.slices) > 0 {
		s := &r.slices[0]
		if s.left == 0 {
			r.slices = r.slices[1:]
			continue
		}
		part := dst[:min(int64(len(dst)), s.left)]
		n := 0
		if s.frozen != nil {
			n = s.next(part)
		}
		clear(part[n:])
		dst, s.left = dst[len(part):], s.left-int64(len(part))
	}
	clear(dst)
}

// Freeze is what codecs had left out when the gradients before a step had been used; nil: there is no codec. It is read with Next, beside
// pushes. dropped: the gradient of the step before was thrown away, whether or not Dropped was called by now.
//
// It may be called by another goroutine than the others, but not at the same time as Push with a later step: the parameters that
// the step begins with must not have been waited for.
func (l *Link) Freeze(step int64, dropped bool) *Residual {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := new(Residual)
	for _, p := range l.peers {
		f, codec, m := p.pack.freeze(step, dropped)
		r.slices = append(r.slices, slab{p.info.To - p.info.From, f})
		if f != nil {
			r.Codec = codec
		}
		if len(m.Warm) > 0 || m.Drawn > 0 {
			r.Pieces = append(r.Pieces, compress.Piece{From: p.info.From, To: p.info.To, Memory: m})
		}
	}
	if r.Codec == "" {
		return nil
	}
	return r
}

// Recall begins where another Link has been frozen: fill gives what was left out of the elements from from on, and pieces are what
// encoders of the same codec remembered; nil: they begin anew. It is true if all encoders found theirs. Before the first Push. After an error
// what was left out is arbitrary.
func (l *Link) Recall(fill func(from int64, dst []float32) error, pieces []compress.Piece) (whole bool, err error) {
	whole = true
	for _, p := range l.peers {
		var m *compress.Memory
		if i := slices.IndexFunc(pieces, func(q compress.Piece) bool { return q.From == p.info.From && q.To == p.info.To }); i >= 0 {
			m = &pieces[i].Memory
		} else {
			whole = whole && len(pieces) == 0
		}
		ok, err := p.pack.recall(len(p.params), func(dst []float32) error { return fill(p.info.From, dst) }, m)
		if err != nil {
			return false, fmt.Errorf("ps: what was left out of shard %d: %w", p.info.Shard, err)
		}
		whole = whole && ok
	}
	return whole, nil
}
