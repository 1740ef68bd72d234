package transport

import "star"

// Poison says that a gradient does not belong (package poison), or that those of a worker do again. A server
// says so of a worker's direction, which only shards can compare; a worker of an all-reduce of its own gradient, before it is added in.
type Poison struct {
	Shard  int // -1: the whole vector
	Worker star.Worker
	Step   int64
	Cause  string  // of package poison
	Value  float64 // exploding: times the median norm; flipped: the mean cosine
	Over   bool    // flipped: no more
	Where  string  // the tensor, where it is known
}

func (Poison) Kind() Kind { return KindPoison }

func (m Poison) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendString(dst, m.Cause)
	dst = appendFloat64(dst, m.Value)
	dst = appendBool(dst, m.Over)
	return appendText(dst, m.Where, maxText)
}

// ParsePoison parses the header of a Poison.
func ParsePoison(b []byte) (Poison, error) {
	p := parse(KindPoison, b, 7)
	m := Poison{
		Shard: int(p.within("shard", -1, MaxShards-1)), Worker: p.worker("worker"), Step: p.natural("step"),
		Cause: p.string("cause", maxCodec), Value: p.float("value"), Over: p.bool("over"), Where: p.string("where", maxText),
	}
	return m, p.end()
}
