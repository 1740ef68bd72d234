package transport

import "star"

// Compression: from Version on, gradients are sent with another codec. A worker says
// so to the coordinator, for the run log: for itself, or the first member of a ring for all.
type Compression struct {
	Worker  star.Worker
	Version int64  // of the parameters
	Codec   string // a name of star/compress
	Why     string
}

func (Compression) Kind() Kind { return KindCompression }

func (m Compression) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Version)
	dst = appendString(dst, m.Codec)
	return appendText(dst, m.Why, maxText)
}

// ParseCompression parses the header of a Compression.
func ParseCompression(b []byte) (Compression, error) {
	p := parse(KindCompression, b, 4)
	m := Compression{
		Worker: p.worker("worker"), Version: p.natural("version"),
		Codec: p.string("codec", maxCodec), Why: p.string("why", maxText),
	}
	return m, p.end()
}
