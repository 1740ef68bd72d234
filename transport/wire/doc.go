// Package wire has the messages of STAR's protocol: one table, in messages.go, and what follows from it.
//
// A message is the header of a frame (package transport): a msgpack array of its fields, in the order of the table. Headers are walked by hand, with
// bounds: msgpack libraries decode by reflection, allocate what a length claims, and can be killed with five bytes. The functions that do so are
// generated:
//
//	func (m Push) AppendTo(dst []byte) []byte   appends the header
//	func (m *Push) Parse(b []byte) error        reads it, and reuses the memory of m
//	func ParsePush(b []byte) (Push, error)      reads it into fresh memory
//
// Parse allocates only where a list or a text outgrows what m had. After an error, always a *[ParseError], the fields mean nothing.
//
// A new field goes to the end of its message, with the tag absent; a new message gets the next number. Then go generate ./transport/wire, and a sample
// for transport/testdata/vectors.txt. A test says when the generated files are old. The package is pure.
//
// Reference: msgpack specification, github.com/msgpack/msgpack, 2013.
package wire
