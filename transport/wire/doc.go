// Package wire has the messages of STAR's protocol: one table, in messages.go, and the code generated from it.
//
// A message is the header of a frame (package transport): a msgpack array of its fields, in the order of the table.
// Headers are decoded without a msgpack library: libraries decode by reflection, allocate what a length claims, and a
// header of five bytes can exhaust their memory. The functions are generated:
//
//	func (m Push) AppendTo(dst []byte) []byte   appends the header
//	func (m *Push) Parse(b []byte) error        reads it, and reuses the memory of m
//	func ParsePush(b []byte) (Push, error)      reads it into new memory
//
// Parse allocates only for a list or a text that is longer than the one in m. An error is always a *[ParseError]; the
// fields are then undefined.
//
// A new field goes to the end of its message, with the tag absent; a new message gets the next number. Then run
// go generate ./transport/wire, and add a sample for transport/testdata/vectors.txt. A test fails if generated files
// are outdated. The package is pure.
//
// Reference: msgpack specification, github.com/msgpack/msgpack, 2013.
package wire
