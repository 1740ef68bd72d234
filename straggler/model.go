package straggler

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"star/internal/exitcode"
)

// Model is a trained network with the statistics of its inputs. Its outputs
// are the next features and the logarithm of the next own time over the level, all
// standardised.
type Model struct {
	Shape    Shape
	Features []Feature
	Scale    Scale // of the features, and last of the time
	Rows     int   // iterations that it was trained on
	Error    float64
	Params   []float32
}

// The file of a model: magic, version and length of the head, the head as JSON, the
// parameters as little-endian float32, and the CRC-32C of all before it.
//
//	"STARLSTM" | u32 version | u32 head length | head | parameters | u32 sum
const (
	modelMagic   = "STARLSTM"
	modelVersion = 1
	maxHead      = 1 << 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// modelHead is the head of the file.
type modelHead struct {
	Shape    Shape     `json:"shape"`
	Features []Feature `json:"features"`
	Mean     []float64 `json:"mean"`
	Std      []float64 `json:"std"`
	Rows     int       `json:"rows"`
	Error    float64   `json:"error"`
}

// ModelError is an error in a model file.
type ModelError struct{ Err error }

func (e *ModelError) Error() string { return "model: " + e.Err.Error() }
func (e *ModelError) Unwrap() error { return e.Err }

// ExitCode is the exit code for damaged data.
func (e *ModelError) ExitCode() int { return exitcode.Corrupt }

// AppendTo appends the file of m to dst.
func (m *Model) AppendTo(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, &ModelError{err}
	}
	head, err := json.Marshal(modelHead{m.Shape, m.Features, m.Scale.Mean, m.Scale.Std, m.Rows, m.Error})
	if err != nil {
		return dst, &ModelError{err}
	}
	start := len(dst)
	dst = append(dst, modelMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, modelVersion)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(head)))
	dst = append(dst, head...)
	for _, v := range m.Params {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli)), nil
}

// ParseModel reads the file of a model. Its errors are of type *ModelError.
func ParseModel(b []byte) (*Model, error) {
	fail := func(format string, a ...any) (*Model, error) { return nil, &ModelError{fmt.Errorf(format, a...)} }
	const fixed = len(modelMagic) + 8
	switch {
	case len(b) < fixed+4:
		return fail("%d bytes are too few", len(b))
	case string(b[:len(modelMagic)]) != modelMagic:
		return fail("begins with %.8q, want %q: not a model of star predictor train", b, modelMagic)
	}
	if v := binary.LittleEndian.Uint32(b[len(modelMagic):]); v != modelVersion {
		return fail("version %d, this program reads version %d: train it again", v, modelVersion)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return fail("checksum %08x, want %08x: the file is damaged", got, sum)
	}
	n := binary.LittleEndian.Uint32(b[len(modelMagic)+4:])
	if n > maxHead || int(n) > len(body)-fixed {
		return fail("a head of %d bytes in %d", n, len(b))
	}
	var h modelHead
	if err := json.Unmarshal(body[fixed:fixed+int(n)], &h); err != nil {
		return fail("head: %w", err)
	}
	m := &Model{Shape: h.Shape, Features: h.Features, Scale: Scale{h.Mean, h.Std}, Rows: h.Rows, Error: h.Error}
	if err := m.checkHead(); err != nil {
		return nil, &ModelError{err}
	}
	rest := body[fixed+int(n):]
	if want := m.Shape.Params(); len(rest) != 4*want {
		return fail("%d bytes of parameters, the shape %+v has %d", len(rest), m.Shape, 4*want)
	}
	m.Params = make([]float32, len(rest)/4)
	for i := range m.Params {
		m.Params[i] = math.Float32frombits(binary.LittleEndian.Uint32(rest[4*i:]))
	}
	if err := m.check(); err != nil {
		return nil, &ModelError{err}
	}
	return m, nil
}

func (m *Model) checkHead() error {
	if err := m.Shape.check(); err != nil {
		return err
	}
	if err := checkFeatures(m.Features); err != nil {
		return err
	}
	k := len(m.Features)
	switch {
	case m.Shape.Inputs != k || m.Shape.Resources != k || len(m.Shape.Head) == 0:
		return fmt.Errorf("shape %+v for %d features: want as many inputs and resources, and a head", m.Shape, k)
	case len(m.Scale.Mean) != k+1 || len(m.Scale.Std) != k+1:
		return fmt.Errorf("%d means and %d deviations for %d channels", len(m.Scale.Mean), len(m.Scale.Std), k+1)
	}
	for i := range m.Scale.Std {
		if !finite(m.Scale.Mean[i]) || !finite(m.Scale.Std[i]) || m.Scale.Std[i] < 0 {
			return fmt.Errorf("channel %d: mean %v, deviation %v", i, m.Scale.Mean[i], m.Scale.Std[i])
		}
	}
	return nil
}

func (m *Model) check() error {
	if err := m.checkHead(); err != nil {
		return err
	}
	if len(m.Params) != m.Shape.Params() {
		return fmt.Errorf("%d parameters, the shape %+v has %d", len(m.Params), m.Shape, m.Shape.Params())
	}
	for i, v := range m.Params {
		if v-v != 0 {
			return fmt.Errorf("parameter %d is %v", i, v)
		}
	}
	if !finite(m.Error) {
		return errors.New("its error is not a number")
	}
	return nil
}
