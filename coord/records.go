package coord

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"star"
	"star/transport"
)

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

// RunError says where a run log is not one.
type RunError struct {
	Name string
	Line int
	Err  error
}

func (e *RunError) Error() string { return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err) }
func (e *RunError) Unwrap() error { return e.Err }

// ExitCode is that of damaged data.
func (e *RunError) ExitCode() int { return 65 }

// MaxRunLine is the longest line of a run log, in bytes: the first one has the whole configuration.
const MaxRunLine = 16 << 20

// ReadRecords reads a run log, plain or gzip, and passes each record on, in the log's order, until
// one of them is answered with an error. Lines of other types are passed over; a
// last line that was cut, as in a run that still goes on, is too. Errors of the
// log are of type *RunError; name is the file's. ReadRun reads all of it.
func ReadRecords(r io.Reader, name string, each func(star.Record) error) error {
	var s sequence
	_, _, err := scanRun(r, name, func(n int, kind string, b []byte) error {
		if kind != "record" {
			return nil
		}
		rec, _, err := parseRecord(b)
		if err == nil {
			err = s.record(&rec, n)
		}
		if err != nil {
			return &RunError{name, n, err}
		}
		return each(rec)
	})
	return err
}

// sequence notices what is in a run log twice, or out of order. Steps may be missing: workers leave and come back.
type sequence struct {
	steps map[star.Worker]numbered
	seq   numbered
}

// numbered is a number of the log's own count, and the line that has it.
type numbered struct {
	number int64
	line   int
}

// record takes the next record, of that line.
func (s *sequence) record(r *star.Record, line int) error {
	if r.At < 0 {
		return fmt.Errorf("record: at is %g s, want at least 0", r.At.Seconds())
	}
	if last, ok := s.steps[r.Worker]; ok && r.Step <= last.number {
		return fmt.Errorf("record: step %d of worker %d after its step %d in line %d: want each step once, in order", r.Step, r.Worker, last.number, last.line)
	}
	if s.steps == nil {
		s.steps = map[star.Worker]numbered{}
	}
	s.steps[r.Worker] = numbered{r.Step, line}
	return nil
}

// fire takes the number of the next firing.
func (s *sequence) fire(seq int64, line int) error {
	if seq <= s.seq.number {
		return fmt.Errorf("fire: seq is %d, after %d in line %d: want each firing once, in order", seq, s.seq.number, s.seq.line)
	}
	s.seq = numbered{seq, line}
	return nil
}

// parseRecord returns a record and when the coordinator saw it, in seconds.
func parseRecord(b []byte) (r star.Record, t float64, err error) {
	l := logRecord{T: math.NaN(), Worker: -1, Step: -1}
	if err := json.Unmarshal(b, &l); err != nil {
		return r, 0, fmt.Errorf("record: %w", err)
	}
	if l.Worker < 0 || l.Worker >= transport.MaxWorkers || l.Step < 0 || l.Samples < 0 {
		return r, 0, fmt.Errorf("record: worker %d, step %d, %d samples", l.Worker, l.Step, l.Samples)
	}
	r = star.Record{
		Worker: star.Worker(l.Worker), Step: l.Step, Basis: l.Basis, Samples: l.Samples,
		Loss: float64(l.Loss), Norm2: float64(l.Norm2), CPU: float64(l.CPU), NetIn: float64(l.NetIn), NetOut: float64(l.NetOut),
		Telemetry: star.Telemetry(l.Telemetry),
	}
	for _, d := range []struct {
		name string
		to   *time.Duration
		from float64
	}{{"at", &r.At, l.At}, {"load", &r.Load, l.Load}, {"compute", &r.Compute, l.Compute}, {"injected", &r.Injected, l.Injected}, {"push", &r.Push, l.Push},
		{"wait", &r.Wait, l.Wait}, {"pull", &r.Pull, l.Pull}, {"transit", &r.Transit, l.Transit}} {
		least := 0.0
		if d.to == &r.At { // of an earlier life of the job
			least = -longest
		}
		if d.from < least || d.from > longest {
			return r, 0, fmt.Errorf("record: %s is %g s, want %g to %g", d.name, d.from, least, longest)
		}
		*d.to = time.Duration(math.Round(d.from * 1e9))
	}
	return r, l.T, nil
}

// named are the metrics that were measured, by name; nil if there are none.
func named(t *star.Telemetry) map[string]float64 {
	if t.Seen == 0 {
		return nil
	}
	m := map[string]float64{}
	for k := range star.NumMetrics {
		if v, ok := t.Get(k); ok {
			m[k.String()] = v
		}
	}
	return m
}
