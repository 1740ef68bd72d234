//go:build !amd64 || noasm

package transport

import "hash/crc32"

// more continues a sum.
func more(sum uint32, b []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, b) }

// step is of how many elements, or a multiple of them, squares.more can be told before the last.
func (*squares) step() int { return plainStep }

// more continues a checksum, and the sum of squares, by v: whole steps, and at the end the rest.
func (q *squares) more(sum uint32, v []float32) uint32 { return q.plain(sum, v) }
