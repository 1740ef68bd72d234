package pgns

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table has moments that were measured beforehand, by batch and epoch: a prior for
// a job that has measured nothing yet. A noise scale would not depend on the batch
// that it was measured with; measured ones do, because estimates are biased, so the
// batch is part of the key.
type Table struct {
	batches []int // ascending
	rows    map[int][]Moments
	has     map[int][]bool
}

// maxEpoch bounds what a table may ask to be allocated.
const maxEpoch = 10_000

// ErrTable is in the error of a text that is no noise table.
var ErrTable = errors.New("not a noise table")

// tableError is an ErrTable that says no more than it does.
type tableError struct{ error }

func (tableError) Is(target error) bool { return target == ErrTable }

// ParseTable reads CSV with a header that has the columns batch, epoch, grad_sqr
// (|G|²) and grad_var (tr Σ), in any order and among others; epoch_idx is another name
// of epoch. Epochs of a batch count from 0 without gaps. Errors are ErrTable.
func ParseTable(text []byte) (*Table, error) {
	t, err := parseTable(text)
	if err != nil {
		return nil, tableError{err}
	}
	return t, nil
}

func parseTable(text []byte) (*Table, error) {
	r := csv.NewReader(bytes.NewReader(text))
	r.TrimLeadingSpace = true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("pgns: noise table: no header: %w", err)
	}
	column := func(names ...string) int {
		return slices.IndexFunc(header, func(h string) bool { return slices.Contains(names, strings.ToLower(strings.TrimSpace(h))) })
	}
	at := [4]int{column("batch"), column("epoch", "epoch_idx"), column("grad_sqr"), column("grad_var")}
	for i, name := range [4]string{"batch", "epoch", "grad_sqr", "grad_var"} {
		if at[i] < 0 {
			return nil, fmt.Errorf("pgns: noise table: the header %q has no column %s: want batch, epoch, grad_sqr and grad_var", strings.Join(header, ","), name)
		}
	}
	t := &Table{rows: map[int][]Moments{}, has: map[int][]bool{}}
	for {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("pgns: noise table: %w", err)
		}
		line, _ := r.FieldPos(0)
		field := func(i int) string { return strings.TrimSpace(rec[at[i]]) }
		batch, err1 := strconv.Atoi(field(0))
		epoch, err2 := strconv.Atoi(field(1))
		sqr, err3 := strconv.ParseFloat(field(2), 64)
		vari, err4 := strconv.ParseFloat(field(3), 64)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("pgns: noise table, line %d: %w", line, err)
		}
		switch {
		case batch < 1:
			return nil, fmt.Errorf("pgns: noise table, line %d: batch %d, want at least 1", line, batch)
		case epoch < 0 || epoch > maxEpoch:
			return nil, fmt.Errorf("pgns: noise table, line %d: epoch %d, want 0 to %d", line, epoch, maxEpoch)
		case !(sqr > 0) || math.IsInf(sqr, 0) || !(vari > 0) || math.IsInf(vari, 0):
			return nil, fmt.Errorf("pgns: noise table, line %d: grad_sqr %v and grad_var %v, want positive numbers", line, sqr, vari)
		case math.IsInf(vari/sqr, 0) || vari/sqr == 0:
			return nil, fmt.Errorf("pgns: noise table, line %d: grad_var %v by grad_sqr %v, the noise scale, is %v: want a positive number of samples", line, vari, sqr, vari/sqr)
		}
		for len(t.rows[batch]) <= epoch {
			t.rows[batch] = append(t.rows[batch], Moments{})
			t.has[batch] = append(t.has[batch], false)
		}
		if t.has[batch][epoch] {
			return nil, fmt.Errorf("pgns: noise table, line %d: batch %d has epoch %d twice", line, batch, epoch)
		}
		t.rows[batch][epoch], t.has[batch][epoch] = Moments{sqr, vari}, true
	}
	if len(t.rows) == 0 {
		return nil, errors.New("pgns: noise table: no rows after the header")
	}
	for b, has := range t.has {
		if i := slices.Index(has, false); i >= 0 {
			return nil, fmt.Errorf("pgns: noise table: batch %d lacks epoch %d", b, i)
		}
		t.batches = append(t.batches, b)
	}
	slices.Sort(t.batches)
	return t, nil
}

// row is the moments of a tabulated batch. Epochs are rounded, halves up, and held
// within the table.
func (t *Table) row(batch int, epoch float64) Moments {
	rows := t.rows[batch]
	e := math.Floor(epoch + 0.5)
	return rows[int(min(max(e, 0), float64(len(rows)-1)))]
}

// Interpolate is the moments at a total batch within the table, by the published
// rule: both moments are interpolated by themselves, linearly, between the nearest
// batches. Outside it is an error.
func (t *Table) Interpolate(batch, epoch float64) (Moments, error) {
	lo, hi := t.batches[0], t.batches[len(t.batches)-1]
	if !(batch >= float64(lo) && batch <= float64(hi)) || math.IsNaN(epoch) {
		return Moments{}, fmt.Errorf("pgns: batch %v, epoch %v: the table has batches %d to %d", batch, epoch, lo, hi)
	}
	i, found := slices.BinarySearchFunc(t.batches, batch, func(b int, x float64) int {
		switch {
		case float64(b) < x:
			return -1
		case float64(b) > x:
			return 1
		}
		return 0
	})
	if found {
		return t.row(t.batches[i], epoch), nil
	}
	a, b := t.row(t.batches[i-1], epoch), t.row(t.batches[i], epoch)
	f := (batch - float64(t.batches[i-1])) / float64(t.batches[i]-t.batches[i-1])
	return Moments{a.Grad2 + f*(b.Grad2-a.Grad2), a.Var + f*(b.Var-a.Var)}, nil
}

// Scale is φ in samples at any batch above 0. Outside the table it goes on as a power
// of the batch through the two batches at that end, with an exponent held to 0..1:
// larger batches measure a larger scale, but not more than in proportion.
func (t *Table) Scale(batch, epoch float64) (float64, error) {
	if !(batch > 0) || math.IsInf(batch, 1) || math.IsNaN(epoch) {
		return 0, fmt.Errorf("pgns: batch %v, epoch %v: want a positive batch and a number", batch, epoch)
	}
	if m, err := t.Interpolate(batch, epoch); err == nil {
		return m.Var / m.Grad2, nil
	}
	last := len(t.batches) - 1
	end, next := t.batches[0], t.batches[min(1, last)]
	if batch > float64(t.batches[last]) {
		end, next = t.batches[last], t.batches[max(0, last-1)]
	}
	phi := func(b int) float64 { m := t.row(b, epoch); return m.Var / m.Grad2 }
	power := 0.0
	if next != end {
		power = min(max(math.Log(phi(next)/phi(end))/math.Log(float64(next)/float64(end)), 0), 1)
	}
	return phi(end) * math.Pow(batch/float64(end), power), nil
}

// Updates is how many updates of that many samples make the progress of one with
// an exact gradient: 1 + φ/B (McCandlish et al., appendix D; Pollux, section 3.1).
func Updates(scale, samples float64) float64 { return 1 + scale/samples }
