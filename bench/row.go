package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Row is one line of a result of PS or AllReduce. Its JSON is an interface: see
// bench/README.md.
type Row struct {
	Ranks     int     `json:"ranks"` // processes, or workers of a server
	Bytes     int64   `json:"bytes"` // of the vector, or of the parameters
	Transport string  `json:"transport"`
	Algorithm string  `json:"algorithm"` // ours, or the peer's name
	Runs      int     `json:"runs"`
	Median    float64 `json:"median_s"`
	P10       float64 `json:"p10_s"`
	P90       float64 `json:"p90_s"`
	AlgBW     float64 `json:"algbw_Bps"` // Bytes over the median
	BusBW     float64 `json:"busbw_Bps"` // what must be sent at least, over the median

	// CPU is processor time of everybody for each 1e9 bytes; Allocs is heap
	// allocations for each operation, -1: not known.
	CPU    float64 `json:"cpu_s_per_GB"`
	Allocs float64 `json:"allocs_per_op"`
}

// ErrRows is in the errors about a file that holds no rows.
var ErrRows = errors.New("no result of star bench ps or star bench allreduce")

// ReadRows reads what star bench ps --json or star bench allreduce --json has printed. The
// error is of os.ReadFile, or has ErrRows in it.
func ReadRows(path string) ([]Row, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var rows []Row
	dec := json.NewDecoder(bytes.NewReader(text))
	if err = dec.Decode(&rows); err == nil {
		if _, err = dec.Token(); err == io.EOF {
			err = nil
		} else if err == nil {
			err = errors.New("something follows its end")
		}
	}
	if err == nil && len(rows) == 0 {
		err = errors.New("the list is empty")
	}
	for i, r := range rows {
		if err == nil && (r.Ranks < 1 || r.Bytes < 1 || r.Algorithm == "" || !(r.Median > 0)) {
			err = fmt.Errorf("row %d: %d ranks, %d bytes, algorithm %q, %v s", i, r.Ranks, r.Bytes, r.Algorithm, r.Median)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bench: %s is %w: %w", path, ErrRows, err)
	}
	return rows, nil
}

// others are names in Row.Algorithm that are not ours.
var others = []string{"openmpi-tcp", "openmpi-shm", "gloo", BareTCP, PlainTCP}

// Ours says whether a row was measured on STAR itself.
func (r Row) Ours() bool { return !slices.Contains(others, r.Algorithm) }

// Comparison is a row beside the one of an earlier measurement.
type Comparison struct {
	Row
	Old *Row // nil: there is none

	// Ratio is Old's median over the new one: above 1 is faster. On the machine at that
	// time: the ratios of peers tell how much of it is the machine.
	Ratio float64

	// Verdict says whether that is more than what both scatter: see [Verdict].
	Verdict string
}

// Compare finds for each row the one of old with the same ranks, bytes, transport and
// algorithm. Where we have only one row for ranks, bytes and transport in each, the cost model
// may have chosen another algorithm: they are still compared.
func Compare(old, now []Row) []Comparison {
	find := func(in []Row, same func(Row) bool) *Row {
		var found *Row
		for i := range in {
			if same(in[i]) {
				if found != nil {
					return nil
				}
				found = &in[i]
			}
		}
		return found
	}
	var out []Comparison
	for _, r := range now {
		place := func(o Row) bool { return o.Ranks == r.Ranks && o.Bytes == r.Bytes && o.Transport == r.Transport }
		c := Comparison{Row: r, Old: find(old, func(o Row) bool { return place(o) && o.Algorithm == r.Algorithm })}
		if c.Old == nil && r.Ours() {
			alone := func(o Row) bool { return place(o) && o.Ours() }
			if find(now, alone) != nil {
				c.Old = find(old, alone)
			}
		}
		if c.Old != nil {
			c.Ratio, c.Verdict = c.Old.Median/r.Median, Verdict(c.Old.measure(), r.measure())
		}
		out = append(out, c)
	}
	return out
}
