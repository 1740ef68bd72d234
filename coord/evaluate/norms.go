package evaluate

import (
	"fmt"
	"math"

	"star/internal/exactsum"
	"star/pgns"
	"star/transport/wire"
)

// Norms is the shards' reports on the weighted sums of updates. Before an update all shards must have reported, because
// the step depends on the norm (clipping, validation); after one the norm is only measured (noise).
//
// A norm before an update is summed without rounding (exactsum), so its bits depend neither on the number of shards nor
// on the order of their reports. Reports on a validation gradient follow in the same payload.
type Norms struct {
	judged bool
	sums   map[int64]*sum // by Fire
}

// Norm is the reports on one update.
type Norm struct {
	Version int64
	Samples int64       // applied before
	After   bool        // it is measured after the update
	Noise   pgns.Update // with Sum2, when all shards have reported
	Dot     float64     // product of its sum with the validation gradient
	Ref2    float64     // squared norm of the validation gradient
}

// sum is a Norm that lacks reports.
type sum struct {
	Norm
	left  int
	said  []bool    // by shard
	dots  []float64 // by shard
	norm2 exactsum.Squares
	ref2  exactsum.Squares
}

// NewNorms makes the norms of a job. judged: norms before updates come with those of a validation gradient.
func NewNorms(judged bool) Norms { return Norms{judged, map[int64]*sum{}} }

// Expect begins to wait for the reports of shards on the Fire with number seq.
func (n *Norms) Expect(seq int64, shards int, u Norm) {
	n.sums[seq] = &sum{Norm: u, left: shards, said: make([]bool, shards), dots: make([]float64, shards)}
}

// Expects reports whether reports on a Fire are missing.
func (n *Norms) Expects(seq int64) bool { return n.sums[seq] != nil }

// Take adds a shard's report on an expected Fire. One that is repeated counts once. whole: all shards have reported. An
// error: the report cannot be read, and changes nothing.
func (n *Norms) Take(m wire.Norm, payload []byte) (u Norm, whole bool, err error) {
	s := n.sums[m.Seq]
	if s.said[m.Shard] {
		return u, false, nil
	}
	if s.After {
		s.Noise.Sum2 += m.Sum2
	} else if err := s.add(m, payload, n.judged); err != nil {
		return u, false, err
	}
	s.said[m.Shard] = true
	if s.left--; s.left > 0 {
		return u, false, nil
	}
	delete(n.sums, m.Seq)
	if !s.After {
		s.Noise.Sum2, s.Ref2 = s.norm2.Float64(), s.ref2.Float64()
		for _, d := range s.dots { // in order of shard, so that the sum does not depend on the order of reports
			s.Dot += d
		}
	}
	return s.Norm, true, nil
}

// add adds a report that comes before the update.
func (s *sum) add(m wire.Norm, b []byte, judged bool) error {
	var ref exactsum.Squares
	if judged {
		if len(b) != 2*exactsum.SquaresLen {
			return fmt.Errorf("norm of shard %d with %d bytes, expected %d: give every star-ps the same --baseline",
				m.Shard, len(b), 2*exactsum.SquaresLen)
		}
		var err error
		if ref, err = exactsum.ParseSquares(b[exactsum.SquaresLen:]); err != nil {
			return fmt.Errorf("norm of shard %d: of the validation gradient: %w", m.Shard, err)
		}
		s.dots[m.Shard], b = m.Sum2, b[:exactsum.SquaresLen]
	}
	part, err := exactsum.ParseSquares(b)
	if err != nil {
		return fmt.Errorf("norm of shard %d: %w", m.Shard, err)
	}
	s.norm2.Merge(&part)
	s.ref2.Merge(&ref)
	return nil
}

// Evidence is what is known of an update before it is applied. Vectors are means, not sums, so that
// nothing depends on how many gradients an update has.
type Evidence struct {
	Dot     float64 // product of the validation gradient and the mean gradient of the update
	Norm    float64 // of that mean
	Ref     float64 // norm of the validation gradient
	Samples int64   // applied before
}

// Verdict is the decision on an update.
type Verdict struct {
	Score, Limit float64
	Factor       float64 // of the direction; 0: it is not applied
}

// Evidence is what is known of the update.
func (n *Norm) Evidence() Evidence {
	weight := 0.0
	for _, g := range n.Noise.Gradients {
		weight += g.Weight
	}
	return Evidence{Dot: n.Dot / weight, Norm: math.Sqrt(n.Noise.Sum2) / weight, Ref: math.Sqrt(n.Ref2), Samples: n.Samples}
}
