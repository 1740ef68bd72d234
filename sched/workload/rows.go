package workload

import "io"

// Rows is CSV with a header, for formats of other packages. The first error stays.
type Rows struct{ t *table }

// NewRows reads the header, which must contain these columns.
func NewRows(r io.Reader, columns ...string) Rows {
	t := newTable(r)
	t.need(columns...)
	return Rows{t}
}

// Next reads a row. It returns false at the end or after an error.
func (r Rows) Next() bool { return r.t.next() }

// Text returns a cell, or "" if there is no such column.
func (r Rows) Text(column string) string { return r.t.text(column) }

// Number returns a finite number of at least low.
func (r Rows) Number(column string, low float64) float64 { return r.t.number(column, low) }

// Err returns the first error.
func (r Rows) Err() error { return r.t.err }

// Fail sets Err to an error of this row.
func (r Rows) Fail(format string, args ...any) { r.t.fail(r.t.line, format, args...) }
