//go:build !amd64 || noasm

package transport

import "hash/crc32"

// more continues a sum.
func more(sum uint32, b []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, b) }
