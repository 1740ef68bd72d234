package ps

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"star/internal/compress"
	"star/internal/kernel"
)

// A job's state includes what codecs have left out of a worker's gradients: a
// checkpoint saves it, and a resumed job begins with it.

// frozen is the residual of a packer at one moment. It is read in place while
// training goes on; the part that is unread when the residual is about to
// change is copied. So training never waits for a disk, and a disk that is
// faster than an iteration costs no memory.
type frozen struct {
	mu sync.Mutex
	// rest is what was not read yet.
	rest []float32
	// own: rest is a copy.
	own bool
}

// next copies the next values into dst and returns their number.
func (f *frozen) next(dst []float32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(dst, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) == 0 {
		f.rest = nil
	}
	return n
}

// thaw copies the unread rest of frozen, so that the residual may change. The
// caller holds k.mu.
func (k *packer) thaw() {
	// Nothing is being read.
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

// freeze returns the residual as it was after the gradients before a step, and
// the encoder's memory. If the gradient of that step is already on its way, the
// result is as if it had not been computed. back: the gradient before was
// dropped, even if giveBack was not called yet.
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
	// The message in hand is part of the state: add it to a copy of the
	// residual.
	e = slices.Clone(e)
	part := e[k.at : k.at+len(k.grad)]
	if err := compress.FeedbackOver(k.used.Codec(), part).Return(k.msg); err != nil {
		// It is our own message.
		panic("ps: " + err.Error())
	}
	if ahead {
		// e' = e + g − m, so e = e' + m − g up to rounding. The encoder's
		// memory is of one step later: this changes the next message, but no
		// sum.
		for i, g := range k.grad {
			// A gradient that is not finite leaves nothing to recover.
			if part[i] -= g; part[i]-part[i] != 0 {
				part[i] = 0
			}
		}
	}
	return &frozen{rest: e, own: true}, codec, m
}

// recall sets the residual from fill and, if m is of this codec and slice, the
// encoder's memory. It returns true if the encoder accepted m or m is nil.
// Without a codec the whole residual is sent with the next message.
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
		return false, errors.New("the residual is not finite")
	}
	return m == nil || compress.Recall(k.feedback.Codec(), *m) == nil, nil
}

// Residual is what a worker's codecs had left out at one moment (Link.Freeze).
type Residual struct {
	// Codec is its name.
	Codec string
	// Pieces are the memories of encoders that have one.
	Pieces []compress.Piece
	slices []slab
}

// slab is one shard's slice of a Residual; zeros if frozen is nil.
type slab struct {
	left int64
	*frozen
}

// Next fills dst with the values that follow, in order of the parameters. After
// the last one it fills with zeros.
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

// Freeze returns what codecs had left out when the gradients before a step had
// been used; nil: no codec is used. It may be read with Next while pushes go
// on. dropped: the gradient of the step before was dropped, even if Dropped was
// not called yet.
//
// Another goroutine than that of the other methods may call it, but not
// concurrently with a Push of a later step: call it before waiting for the
// parameters that the step begins with.
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

// Recall restores the state of a Freeze. fill writes what was left out, for the
// elements that begin at from. pieces are the memories of encoders of the same
// codec; nil: encoders start without memory. whole is true if every encoder
// found its memory. Call it before the first Push. After an error the residual
// is undefined.
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
			return false, fmt.Errorf("ps: cannot restore the compression residual of shard %d: %w", p.info.Shard, err)
		}
		whole = whole && ok
	}
	return whole, nil
}
