package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"star"
)

// Record is an iteration of a worker, as the worker measured it.
type Record struct {
	star.Record
	Start int64   // position of its first sample in the stream of samples; -1: it is not known
	More  []int64 // where else samples of it begin, and how many there are; the others are at Start
}

// recordLine is a Record as its line has it.
type recordLine struct {
	Worker   star.Worker `json:"worker"`             // rank
	Step     int64       `json:"step"`               // the worker's own iterations, from 0
	Basis    int64       `json:"basis"`              // version of the gradient's parameters
	At       Seconds     `json:"at"`                 // end of the computation, on the run's clock
	Load     Seconds     `json:"load"`               // wait for input data
	Compute  Seconds     `json:"compute"`            // forward and backward, with `injected`
	Injected Seconds     `json:"injected,omitempty"` // added by `--slow` or a trace
	Push     Seconds     `json:"push"`               // handing the gradient to every shard's connection; all-reduce: the exchange, with the wait for slower members
	Wait     Seconds     `json:"wait"`               // of the previous iteration: from the end of its push to the release, or the wait for children in a tree
	Pull     Seconds     `json:"pull"`               // of the previous iteration: from the release to the last byte of the parameters
	Transit  Seconds     `json:"transit"`            // of the previous iteration: from the end of its push until all shards had the gradient, by the coordinator's clock
	Start    *int64      `json:"start,omitempty"`    // position of its first sample in the stream of samples; not with all-reduce
	Samples  int         `json:"samples"`            // of the mini-batch
	More     []int64     `json:"more,omitempty"`     // with a queue: position and number of its other samples; the rest of `samples` is at `start`
	Loss     Number      `json:"loss"`               // mean of the mini-batch
	Norm2    Number      `json:"norm2"`              // squared Euclidean norm of the gradient ([protocol.md](protocol.md#life-of-a-connection))
	CPU      Number      `json:"cpu"`                // mean number of processors that the process used
	NetIn    Number      `json:"net_in"`             // bytes received since the last record, gradients and parameters
	NetOut   Number      `json:"net_out"`            // bytes sent

	from int64 // what Start is, in memory

	Telemetry telemetry `json:"telemetry,omitzero"` // other metrics by name ([stragglers.md](stragglers.md#what-is-measured))
}

// telemetry is a star.Telemetry as an object of what was measured.
type telemetry star.Telemetry

// MarshalJSON writes the metrics in the order of their numbers.
func (t telemetry) MarshalJSON() ([]byte, error) {
	return t.appendTo(nil), nil
}

// UnmarshalJSON passes over metrics that it does not know.
func (t *telemetry) UnmarshalJSON(b []byte) error {
	var m map[string]Number
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	*t = telemetry{}
	for name, v := range m {
		if k, ok := star.MetricByName(name); ok {
			(*star.Telemetry)(t).Set(k, float64(v))
		}
	}
	return nil
}

// times are the times of r beside those of l.
func (l *recordLine) times(r *star.Record) [8]recordTime {
	return [8]recordTime{
		{"at", &r.At, &l.At}, {"load", &r.Load, &l.Load}, {"compute", &r.Compute, &l.Compute}, {"injected", &r.Injected, &l.Injected},
		{"push", &r.Push, &l.Push}, {"wait", &r.Wait, &l.Wait}, {"pull", &r.Pull, &l.Pull}, {"transit", &r.Transit, &l.Transit},
	}
}

type recordTime struct {
	name   string
	record *time.Duration
	line   *Seconds
}

// set makes l the line of r. It is not to be copied after that.
func (l *recordLine) set(r *Record) {
	*l = recordLine{
		Worker: r.Worker, Step: r.Step, Basis: r.Basis, Samples: r.Samples, Loss: Number(r.Loss), Norm2: Number(r.Norm2), CPU: Number(r.CPU),
		NetIn: Number(r.NetIn), NetOut: Number(r.NetOut), Telemetry: telemetry(r.Telemetry), More: r.More,
	}
	for _, t := range l.times(&r.Record) {
		*t.line = Seconds(t.record.Seconds())
	}
	if l.from = r.Start; l.from >= 0 {
		l.Start = &l.from
	}
}

// parseRecord parses the line of a Record, with any rank that a job can have.
func parseRecord(b []byte) (r Record, err error) {
	l := recordLine{Worker: -1, Step: -1}
	if err := json.Unmarshal(b, &l); err != nil {
		return r, err
	}
	if l.Worker < 0 || l.Worker >= star.MaxWorkers || l.Step < 0 || l.Samples < 0 {
		return r, fmt.Errorf("worker %d, step %d, %d samples", l.Worker, l.Step, l.Samples)
	}
	if len(l.More)%2 != 0 {
		return r, errors.New("more has a beginning without a number of samples")
	}
	r.Record = star.Record{
		Worker: l.Worker, Step: l.Step, Basis: l.Basis, Samples: l.Samples, Loss: float64(l.Loss), Norm2: float64(l.Norm2), CPU: float64(l.CPU),
		NetIn: float64(l.NetIn), NetOut: float64(l.NetOut), Telemetry: star.Telemetry(l.Telemetry),
	}
	for _, t := range l.times(&r.Record) {
		least := 0.0
		if t.name == "at" { // of an earlier life of the job
			least = -longest
		}
		if s := float64(*t.line); s < least || s > longest {
			return r, fmt.Errorf("%s is %g s, want %g to %g", t.name, s, least, longest)
		}
		*t.record = t.line.Duration()
	}
	r.Start = -1
	if l.Start != nil {
		r.Start = *l.Start
	}
	r.More = l.More
	return r, nil
}

// Memory has, in a job that resumes, the last `record` lines of each worker before, with `at` below 0. Predictors start
// with them.
type Memory struct {
	Records []star.Record `json:"records"` // the lines
}

// MarshalJSON writes the records as their lines.
func (m Memory) MarshalJSON() ([]byte, error) {
	lines := make([]json.RawMessage, len(m.Records))
	var l recordLine
	for i, r := range m.Records {
		l.set(&Record{Record: r, Start: -1})
		lines[i] = l.appendTo(nil, r.At.Seconds())
	}
	return json.Marshal(struct {
		Records []json.RawMessage `json:"records"`
	}{lines})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Memory) UnmarshalJSON(b []byte) error {
	var lines struct {
		Records []json.RawMessage `json:"records"`
	}
	if err := json.Unmarshal(b, &lines); err != nil {
		return err
	}
	if len(lines.Records) > MaxRecords {
		return fmt.Errorf("%d records, at most %d", len(lines.Records), MaxRecords)
	}
	for _, text := range lines.Records {
		r, err := decodeRecord(text)
		if err != nil {
			return err
		}
		m.Records = append(m.Records, r)
	}
	return nil
}

// MaxRecords is how many records a Memory has at most, and so does what a checkpoint keeps of them.
const MaxRecords = 8192

// EncodeRecords writes records as lines of that type, for a checkpoint.
func EncodeRecords(w io.Writer, records []star.Record) error {
	var l recordLine
	var text []byte
	for i := range records {
		l.set(&Record{Record: records[i], Start: -1})
		text = append(l.appendTo(text[:0], records[i].At.Seconds()), '\n')
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// DecodeRecords reads what EncodeRecords wrote: MaxRecords or fewer.
func DecodeRecords(text []byte) (records []star.Record, err error) {
	for line := range bytes.Lines(text) {
		if len(records) == MaxRecords {
			return nil, fmt.Errorf("runlog: more than %d records", MaxRecords)
		}
		r, err := decodeRecord(line)
		if err != nil {
			return nil, fmt.Errorf("runlog: record %d: %w", len(records)+1, err)
		}
		records = append(records, r)
	}
	return records, nil
}

func decodeRecord(line []byte) (star.Record, error) {
	x, err := head(bytes.TrimSpace(line))
	if err != nil {
		return star.Record{}, err
	}
	if x.kind != "record" {
		return star.Record{}, fmt.Errorf("a line of type %q", x.kind)
	}
	r, err := x.record()
	return r.Record, err
}
