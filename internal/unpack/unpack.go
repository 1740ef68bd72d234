// Package unpack reads files that may be packed by gzip, with a bound on the unpacked size: a file of a megabyte can
// unpack to a gigabyte, and its reader keeps the content. Run logs, traces and data sets unpack to 3 to 30 times their
// size.
package unpack

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

const (
	ratio = 100      // more than any file of ours has, and a tenth of what deflate can do
	floor = 64 << 20 // bytes that every host has room for
)

// Most is the largest unpacked size of size packed bytes.
func Most(size int64) int64 {
	if size > (1<<63-1)/ratio {
		return 1<<63 - 1
	}
	return max(floor, ratio*size)
}

// ErrTooMuch is in the error of a file that unpacks to more than Most.
var ErrTooMuch = errors.New("it unpacks to more than 100 times its size and 64 MiB, which no file of ours does; if it is meant, unpack it first")

// Reader reads r, and unpacks it if it is gzip. Errors of the packing, also later ones, begin with gzip.
func Reader(r io.Reader) (*bufio.Reader, error) {
	in := &reader{in: r}
	br := bufio.NewReaderSize(in, 64<<10)
	if magic, _ := br.Peek(2); string(magic) != "\x1f\x8b" {
		return br, nil
	}
	z, err := gzip.NewReader(br)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return bufio.NewReaderSize(&unpacked{z: z, in: in}, 64<<10), nil
}

// reader counts the bytes read.
type reader struct {
	in io.Reader
	n  int64
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	r.n += int64(n)
	return n, err
}

// unpacked counts the unpacked bytes.
type unpacked struct {
	z   *gzip.Reader
	in  *reader
	out int64
}

func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.z.Read(p)
	if u.out += int64(n); u.out > Most(u.in.n) {
		return 0, fmt.Errorf("gzip: %w", ErrTooMuch)
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("gzip: %w", err)
	}
	return n, err
}
