package ops

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// packed is a row of a trace with columns of all packings and encodings.
type packed struct {
	Type   string   `parquet:"optype"`
	Took   float64  `parquet:"duration"`
	Start  float64  `parquet:"start_ts"`
	Step   int32    `parquet:"step"`
	Data   int64    `parquet:"dp_rank"`
	Stage  int64    `parquet:"stage"`
	Plain  int32    `parquet:"plain,plain"`
	Snappy int32    `parquet:"snappy,snappy,plain"`
	Gzip   int32    `parquet:"gzip,gzip,plain"`
	Zstd   int32    `parquet:"zstd,zstd,plain"`
	Brotli int32    `parquet:"brotli,brotli,plain"`
	LZ4    int32    `parquet:"lz4,lz4,plain"`
	Dict   string   `parquet:"dict,dict"`
	Delta  int32    `parquet:"delta,delta"`
	Maybe  *int32   `parquet:"maybe,optional,plain"`
	Flag   bool     `parquet:"flag"`
	Split  float32  `parquet:"split,split"`
	Fixed  [16]byte `parquet:"fixed,dict"`
	Many   []int32  `parquet:"many,snappy"`
}

func packedRows() []packed {
	var all []packed
	for i := range int32(100) {
		p := packed{Type: "gc", Took: 0.25, Step: i, Plain: i, Snappy: i, Gzip: i, Zstd: i, Brotli: i, LZ4: i, Dict: "abc"[i%3 : i%3+1], Delta: i, Flag: i%5 == 0, Split: float32(i)}
		if i%3 > 0 {
			p.Maybe = &i
		}
		p.Fixed[0] = byte(i % 7)
		p.Many = slices.Repeat([]int32{i}, int(i%4))
		all = append(all, p)
	}
	return all
}

// forge gives a file's column other pages, or tells lies of it.
func forge(t *testing.T, file []byte, column string, change func(c *format.ColumnMetaData, headers []*format.PageHeader, pages [][]byte)) []byte {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	meta := f.Metadata()
	i := slices.IndexFunc(meta.RowGroups[0].Columns, func(c format.ColumnChunk) bool { return c.MetaData.PathInSchema[0] == column })
	c := &meta.RowGroups[0].Columns[i].MetaData
	base := c.DataPageOffset
	if c.DictionaryPageOffset != 0 {
		base = c.DictionaryPageOffset
	}
	var p thrift.CompactProtocol
	var headers []*format.PageHeader
	var pages [][]byte
	for chunk := file[base : base+c.TotalCompressedSize]; len(chunk) > 0; {
		h, in := new(format.PageHeader), p.NewReaderFromBytes(chunk)
		if err := thrift.NewDecoder(in).Decode(h); err != nil {
			t.Fatal(err)
		}
		h.CRC = 0
		headers, pages = append(headers, h), append(pages, slices.Clone(chunk[in.BytesRead():][:h.CompressedPageSize]))
		chunk = chunk[in.BytesRead()+int(h.CompressedPageSize):]
	}
	out := slices.Clone(file[:len(file)-8-int(binary.LittleEndian.Uint32(file[len(file)-8:]))])
	c.DataPageOffset, c.DictionaryPageOffset, c.TotalCompressedSize = 0, 0, 0
	change(c, headers, pages)
	begin := len(out)
	shift, told := c.DataPageOffset, c.TotalCompressedSize
	for i, h := range headers {
		if h.Type == format.DictionaryPage {
			c.DictionaryPageOffset = int64(len(out))
		} else if c.DataPageOffset == shift {
			c.DataPageOffset = int64(len(out)) + shift
		}
		b, err := thrift.Marshal(&p, h)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, b...), pages[i]...)
	}
	c.TotalCompressedSize = int64(len(out)-begin) + told
	b, err := thrift.Marshal(&p, meta)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint32(append(out, b...), uint32(len(b))), "PAR1"...)
}

type change = func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte)

// bomb gives a column a page of 16 MiB of zeros that its header does not declare.
func bomb(with compress.Codec) change {
	return func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
		b, err := with.Encode(nil, make([]byte, 16<<20))
		if err != nil {
			panic(err)
		}
		pages[len(pages)-1], h[len(h)-1].CompressedPageSize = b, int32(len(b))
	}
}

// values are those of a page of data of either kind.
func values(h *format.PageHeader) *int32 {
	if h.Type == format.DataPageV2 {
		return &h.DataPageHeaderV2.V.NumValues
	}
	return &h.DataPageHeader.V.NumValues
}

// Whatever a page says of itself and of what is in it, an honest file is read, and a liar is refused before it takes
// memory.
func TestPagesThatLie(t *testing.T) {
	for _, version := range []int{1, 2} {
		var file bytes.Buffer
		if err := parquet.Write(&file, packedRows(), parquet.DataPageVersion(version)); err != nil {
			t.Fatal(err)
		}
		// run puts a run of 2^30 equal values in front of what is at the given byte of the last page, and says that n bytes
		// of levels are there.
		run := binary.AppendUvarint(nil, 2<<30)
		last := func(h []*format.PageHeader, pages [][]byte, b []byte) {
			i := len(h) - 1
			pages[i], h[i].CompressedPageSize, h[i].UncompressedPageSize = b, int32(len(b)), int32(len(b))
		}
		for _, x := range []struct {
			column string
			change change
			want   string
		}{
			{"plain", func(*format.ColumnMetaData, []*format.PageHeader, [][]byte) {}, ""},
			{"plain", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				h[0].CompressedPageSize = math.MaxInt32
			}, "says 2147483647 bytes, and its column has 400 more"},
			{"plain", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { h[0].CompressedPageSize = -1 }, "says -1 bytes"},
			{"zstd", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				h[0].UncompressedPageSize = math.MaxInt32
			}, "says 2147483647 bytes unpacked"},
			{"zstd", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { h[0].UncompressedPageSize = 399 }, "ZSTD, 399 bytes unpacked: it holds more"},
			{"zstd", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { h[0].UncompressedPageSize = -1 }, "says -1 bytes unpacked"},
			{"snappy", bomb(&parquet.Snappy), "SNAPPY, 400 bytes unpacked: it holds more"},
			{"gzip", bomb(&parquet.Gzip), "GZIP, 400 bytes unpacked: it holds more"},
			{"zstd", bomb(&parquet.Zstd), "ZSTD, 400 bytes unpacked: it holds more"},
			{"brotli", bomb(&parquet.Brotli), "BROTLI, 400 bytes unpacked: it holds more"},
			{"lz4", bomb(&parquet.Lz4Raw), "LZ4_RAW, 400 bytes unpacked: it holds more"},
			{"plain", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { *values(h[0]) = math.MaxInt32 }, "says 2147483647 values, and its column has 100 more"},
			{"plain", func(c *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				*values(h[0]), c.NumValues = math.MaxInt32, math.MaxInt32
			}, "column plain: 2147483647 values in 8589934588 bytes in a file of"},
			{"plain", func(c *format.ColumnMetaData, _ []*format.PageHeader, _ [][]byte) { c.NumValues = math.MaxInt64 }, "9223372036854775807 values"},
			{"plain", func(c *format.ColumnMetaData, _ []*format.PageHeader, _ [][]byte) { c.TotalUncompressedSize = 1 << 40 }, "100 times its size"},
			{"plain", func(c *format.ColumnMetaData, _ []*format.PageHeader, _ [][]byte) { c.TotalCompressedSize = 1 << 40 }, "of a file of"},
			{"dict", func(c *format.ColumnMetaData, _ []*format.PageHeader, _ [][]byte) { c.DataPageOffset = -2 }, "the data of its column begin in it"},
			{"dict", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				h[0].DictionaryPageHeader.V.NumValues = math.MaxInt32
			}, "a dictionary of 2147483647 values in 15 bytes"},
			{"fixed", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				h[0].DictionaryPageHeader.V.NumValues = 8
			}, "a dictionary of 8 values in 112 bytes"},
			{"dict", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) {
				h[0].DictionaryPageHeader.V.Encoding = format.DeltaLengthByteArray
			}, "a dictionary that is encoded as DELTA_LENGTH_BYTE_ARRAY"},
			{"dict", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { h[0].Type = format.DataPage }, "has the header of a dictionary: true"},
			{"plain", func(_ *format.ColumnMetaData, h []*format.PageHeader, _ [][]byte) { h[0].Type = format.IndexPage }, "it is of type INDEX_PAGE"},
			{"dict", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				last(h, pages, append(append([]byte{2}, run...), 1))
			}, "a run of 1073741824 values of 100: it holds more"},
			{"dict", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				last(h, pages, append([]byte{2}, bytes.Repeat([]byte{100, 1}, 4)...))
			}, "runs of 200 values of 100: it holds more"},
			{"dict", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				last(h, pages, append([]byte{0}, binary.AppendUvarint(nil, 21<<1|1)...))
			}, "runs of 168 values of 100: it holds more"},
			{"maybe", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				levels := append(slices.Clone(run), 1)
				if version == 1 {
					last(h, pages, append(binary.LittleEndian.AppendUint32(nil, uint32(len(levels))), levels...))
				} else {
					h[0].DataPageHeaderV2.V.DefinitionLevelsByteLength = int32(len(levels))
					last(h, pages, levels)
				}
			}, "its levels: a run of 1073741824 values of 100: it holds more"},
			{"delta", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				last(h, pages, append([]byte{128, 1, 4}, binary.AppendUvarint(nil, math.MaxInt32)...))
			}, "2147483647 values of 100: it holds more"},
			{"delta", func(c *format.ColumnMetaData, h []*format.PageHeader, pages [][]byte) {
				h[0].DataPageHeader.V.Encoding, h[0].DataPageHeaderV2.V.Encoding = format.DeltaByteArray, format.DeltaByteArray
			}, "DELTA_BYTE_ARRAY, want another encoding"},
		} {
			b := forge(t, file.Bytes(), x.column, x.change)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			all, err := Read(bytes.NewReader(b), int64(len(b)), "a")
			runtime.ReadMemStats(&after)
			switch {
			case x.want == "":
				if err != nil || len(all) != 100 {
					t.Errorf("version %d: %d operations, %v", version, len(all), err)
				}
			case !errors.Is(err, ErrTrace) || !strings.HasPrefix(err.Error(), "a: damaged Parquet: column "+x.column+": ") || !strings.Contains(err.Error(), x.want):
				t.Errorf("version %d, %s: %d operations, %v; want %q", version, x.column, len(all), err, x.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("version %d, %s, %q: %d MiB for a file of %d bytes", version, x.column, x.want, n>>20, len(b))
			}
		}
	}
}
