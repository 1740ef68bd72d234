package data

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"star/internal/unpack"
)

// source is a file that is read once from front to back, unpacked if it is
// gzip. It knows how many bytes can still come, so that a claim in the file can
// be judged before it is believed.
type source struct {
	path   string
	r      *bufio.Reader
	offset int64 // of the next byte, after decompression
	limit  int64 // no byte at or after this offset can or may come
	why    string
	packed bool // compressed by gzip
	closer io.Closer
}

// expansion is the most that deflate can unpack from one byte: 258 bytes from
// two bits (RFC 1951, section 3.2.5).
const expansion = 1032

// maxUnpacked limits what is unpacked from a compressed file that does not say
// beforehand how long it is: text, CSV, CIFAR.
const maxUnpacked = 1 << 30

// openSource opens a file; expected says what for, should it be missing.
func openSource(path, expected string, maxBytes int64) (*source, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // opening a pipe would block until a writer comes
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, missing(path, expected, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, missing(path, expected, err)
	}
	s, err := newSource(path, f, info.Size(), maxBytes)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.closer = f
	return s, nil
}

// newSource reads size bytes of r.
func newSource(path string, r io.Reader, size, maxBytes int64) (*source, error) {
	s := &source{path: path, r: bufio.NewReaderSize(r, 1<<16), limit: size, why: fmt.Sprintf("the file has %d", size)}
	magic, err := s.r.Peek(2)
	if err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(s.r)
		if err != nil {
			return nil, corrupt(path, 0, "a gzip header", "%v", err)
		}
		s.r = bufio.NewReaderSize(z, 1<<16)
		s.packed = true
		s.limit = size * expansion
		s.why = fmt.Sprintf("%d bytes of gzip hold at most %d", size, s.limit)
		if most := unpack.Most(size); most < s.limit {
			s.limit = most
			s.why = fmt.Sprintf("of %d bytes of gzip at most %d are unpacked here; unpack the file first", size, most)
		}
	}
	if s.limit > maxBytes {
		s.limit = maxBytes
		s.why = fmt.Sprintf("the limit for one file is %d", maxBytes)
	}
	return s, nil
}

func (s *source) Close() error {
	if s.closer == nil {
		return nil
	}
	return s.closer.Close()
}

// Read counts what it reads, and ends at the limit.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.offset += int64(n)
	return n, err
}

// claim fails unless n more bytes can come; n comes from the file and is not to
// be trusted.
func (s *source) claim(n int64, what string) error {
	if n < 0 || n > s.limit-s.offset {
		return corrupt(s.path, s.offset, fmt.Sprintf("%d bytes of %s", n, what), "less: %s", s.why)
	}
	return nil
}

// full reads all of p.
func (s *source) full(p []byte, what string) error {
	start := s.offset
	n, err := io.ReadFull(s, p)
	switch {
	case err == nil:
		return nil
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return corrupt(s.path, s.offset, fmt.Sprintf("%d bytes of %s from byte %d on", len(p), what, start), "the end of the file after %d", n)
	}
	return s.failed(err, what)
}

// take reads the n bytes that the file claims to have of something.
func (s *source) take(n int64, what string) ([]byte, error) {
	if err := s.claim(n, what); err != nil {
		return nil, err
	}
	p := make([]byte, n)
	return p, s.full(p, what)
}

// end fails unless the file is over. For gzip this also checks its checksum.
func (s *source) end() error {
	var one [1]byte
	n, err := io.ReadFull(s, one[:])
	switch {
	case n > 0:
		return corrupt(s.path, s.offset-1, "the end of the file", "more bytes")
	case err == io.EOF:
		return nil
	}
	return s.failed(err, "the end of the file")
}

// rest reads everything up to the end.
func (s *source) rest(what string) ([]byte, error) {
	if s.packed && s.limit > maxUnpacked {
		s.limit = maxUnpacked
		s.why = fmt.Sprintf("the limit for compressed %s is %d; unpack the file first", what, s.limit)
	}
	// One byte more than the limit, to tell a file at the limit from one beyond.
	b, err := io.ReadAll(io.LimitReader(s, s.limit-s.offset+1))
	if err != nil {
		return nil, s.failed(err, what)
	}
	if s.offset > s.limit {
		return nil, corrupt(s.path, s.limit, fmt.Sprintf("at most %d bytes of %s", s.limit, what), "more: %s", s.why)
	}
	return b, nil
}

// failed is the error of a read that failed other than by the end of the file.
func (s *source) failed(err error, what string) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return missing(s.path, what, err)
	}
	return corrupt(s.path, s.offset, what, "%v", err)
}
