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

// Row is one line of a result of PS or AllReduce. Its JSON is documented in bench/README.md.
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
	BusBW     float64 `json:"busbw_Bps"` // minimum bytes to be sent, over the median

	// CPU is the processor time of all processes per 1e9 bytes; Allocs is heap allocations per operation, -1: unknown.
	CPU    float64 `json:"cpu_s_per_GB"`
	Allocs float64 `json:"allocs_per_op"`
}

// ErrRows is wrapped by errors about a file without rows.
var ErrRows = errors.New("no result of star bench ps or star bench allreduce")

// ReadRows reads the output of star bench ps --json or star bench allreduce --json. The error is of os.ReadFile, or
// wraps ErrRows.
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

// others are the names in Row.Algorithm of other systems.
var others = []string{"openmpi-tcp", "openmpi-shm", "gloo", BareTCP, PlainTCP}

// Ours reports whether a row was measured on STAR itself.
func (r Row) Ours() bool { return !slices.Contains(others, r.Algorithm) }

// Comparison is a row with that of an earlier measurement.
type Comparison struct {
	Row
	Old *Row // nil: no earlier row

	// Ratio is Old's median over the new one: above 1 is faster. It includes changes of the machine; the ratios of peers
	// show these.
	Ratio float64

	// Verdict tells whether the difference exceeds the scatter of both: see [Verdict].
	Verdict string
}

// Compare finds for each row the one of old with the same ranks, bytes, transport and algorithm. Where each has only
// one row of ours for ranks, bytes and transport, the cost model may have chosen another algorithm: these are still
// compared.
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
