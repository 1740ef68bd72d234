package coord

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"star"
)

// What a job that resumes remembers of the one before: the last iterations of every worker, from which whoever predicts learns
// how long they take before the first new one is over.

// rememberEach is how many iterations of each worker are remembered: as many as a detector compares with. rememberAll bounds them together.
const (
	rememberEach = 32
	rememberAll  = 8192
)

// recollection keeps the last records, in the order in which they came.
type recollection struct {
	ring []star.Record
	next int // the oldest, when it is full
	max  int
}

func newRecollection(workers int) recollection {
	return recollection{max: min(rememberEach*workers, rememberAll)}
}

func (m *recollection) add(r star.Record) {
	if len(m.ring) < m.max {
		m.ring = append(m.ring, r)
		return
	}
	if m.max > 0 {
		m.ring[m.next] = r
		m.next = (m.next + 1) % m.max
	}
}

// records are those that are kept, the oldest first.
func (m *recollection) records() []star.Record {
	return slices.Concat(m.ring[m.next:], m.ring[:m.next])
}

// logMemory is the line of what a job that resumes remembers: lines of type record of the life before.
type logMemory struct {
	Type    string            `json:"type"` // "memory"
	T       float64           `json:"t"`
	Records []json.RawMessage `json:"records"`
}

// RunMemory is what a job that resumes remembers of the iterations before.
type RunMemory struct{ Records []star.Record }

// EncodeRecords writes records as lines of type record, as a run log has them.
func EncodeRecords(w io.Writer, records []star.Record) error {
	l := NewRunLog(unclosed{w})
	for _, r := range records {
		l.record(r.At, r, -1, nil)
	}
	return l.close()
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// DecodeRecords reads what EncodeRecords wrote. There are at most as many as a coordinator remembers.
func DecodeRecords(text []byte) (records []star.Record, err error) {
	for line := range bytes.Lines(text) {
		if len(records) == rememberAll {
			return nil, fmt.Errorf("coord: more than %d records to remember", rememberAll)
		}
		r, err := decodeRecord(line)
		if err != nil {
			return nil, fmt.Errorf("coord: record %d to remember: %w", len(records)+1, err)
		}
		records = append(records, r)
	}
	return records, nil
}

func decodeRecord(line []byte) (star.Record, error) {
	kind, err := kindOf(line)
	if err != nil {
		return star.Record{}, err
	}
	if kind != "record" {
		return star.Record{}, fmt.Errorf("a line of type %q", kind)
	}
	r, _, err := parseRecord(line)
	return r, err
}

// remember tells the pilot and the run log what the job before knew of its workers. Ranks that this one has not are left out; times are before its beginning.
func (c *Coordinator) remember(at time.Duration) {
	var known []star.Record
	last := time.Duration(math.MinInt64)
	for _, r := range c.cfg.Remember {
		if int(r.Worker) >= 0 && int(r.Worker) < c.cfg.Workers {
			known = append(known, r)
			last = max(last, r.At)
		}
	}
	if len(known) == 0 {
		return
	}
	line := logMemory{Type: "memory", T: at.Seconds()}
	for i := range known {
		known[i].At -= last
		c.memory.add(known[i])
		var text bytes.Buffer
		if err := EncodeRecords(&text, known[i:i+1]); err == nil {
			line.Records = append(line.Records, bytes.TrimSpace(text.Bytes()))
		}
	}
	c.cfg.RunLog.write(line)
	c.tell(at, RunMemory{known})
}

// parseMemory reads a line of type memory.
func parseMemory(b []byte) (at float64, m RunMemory, err error) {
	s := logMemory{T: math.NaN()}
	if err := json.Unmarshal(b, &s); err != nil {
		return 0, m, err
	}
	if len(s.Records) > rememberAll {
		return 0, m, errors.New("memory: too many records")
	}
	for _, text := range s.Records {
		r, err := decodeRecord(text)
		if err != nil {
			return 0, m, fmt.Errorf("memory: %w", err)
		}
		m.Records = append(m.Records, r)
	}
	return s.T, m, nil
}
