package compress

import (
	"fmt"
	"math"
)

// Link is a connection over which each vector goes, as the one that waits for it
// sees it.
type Link struct {
	// Bps is what one sender gets, in bytes per second: of a link that several
	// senders share its part.
	Bps float64

	// Crossings is how often the bytes of one vector cross that link, one after
	// the other, in one round: 1 for a push to a parameter server, 2(N−1)/N for
	// a ring of N. Zero means 1.
	Crossings float64

	// Decodes is how many encoded vectors the busiest receiver decodes in one
	// round on one processor: the workers of one shard, for example. Zero means
	// 1.
	Decodes float64
}

// Candidate is a codec and how fast it is, in bytes of float32 per second and
// processor. Encode is measured as the codec is used: with feedback, if it needs
// that. Zero means that the step costs nothing.
type Candidate struct {
	Codec          Codec
	Encode, Decode float64
}

// Margin is what a codec has to gain before it is used: it must save this share
// of the time of the best choice that leaves out less. The cost model knows
// nothing of accuracy, and its speeds are measured to 10 or 20 %; a gain of that
// size is not worth a worse gradient. The number is ours.
const Margin = 0.2

// Choice is what [Choose] found.
type Choice struct {
	// Codec is the candidate that pays, nil for none.
	Codec Codec

	// Seconds is the time of a round with Codec, and Plain without.
	Seconds, Plain float64

	// Why is the reason, for a log.
	Why string
}

// Choose picks the codec for vectors of n values on a link, or none where none
// would pay. The time of a round with a codec of b bytes is
//
//	4n/Encode + Crossings·b/Bps + Decodes·4n/Decode
//
// one step after the other: where they overlap, a codec costs less than that.
// Without one it is Crossings·4n/Bps. candidates are in order of what they
// leave out, least first ([Names]): each must be faster than the best before it
// by [Margin].
func Choose(link Link, n int, candidates []Candidate) Choice {
	if link.Crossings == 0 {
		link.Crossings = 1
	}
	if link.Decodes == 0 {
		link.Decodes = 1
	}
	if !(link.Bps > 0) {
		return Choice{Why: fmt.Sprintf("none: the speed of the link is not known (%v bytes/s)", link.Bps)}
	}
	plain := link.Crossings * 4 * float64(n) / link.Bps
	best := Choice{Seconds: plain, Plain: plain}
	next, nextName := 0.0, ""
	for _, c := range candidates {
		t := link.Crossings * float64(c.Codec.MaxBytes(n)) / link.Bps
		if c.Encode > 0 {
			t += 4 * float64(n) / c.Encode
		}
		if c.Decode > 0 {
			t += link.Decodes * 4 * float64(n) / c.Decode
		}
		if t < (1-Margin)*best.Seconds {
			best.Codec, best.Seconds = c.Codec, t
		}
		if nextName == "" || t < next {
			next, nextName = t, c.Codec.Name()
		}
	}
	where := fmt.Sprintf("%d values at %.4g MB/s", n, link.Bps/1e6)
	switch {
	case best.Codec != nil:
		best.Why = fmt.Sprintf("%s: %s take %.4g ms in place of %.4g ms", best.Codec.Name(), where, best.Seconds*1e3, plain*1e3)
		if nextName != best.Codec.Name() {
			best.Why += fmt.Sprintf("; %s would take %.4g ms, which is not %.0f %% less", nextName, next*1e3, Margin*100)
		}
	case nextName == "":
		best.Why = "none: there is no codec to choose from"
	default:
		best.Why = fmt.Sprintf("none: %s take %.4g ms; %s would take %.4g ms, which is not %.0f %% less", where, plain*1e3, nextName, next*1e3, Margin*100)
	}
	return best
}

// Typical gives candidates for a choice without measurements: fp16 and int8 with feedback, at the speeds of one core of
// a server processor (AMD EPYC, AVX2, vectors of 16 MB; those of the plain Go loops where these are in use), good to a
// factor of two. topk and powersgd are not among them, because their cost in updates depends on the model; a caller
// that knows that they cost none adds a Candidate.
func Typical() []Candidate {
	if !assembly() {
		return []Candidate{{FP16, 0.75e9, 1.8e9}, {&Int8{}, 1.5e9, 5.5e9}}
	}
	return []Candidate{{FP16, 6e9, 20e9}, {&Int8{}, 6e9, 20e9}}
}

// Gauge measures how fast the codecs of candidates are here, on vectors of n values
// or 4 MB: encoding with feedback, and decoding, each the best of three. now is
// the time in seconds since some moment. It takes a few milliseconds for each.
func Gauge(n int, candidates []Candidate, now func() float64) []Candidate {
	n = min(max(n, 1<<10), 1<<20)
	grad, back := make([]float32, n), make([]float32, n)
	for i := range grad {
		// Twelve uniform numbers add up to nearly a normal one.
		for j := range 12 {
			grad[i] += float32(draw(1, j, i)) / 2
		}
	}
	rate := func(seconds float64) float64 { return 4 * float64(n) / seconds }
	gauged := append([]Candidate(nil), candidates...)
	for i, c := range gauged {
		f := NewFeedback(c.Codec, n)
		msg := f.Encode(nil, grad)
		encode, decode := math.Inf(1), math.Inf(1)
		for range 3 {
			begun := now()
			msg = f.Encode(msg[:0], grad)
			encoded := now()
			if err := c.Codec.Decode(back, msg); err != nil {
				panic("compress: Gauge: own encoding: " + err.Error())
			}
			encode, decode = min(encode, encoded-begun), min(decode, now()-encoded)
		}
		// Where the clock did not move, the step is free.
		if gauged[i].Encode = 0; encode > 0 {
			gauged[i].Encode = rate(encode)
		}
		if gauged[i].Decode = 0; decode > 0 {
			gauged[i].Decode = rate(decode)
		}
	}
	return gauged
}
