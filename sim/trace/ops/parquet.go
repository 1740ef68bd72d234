package ops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// Columns of a trace file. Whole numbers may have any width, times 32 or 64 bits; other columns are not looked at.
// optype is one of the names that Type.String gives; gmc, the chunk of the model, is needed where stages have
// several.
const (
	columnData = iota
	columnStage
	columnStep
	columnType
	columnStart
	columnTook
	columnChunk
	numColumns
)

var columnNames = [numColumns]string{"dp_rank", "stage", "step", "optype", "start_ts", "duration", "gmc"}

// Open reads the operations of a Parquet file, as ByteDance-Seed/StragglerAnalysis publishes them. Errors begin
// with the file's name, and with that of a row, from 1, where there is one. Those of a file that is no trace have
// ErrTrace.
func Open(path string) ([]Op, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace of operations: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("trace of operations: %w", err)
	}
	return Read(f, info.Size(), path)
}

// Read is Open for anything that can be read. name is the file's.
func Read(r io.ReaderAt, size int64, name string) (all []Op, err error) {
	row := 0
	fail := func(format string, a ...any) ([]Op, error) {
		where := name
		if row > 0 {
			where = fmt.Sprintf("%s: row %d", name, row)
		}
		return nil, corrupt{where + ": " + fmt.Sprintf(format, a...)}
	}
	// The library panics on some damaged files. They are the world's mistake, not ours.
	defer func() {
		if p := recover(); p != nil {
			all, err = fail("damaged Parquet: %v", p)
		}
	}()
	// The library makes room for as much of a footer as the file says that it has.
	var tail [8]byte
	if n, _ := r.ReadAt(tail[:], size-8); n != 8 || string(tail[4:]) != "PAR1" || int64(binary.LittleEndian.Uint32(tail[:])) > size-12 {
		return fail("want a Parquet file: it does not end as one")
	}
	file, err := parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return fail("want a Parquet file: %v", err)
	}
	if n := file.NumRows(); n < 1 || n > maxOps {
		return fail("%d rows, want 1 to %d", n, maxOps)
	}
	if err := checkPages(r, size, file); err != nil {
		return fail("damaged Parquet: %v", err)
	}
	var at [numColumns]int
	for c, column := range columnNames {
		leaf, ok := file.Schema().Lookup(column)
		if !ok {
			if c == columnChunk {
				at[c] = -1
				continue
			}
			return fail("there is no column %s, want %s", column, strings.Join(columnNames[:], ", "))
		}
		at[c] = leaf.ColumnIndex
		if want, ok := kinds(c, leaf.Node.Type().Kind()); !ok || leaf.MaxRepetitionLevel > 0 {
			return fail("column %s is %v, want %s", column, leaf.Node.Type(), want)
		}
	}
	buffer := make([]parquet.Row, 256)
	for _, group := range file.RowGroups() {
		rows := group.Rows()
		for {
			n, err := rows.ReadRows(buffer)
			for _, values := range buffer[:n] {
				row++
				o, err := operation(values, &at)
				if err == nil {
					err = o.check()
				}
				if err != nil {
					rows.Close()
					return fail("%v", err)
				}
				all = append(all, o)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				rows.Close()
				row++
				return fail("damaged Parquet: %v", err)
			}
		}
		if err := rows.Close(); err != nil {
			return fail("damaged Parquet: %v", err)
		}
	}
	row = 0
	if int64(len(all)) != file.NumRows() {
		return fail("%d rows, but its end says %d", len(all), file.NumRows())
	}
	return all, nil
}

// kinds says what a column may be.
func kinds(column int, k parquet.Kind) (want string, ok bool) {
	switch column {
	case columnType:
		return "text", k == parquet.ByteArray
	case columnStart, columnTook:
		return "float or double", k == parquet.Float || k == parquet.Double
	}
	return "whole numbers", k == parquet.Int32 || k == parquet.Int64
}

// operation is one row.
func operation(values parquet.Row, at *[numColumns]int) (o Op, err error) {
	var v [numColumns]parquet.Value
	for _, x := range values {
		for c := range at {
			if x.Column() == at[c] {
				v[c] = x
			}
		}
	}
	for c := range v {
		if c != columnChunk && v[c].IsNull() {
			return o, fmt.Errorf("it has no %s", columnNames[c])
		}
	}
	var ok bool
	if o.Type, ok = parseType(string(v[columnType].ByteArray())); !ok {
		return o, fmt.Errorf("optype is %.40q, want one of %s", v[columnType].ByteArray(), strings.Join(typeNames[:], ", "))
	}
	o.Step = whole(v[columnStep])
	o.Data, o.Stage, o.Chunk = rank(v[columnData]), rank(v[columnStage]), -1
	if at[columnChunk] >= 0 && !v[columnChunk].IsNull() {
		o.Chunk = rank(v[columnChunk])
	}
	o.Start, o.Took = number(v[columnStart]), number(v[columnTook])
	return o, nil
}

func whole(v parquet.Value) int64 {
	if v.Kind() == parquet.Int32 {
		return int64(v.Int32())
	}
	return v.Int64()
}

// rank is a whole number that is checked later; what does not fit is as wrong as −2.
func rank(v parquet.Value) int {
	if n := whole(v); n >= -1 && n <= math.MaxInt32 {
		return int(n)
	}
	return -2
}

func number(v parquet.Value) float64 {
	if v.Kind() == parquet.Float {
		return float64(v.Float())
	}
	return v.Double()
}
