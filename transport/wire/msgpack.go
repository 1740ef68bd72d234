package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// The part of msgpack that headers use: arrays, integers, floats, booleans and strings. Integers are written in their
// shortest form, as by every msgpack library, and read in any form.

func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
}

func appendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		switch {
		case v < 1<<7:
			return append(dst, byte(v))
		case v < 1<<8:
			return append(dst, 0xcc, byte(v))
		case v < 1<<16:
			return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
		case v < 1<<32:
			return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
		}
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
}

func appendFloat64(dst []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(v))
}

func appendFloat32(dst []byte, v float32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, 0xca), math.Float32bits(v))
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 0xc3)
	}
	return append(dst, 0xc2)
}

func appendString(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

// appendText appends text for people as valid UTF-8, cut at max bytes, so that the reader does not refuse a long one.
func appendText(dst []byte, s string, max int) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > max {
		for s = s[:max]; !utf8.ValidString(s); {
			s = s[:len(s)-1]
		}
	}
	return appendString(dst, s)
}

// ParseError names the invalid field of a header, and the reason.
type ParseError struct {
	Kind  Kind
	Field string // as in docs/protocol.md; empty: the header as a whole
	Err   error
}

func (e *ParseError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("header of %v: %v", e.Kind, e.Err)
	}
	return fmt.Sprintf("header of %v: field %s: %v", e.Kind, e.Field, e.Err)
}

func (e *ParseError) Unwrap() error { return e.Err }

var errShort = errors.New("the header ends too early")

// parser reads the array of one header. It keeps the first error, and then every method returns zero values.
// It allocates only errors and strings.
type parser struct {
	rest []byte
	kind Kind
	left int // elements of the outer array that are still to come
	err  error
}

// parse begins a header with at least n fields.
func parse(k Kind, b []byte, n int) parser {
	p := parser{rest: b, kind: k}
	p.left = p.arrayLen("", -1)
	if p.err == nil && p.left < n {
		p.fail("", fmt.Errorf("%d fields, want %d", p.left, n))
	}
	return p
}

// more reports whether the header has another field, which older peers may not send.
func (p *parser) more() bool { return p.err == nil && p.left > 0 }

// end skips the fields that a newer peer may have added.
func (p *parser) end() error {
	if p.err == nil && p.left > 0 {
		p.skip(p.left)
	}
	if p.err == nil && len(p.rest) > 0 {
		p.fail("", fmt.Errorf("%d bytes behind its end", len(p.rest)))
	}
	return p.err
}

func (p *parser) fail(field string, err error) {
	if p.err == nil {
		p.err = &ParseError{Kind: p.kind, Field: field, Err: err}
		p.rest, p.left = nil, 0
	}
}

func (p *parser) wrong(field, want string, tag byte) {
	p.fail(field, fmt.Errorf("want %s, found %s", want, tagName(tag)))
}

// tag returns the first byte of the next value.
func (p *parser) tag(field string) (byte, bool) {
	if p.err != nil {
		return 0, false
	}
	if len(p.rest) == 0 {
		p.fail(field, errShort)
		return 0, false
	}
	t := p.rest[0]
	p.rest = p.rest[1:]
	return t, true
}

// take returns the next n bytes; nil after an error.
func (p *parser) take(field string, n int) []byte {
	if n > len(p.rest) {
		p.fail(field, errShort)
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

// bigEndian reads an unsigned integer of n bytes.
func (p *parser) bigEndian(field string, n int) uint64 {
	b := p.take(field, n)
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// arrayLen begins an array of at most max elements (-1: no limit), and at most as many as there are bytes left.
func (p *parser) arrayLen(field string, max int) int {
	t, ok := p.tag(field)
	if !ok {
		return 0
	}
	var n uint64
	switch {
	case t&0xf0 == 0x90:
		n = uint64(t & 0x0f)
	case t == 0xdc:
		n = p.bigEndian(field, 2)
	case t == 0xdd:
		n = p.bigEndian(field, 4)
	default:
		p.wrong(field, "an array", t)
		return 0
	}
	if p.err != nil {
		return 0
	}
	if n > uint64(len(p.rest)) {
		p.fail(field, errShort)
		return 0
	}
	if max >= 0 && n > uint64(max) {
		p.fail(field, fmt.Errorf("%d elements, at most %d", n, max))
		return 0
	}
	return int(n)
}

// row begins an inner array of at least n fields and returns the number of further ones.
func (p *parser) row(field string, n int) (extra int) {
	got := p.arrayLen(field, -1)
	if p.err == nil && got < n {
		p.fail(field, fmt.Errorf("%d fields, want %d", got, n))
		return 0
	}
	return got - n
}

// raw reads an integer outside the count of fields.
func (p *parser) raw(field string) int64 {
	t, ok := p.tag(field)
	if !ok {
		return 0
	}
	switch {
	case t < 0x80 || t >= 0xe0:
		return int64(int8(t))
	case t >= 0xcc && t <= 0xcf:
		v := p.bigEndian(field, 1<<(t-0xcc))
		if v > math.MaxInt64 {
			p.fail(field, fmt.Errorf("%d does not fit 63 bits", v))
			return 0
		}
		return int64(v)
	case t == 0xd0:
		return int64(int8(p.bigEndian(field, 1)))
	case t == 0xd1:
		return int64(int16(p.bigEndian(field, 2)))
	case t == 0xd2:
		return int64(int32(p.bigEndian(field, 4)))
	case t == 0xd3:
		return int64(p.bigEndian(field, 8))
	}
	p.wrong(field, "an integer", t)
	return 0
}

// between reads an integer of [lo, hi] outside the count of fields.
func (p *parser) between(field string, lo, hi int64) int64 {
	v := p.raw(field)
	if p.err == nil && (v < lo || v > hi) {
		p.fail(field, fmt.Errorf("%d, want %d to %d", v, lo, hi))
		return 0
	}
	return v
}

// within is between for an element of the header's own array.
func (p *parser) within(field string, lo, hi int64) int64 {
	p.left--
	return p.between(field, lo, hi)
}

// real reads a float of either width. Integers pass too: dynamic languages
// write 0 where they mean 0.0.
func (p *parser) real(field string) float64 {
	if p.err == nil && len(p.rest) > 0 {
		switch t := p.rest[0]; t {
		case 0xcb:
			p.rest = p.rest[1:]
			return math.Float64frombits(p.bigEndian(field, 8))
		case 0xca:
			p.rest = p.rest[1:]
			return float64(math.Float32frombits(uint32(p.bigEndian(field, 4))))
		default:
			if tagName(t) != "an integer" {
				p.wrong(field, "a number", t)
				return 0
			}
		}
	}
	return float64(p.raw(field))
}

// positive reads a float from 0 to maxAmount.
func (p *parser) positive(field string) float64 {
	v := p.real(field)
	if p.err == nil && !(v >= 0 && v <= maxAmount) {
		p.fail(field, fmt.Errorf("%g, want 0 to %g", v, maxAmount))
		return 0
	}
	return v
}

// truth reads a boolean outside the count of fields.
func (p *parser) truth(field string) bool {
	t, ok := p.tag(field)
	if ok && t != 0xc2 && t != 0xc3 {
		p.wrong(field, "true or false", t)
	}
	return ok && t == 0xc3
}

// text reads a string of at most max bytes outside the count of fields. The result is a view of the header.
func (p *parser) text(field string, max int) []byte {
	t, ok := p.tag(field)
	if !ok {
		return nil
	}
	var n uint64
	switch {
	case t&0xe0 == 0xa0:
		n = uint64(t & 0x1f)
	case t == 0xd9:
		n = p.bigEndian(field, 1)
	case t == 0xda:
		n = p.bigEndian(field, 2)
	case t == 0xdb:
		n = p.bigEndian(field, 4)
	default:
		p.wrong(field, "a string", t)
		return nil
	}
	if p.err == nil && n > uint64(max) {
		p.fail(field, fmt.Errorf("%d bytes, at most %d", n, max))
		return nil
	}
	b := p.take(field, int(n))
	if !utf8.Valid(b) {
		p.fail(field, errors.New("not UTF-8"))
		return nil
	}
	return b
}

// skip skips n values of any type and depth, without recursion. Every value has at least one byte, so the loop ends
// with the header for any claimed lengths.
func (p *parser) skip(n int) {
	for todo := uint64(n); todo > 0; todo-- {
		t, ok := p.tag("")
		if !ok {
			return
		}
		var bytes, values uint64
		switch {
		case t < 0x80, t >= 0xe0, t == 0xc0, t == 0xc2, t == 0xc3:
		case t&0xf0 == 0x80:
			values = 2 * uint64(t&0x0f)
		case t&0xf0 == 0x90:
			values = uint64(t & 0x0f)
		case t&0xe0 == 0xa0:
			bytes = uint64(t & 0x1f)
		case t == 0xc1:
			p.fail("", errors.New("byte 0xc1, which msgpack never uses"))
		case t <= 0xc6: // bin 8, 16, 32
			bytes = p.bigEndian("", 1<<(t-0xc4))
		case t <= 0xc9: // ext 8, 16, 32
			bytes = p.bigEndian("", 1<<(t-0xc7)) + 1
		case t == 0xca, t == 0xce, t == 0xd2:
			bytes = 4
		case t == 0xcb, t == 0xcf, t == 0xd3:
			bytes = 8
		case t == 0xcc, t == 0xd0:
			bytes = 1
		case t == 0xcd, t == 0xd1:
			bytes = 2
		case t <= 0xd8: // fixext 1 to 16
			bytes = 1 + 1<<(t-0xd4)
		case t <= 0xdb: // str 8, 16, 32
			bytes = p.bigEndian("", 1<<(t-0xd9))
		case t <= 0xdd: // array 16, 32
			values = p.bigEndian("", 2<<(t-0xdc))
		default: // map 16, 32
			values = 2 * p.bigEndian("", 2<<(t-0xde))
		}
		if p.err != nil {
			return
		}
		todo += values
		if bytes > uint64(len(p.rest)) {
			p.fail("", errShort)
			return
		}
		p.rest = p.rest[bytes:]
	}
}

// tagName names the type that a value's first byte announces.
func tagName(t byte) string {
	switch {
	case t < 0x80, t >= 0xe0, t >= 0xcc && t <= 0xd3:
		return "an integer"
	case t&0xf0 == 0x80, t >= 0xde:
		return "a map"
	case t&0xf0 == 0x90, t == 0xdc, t == 0xdd:
		return "an array"
	case t&0xe0 == 0xa0, t >= 0xd9:
		return "a string"
	case t == 0xc0:
		return "nil"
	case t == 0xc2, t == 0xc3:
		return "a boolean"
	case t >= 0xc4 && t <= 0xc6:
		return "bytes"
	case t == 0xca, t == 0xcb:
		return "a float"
	case t == 0xc1:
		return "byte 0xc1, which msgpack never uses"
	}
	return "an extension"
}
