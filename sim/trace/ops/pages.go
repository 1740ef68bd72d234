package ops

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"

	"star/internal/unpack"
)

// errLies is in the error of a page that holds more than its header says.
var errLies = errors.New("it holds more than it says")

// checkPages walks the pages of all columns before the library reads one. The library makes room for as much as
// headers of pages, of runs and of packed blocks say, up to 64 GiB for a file of a hundred bytes. Here, columns
// together may say unpack.Most of the file's size; pages, no more than what is left of their column; and what is
// in a page, no more than the page. size is the file's, in bytes.
func checkPages(r io.ReaderAt, size int64, file *parquet.File) error {
	leaves := leavesOf(file.Root(), nil)
	left, packed := unpack.Most(size), size
	for _, group := range file.Metadata().RowGroups {
		if len(group.Columns) != len(leaves) {
			return fmt.Errorf("%d columns in a group of rows, want %d", len(group.Columns), len(leaves))
		}
		for i := range group.Columns {
			c := &group.Columns[i].MetaData
			name := leaves[i].Name()
			if c.NumValues < 0 || c.NumValues > math.MaxInt64/4 || c.TotalUncompressedSize < 0 {
				return fmt.Errorf("column %s: %d values in %d bytes", name, c.NumValues, c.TotalUncompressedSize)
			}
			// a run of equal values is a few bytes in the file, and 4 or 8 each in memory
			n := max(c.TotalUncompressedSize, 4*c.NumValues)
			if n > left {
				return fmt.Errorf("column %s: %d values in %d bytes in a file of %d: %w", name, c.NumValues, n, size, unpack.ErrTooMuch)
			}
			left -= n
			base := c.DataPageOffset
			if c.DictionaryPageOffset != 0 {
				base = c.DictionaryPageOffset
			}
			if base < 0 || base > size || c.TotalCompressedSize < 0 || c.TotalCompressedSize > min(size-base, packed) {
				return fmt.Errorf("column %s: %d bytes at byte %d of a file of %d", name, c.TotalCompressedSize, base, size)
			}
			packed -= c.TotalCompressedSize
			chunk := make([]byte, c.TotalCompressedSize)
			if _, err := r.ReadAt(chunk, base); err != nil && err != io.EOF {
				return err
			}
			if at, err := checkChunk(chunk, leaves[i], c); err != nil {
				return fmt.Errorf("column %s: page at byte %d: %w", name, base+int64(at), err)
			}
		}
	}
	return nil
}

// leavesOf are the columns that have values, in the order in which groups of rows have them.
func leavesOf(c *parquet.Column, all []*parquet.Column) []*parquet.Column {
	if c.Leaf() {
		return append(all, c)
	}
	for _, inner := range c.Columns() {
		all = leavesOf(inner, all)
	}
	return all
}

// checkChunk walks the pages of one column in one group of rows. at is the byte of chunk at which the page of the
// error begins.
func checkChunk(chunk []byte, leaf *parquet.Column, c *format.ColumnMetaData) (at int, err error) {
	size, values := c.TotalUncompressedSize, c.NumValues
	var protocol thrift.CompactProtocol
	for at < len(chunk) {
		var h format.PageHeader
		in := protocol.NewReaderFromBytes(chunk[at:])
		if err := thrift.NewDecoder(in).Decode(&h); err != nil {
			return at, fmt.Errorf("its header: %w", err)
		}
		body := chunk[at+in.BytesRead():]
		if h.CompressedPageSize < 0 || int(h.CompressedPageSize) > len(body) {
			return at, fmt.Errorf("it says %d bytes, and its column has %d more", h.CompressedPageSize, len(body))
		}
		if h.UncompressedPageSize < 0 || int64(h.UncompressedPageSize) > size {
			return at, fmt.Errorf("it says %d bytes unpacked, and its column has %d more", h.UncompressedPageSize, size)
		}
		size -= int64(h.UncompressedPageSize)
		// the library looks at this alone, or at the type alone
		if d := h.DictionaryPageHeader.Valid; d != (h.Type == format.DictionaryPage) {
			return at, fmt.Errorf("it is of type %v, and has the header of a dictionary: %v", h.Type, d)
		}
		n := int64(0)
		switch {
		case h.Type == format.DataPage && h.DataPageHeader.Valid:
			n = int64(h.DataPageHeader.V.NumValues)
		case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
			n = int64(h.DataPageHeaderV2.V.NumValues)
		}
		if n < 0 || n > values {
			return at, fmt.Errorf("it says %d values, and its column has %d more", n, values)
		}
		values -= n
		if err := checkPage(body[:h.CompressedPageSize], leaf, &h); err != nil {
			return at, err
		}
		next := at + in.BytesRead() + int(h.CompressedPageSize)
		// The library may begin at the first page of data, so that has to be one of ours.
		if data := c.DataPageOffset - c.DictionaryPageOffset; c.DictionaryPageOffset != 0 && (data < 0 || int64(at) < data && data < int64(next)) {
			return at, fmt.Errorf("the data of its column begin in it, at byte %d of the file", c.DataPageOffset)
		}
		at = next
	}
	return at, nil
}

// checkPage checks what is in one page, as its header h has it, against h.
func checkPage(page []byte, leaf *parquet.Column, h *format.PageHeader) error {
	var levels [2]struct { // of repetition and of definition
		max      int
		encoding format.Encoding
	}
	levels[0].max, levels[1].max = leaf.MaxRepetitionLevel(), leaf.MaxDefinitionLevel()
	wide := int64(0) // bytes that a value has at least, unless it is a bit
	switch leaf.Type().Kind() {
	case parquet.Int32, parquet.Float, parquet.ByteArray:
		wide = 4
	case parquet.Int64, parquet.Double:
		wide = 8
	case parquet.Int96:
		wide = 12
	case parquet.FixedLenByteArray:
		wide = int64(leaf.Type().Length())
	}
	// this is what the library unpacks with, whatever the group of rows says
	codec := leaf.Compression().CompressionCodec()
	var err error
	var encoding format.Encoding
	var values int32
	switch {
	case h.Type == format.DictionaryPage:
		d := &h.DictionaryPageHeader.V
		//lint:ignore SA1019 older writers say so
		if d.Encoding != format.Plain && d.Encoding != format.PlainDictionary {
			return fmt.Errorf("a dictionary that is encoded as %v, want %v", d.Encoding, format.Plain)
		}
		if d.NumValues < 0 || int64(d.NumValues) > 8*int64(h.UncompressedPageSize) || int64(d.NumValues)*wide > int64(h.UncompressedPageSize) {
			return fmt.Errorf("a dictionary of %d values in %d bytes", d.NumValues, h.UncompressedPageSize)
		}
		_, err := unpackPage(codec, page, int(h.UncompressedPageSize))
		return err
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		d := &h.DataPageHeader.V
		values, encoding = d.NumValues, d.Encoding
		levels[0].encoding, levels[1].encoding = d.RepetitionLevelEncoding, d.DefinitionLevelEncoding
		if page, err = unpackPage(codec, page, int(h.UncompressedPageSize)); err != nil {
			return err
		}
		for _, l := range levels {
			if l.max == 0 {
				continue
			}
			if len(page) < 4 || uint64(binary.LittleEndian.Uint32(page)) > uint64(len(page)-4) {
				return fmt.Errorf("its levels: %w", io.ErrUnexpectedEOF)
			}
			n := 4 + int(binary.LittleEndian.Uint32(page))
			if l.encoding == format.RLE {
				if err := checkRuns(page[4:n], bits.Len(uint(l.max)), values); err != nil {
					return fmt.Errorf("its levels: %w", err)
				}
			}
			page = page[n:]
		}
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		d := &h.DataPageHeaderV2.V
		values, encoding = d.NumValues, d.Encoding
		for i, n := range [2]int32{d.RepetitionLevelsByteLength, d.DefinitionLevelsByteLength} {
			if n < 0 || int(n) > len(page) {
				return fmt.Errorf("its levels: %w", io.ErrUnexpectedEOF)
			}
			if levels[i].max > 0 {
				if err := checkRuns(page[:n], bits.Len(uint(levels[i].max)), values); err != nil {
					return fmt.Errorf("its levels: %w", err)
				}
			}
			page = page[n:]
		}
		if !d.IsCompressed.Valid || d.IsCompressed.V {
			if page, err = unpackPage(codec, page, int(h.UncompressedPageSize)); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("it is of type %v, want one of data or a dictionary", h.Type)
	}
	if len(page) == 0 {
		return nil
	}
	switch encoding {
	//lint:ignore SA1019 older writers say so
	case format.PlainDictionary, format.RLEDictionary:
		return checkRuns(page[1:], int(page[0]), values)
	case format.RLE: // of booleans, behind 4 bytes that say how long they are
		return checkRuns(page[min(4, len(page)):], 1, values)
	// a header: the size of blocks, in how many parts, and how many values
	case format.DeltaBinaryPacked, format.DeltaLengthByteArray:
		n := uint64(0)
		for range 3 {
			k := 0
			if n, k = binary.Uvarint(page); k <= 0 {
				return fmt.Errorf("its values: %w", io.ErrUnexpectedEOF)
			}
			page = page[k:]
		}
		if n > uint64(values) {
			return fmt.Errorf("%d values of %d: %w", n, values, errLies)
		}
	case format.ByteStreamSplit:
		if n := int64(values) * wide; n > unpack.Most(int64(len(page))) {
			return fmt.Errorf("%d values of %d bytes each: %w", values, wide, unpack.ErrTooMuch)
		}
	// each value may repeat the whole of the one before it, so their sum has no bound that a header shows
	case format.DeltaByteArray:
		return fmt.Errorf("it is encoded as %v, want another encoding", encoding)
	}
	return nil
}

// checkRuns walks runs of equal values, and groups of 8 packed ones, of width bits each (Apache Parquet,
// Encodings, RLE). Writers fill up the last group.
func checkRuns(b []byte, width int, values int32) error {
	most := uint64(values) + 64
	for sum := uint64(0); len(b) > 0; {
		u, k := binary.Uvarint(b)
		if k <= 0 {
			return fmt.Errorf("a run: %w", io.ErrUnexpectedEOF)
		}
		b = b[k:]
		n, length := u>>1, (width+7)/8
		if n == 0 {
			continue // the library reads no value then
		}
		if n > most {
			return fmt.Errorf("a run of %d values of %d: %w", n, values, errLies)
		}
		if u&1 != 0 {
			length = int(n) * width
			n *= 8
		}
		if sum += n; sum > most {
			return fmt.Errorf("runs of %d values of %d: %w", sum, values, errLies)
		}
		b = b[min(length, len(b)):]
	}
	return nil
}

// unpackPage unpacks what has at most size bytes unpacked.
func unpackPage(codec format.CompressionCodec, page []byte, size int) ([]byte, error) {
	if len(page) == 0 {
		return page, nil
	}
	var from io.Reader
	var err error
	switch codec {
	case format.Uncompressed:
		return page, nil
	case format.Snappy:
		n, err := snappy.DecodedLen(page)
		if err == nil && n > size {
			err = errLies
		}
		if err == nil {
			page, err = snappy.Decode(nil, page)
		}
		return page, packing(codec, size, err)
	case format.Lz4Raw: // the library tries again with twice the room for as long as there is an error
		out := make([]byte, size)
		n, err := lz4.UncompressBlock(page, out)
		if err != nil {
			return nil, packing(codec, size, fmt.Errorf("%w, or it is damaged", errLies))
		}
		return out[:n], nil
	case format.Zstd:
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		out, err := z.DecodeAll(page, make([]byte, 0, size))
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			err = errLies
		}
		return out, packing(codec, size, err)
	case format.Gzip:
		if from, err = gzip.NewReader(bytes.NewReader(page)); err != nil {
			return nil, packing(codec, size, err)
		}
	case format.Brotli:
		from = brotli.NewReader(bytes.NewReader(page))
	default:
		return nil, fmt.Errorf("it is packed by %v, want none of it, snappy, gzip, zstd, brotli or LZ4_RAW", codec)
	}
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(from, int64(size)+1))
	if err == nil && n > int64(size) {
		err = errLies
	}
	return out.Bytes(), packing(codec, size, err)
}

// packing says where err comes from.
func packing(codec format.CompressionCodec, size int, err error) error {
	if err != nil {
		return fmt.Errorf("%v, %d bytes unpacked: %w", codec, size, err)
	}
	return nil
}
