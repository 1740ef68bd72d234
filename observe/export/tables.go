package export

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"star"
	"star/runlog"
)

// Format is how tables are written.
type Format int

const (
	CSV     Format = iota // RFC 4180 with a head; a missing value is empty
	Parquet               // Snappy; a missing value is null
)

// Ext is the ending of files of that format.
func (f Format) Ext() string { return [...]string{".csv", ".parquet"}[f] }

// Names of the tables, and of their files.
var Names = []string{"record", "update", "verdict", "plan", "evaluation"}

// column is one of a table. One that has the name of a field of the run log means what the field means (docs/files.md):
// times are seconds, sizes bytes.
type column struct {
	name string
	node parquet.Node
}

func numbers(names ...string) (cs []column) {
	for _, name := range names {
		cs = append(cs, column{name, parquet.Leaf(parquet.DoubleType)})
	}
	return cs
}

func whole(names ...string) (cs []column) {
	for _, name := range names {
		cs = append(cs, column{name, parquet.Int(64)})
	}
	return cs
}

func texts(names ...string) (cs []column) {
	for _, name := range names {
		cs = append(cs, column{name, parquet.String()})
	}
	return cs
}

// maybe are columns that may have no value in a row.
func maybe(cs []column) []column {
	for i := range cs {
		cs[i].node = parquet.Optional(cs[i].node)
	}
	return cs
}

func join(lists ...[]column) (all []column) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// metrics are the columns of the telemetry.
func metrics() (cs []column) {
	for m := range star.NumMetrics {
		cs = append(cs, column{m.String(), parquet.Leaf(parquet.FloatType)})
	}
	return cs
}

var columns = map[string][]column{
	"record": join(numbers("t"), whole("worker", "step", "basis"), numbers("at", "load", "compute", "injected", "push", "wait", "pull", "transit"),
		maybe(whole("start")), whole("samples"), maybe(numbers("loss", "norm2", "cpu", "net_in", "net_out")), maybe(metrics())),
	"update": join(numbers("t"), whole("seq", "version", "gradients", "samples"), numbers("interval", "staleness_mean"), whole("staleness_max"),
		maybe(numbers("loss")), texts("mode", "workers", "dropped")),
	"verdict":    join(numbers("t"), whole("worker"), texts("event"), whole("step", "since"), maybe(whole("until")), maybe(numbers("slowdown")), texts("cause", "evidence")),
	"plan":       join(numbers("t"), texts("plan", "from", "why"), maybe(numbers("predicted_gain", "seen_gain")), whole("reverted")),
	"evaluation": join(numbers("t"), whole("eval", "from_version", "to_version", "samples"), maybe(numbers("loss", "accuracy")), whole("count", "final")),
}

// Tables writes a log as tables: one row for each iteration of a worker, update, verdict on a worker, change of
// the mode, evaluation.
type Tables struct {
	grads  gradients
	tables map[string]*table
	plans  []plan
	row    []parquet.Value
}

// plan is a change of mode with an effect that is not known yet.
type plan struct {
	at time.Duration
	runlog.Plan
	seen     runlog.Number
	reverted bool
}

// NewTables writes to a file for each of [Names], which create makes. A table that has no rows is written too.
func NewTables(f Format, create func(name string) (io.Writer, error)) (*Tables, error) {
	t := &Tables{tables: map[string]*table{}}
	for _, name := range Names {
		w, err := create(name)
		if err != nil {
			return nil, err
		}
		t.tables[name] = newTable(f, name, w)
	}
	return t, nil
}

// Line implements Sink.
func (t *Tables) Line(l runlog.Line) error {
	if u, ok := t.grads.take(l); ok {
		return t.update(u)
	}
	switch e := l.Entry.(type) {
	case runlog.Record:
		return t.record(l.T, &e)
	case runlog.Verdict:
		var says []string
		for _, ev := range e.Evidence {
			says = append(says, ev.Text)
		}
		r := t.begin(l.T).whole(int64(e.Worker)).text(e.Event).whole(e.Step, e.Since)
		if e.Event == "recovered" {
			r.whole(e.Until)
		} else {
			r.none()
		}
		return r.number(e.Slowdown).text(e.Cause, strings.Join(says, "; ")).end("verdict")
	case runlog.Plan:
		t.plans = append(t.plans, plan{l.T, e, runlog.Number(math.NaN()), false})
	case runlog.Gain: // of the last change to that mode
		for i := len(t.plans) - 1; i >= 0; i-- {
			if t.plans[i].Plan.Plan == e.Plan {
				t.plans[i].seen, t.plans[i].reverted = e.Seen, e.Reverted
				break
			}
		}
	case runlog.Eval:
		return t.begin(l.T).whole(e.Eval, e.From, e.To, e.Samples).number(e.Loss, e.Accuracy).whole(e.Count).flag(e.Final).end("evaluation")
	}
	return nil
}

func (t *Tables) record(at time.Duration, e *runlog.Record) error {
	r := t.begin(at).whole(int64(e.Worker), e.Step, e.Basis).time(e.At, e.Load, e.Compute, e.Injected, e.Push, e.Wait, e.Pull, e.Transit)
	if e.Start >= 0 {
		r.whole(e.Start)
	} else {
		r.none()
	}
	r.whole(int64(e.Samples))
	for _, x := range [...]float64{e.Loss, e.Norm2, e.CPU, e.NetIn, e.NetOut} {
		r.number(runlog.Number(x))
	}
	for m := range star.NumMetrics {
		if v, ok := e.Telemetry.Get(m); ok {
			r.add(parquet.FloatValue(float32(v)))
		} else {
			r.none()
		}
	}
	return r.end("record")
}

func (t *Tables) update(u Update) error {
	sum, most := 0.0, int64(0)
	for _, s := range u.Fire.Staleness {
		sum, most = sum+float64(s), max(most, s)
	}
	n := len(u.Fire.Workers)
	return t.begin(u.At).whole(u.Fire.Seq, u.Fire.Version, int64(n), u.Fire.Samples).time(u.Took).number(runlog.Number(sum/float64(n))).whole(most).
		number(runlog.Number(u.Loss)).text(u.Plan, ranks(u.Fire.Workers), ranks(u.Fire.Dropped)).end("update")
}

// ranks are workers in one cell.
func ranks(ws []star.Worker) string {
	var b []byte
	for i, w := range ws {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(w), 10)
	}
	return string(b)
}

// Close implements Sink.
func (t *Tables) Close() error {
	var errs []error
	for _, p := range t.plans {
		errs = append(errs, t.begin(p.at).text(p.Plan.Plan, p.From, p.Why).number(p.Predicted, p.seen).flag(p.reverted).end("plan"))
	}
	for _, name := range Names {
		errs = append(errs, t.tables[name].close())
	}
	return errors.Join(errs...)
}

// row is a row that is being made.
type row struct{ t *Tables }

func (t *Tables) begin(at time.Duration) row {
	t.row = t.row[:0]
	return row{t}.time(at)
}

func (r row) add(v parquet.Value) { r.t.row = append(r.t.row, v) }
func (r row) none()               { r.add(parquet.NullValue()) }

func (r row) time(ds ...time.Duration) row {
	for _, d := range ds {
		r.add(parquet.DoubleValue(d.Seconds()))
	}
	return r
}

func (r row) whole(ns ...int64) row {
	for _, n := range ns {
		r.add(parquet.Int64Value(n))
	}
	return r
}

func (r row) flag(b bool) row {
	if b {
		return r.whole(1)
	}
	return r.whole(0)
}

func (r row) number(xs ...runlog.Number) row {
	for _, x := range xs {
		if x.IsZero() {
			r.none()
		} else {
			r.add(parquet.DoubleValue(float64(x)))
		}
	}
	return r
}

func (r row) text(ss ...string) row {
	for _, s := range ss {
		r.add(parquet.ByteArrayValue([]byte(s)))
	}
	return r
}

func (r row) end(table string) error { return r.t.tables[table].write(r.t.row) }

// table is one file.
type table struct {
	columns []column
	csv     io.Writer
	line    []byte
	parquet *parquet.GenericWriter[any]
	gather  []gathered // of Parquet, by column
}

// gathered are values of a column, of rowsAtOnce rows or fewer.
type gathered struct {
	to       *parquet.ColumnWriter
	optional bool
	values   []parquet.Value
}

// rowsAtOnce is how many rows the columns of a Parquet file are handed in one go, since each has its price.
const rowsAtOnce = 256

func newTable(f Format, name string, w io.Writer) *table {
	t := &table{columns: columns[name]}
	if f == CSV {
		t.csv = w
		for i, c := range t.columns {
			if i > 0 {
				t.line = append(t.line, ',')
			}
			t.line = append(t.line, c.name...)
		}
		t.line = append(t.line, '\n')
		return t
	}
	g := parquet.Group{}
	for _, c := range t.columns {
		g[c.name] = c.node
	}
	schema := parquet.NewSchema(name, g)
	t.parquet = parquet.NewGenericWriter[any](w, schema, parquet.Compression(&parquet.Snappy))
	writers := t.parquet.ColumnWriters()
	for _, c := range t.columns {
		leaf, ok := schema.Lookup(c.name) // the schema sorts columns by name
		if !ok {
			panic("export: no column " + c.name)
		}
		t.gather = append(t.gather, gathered{writers[leaf.ColumnIndex], c.node.Optional(), make([]parquet.Value, 0, rowsAtOnce)})
	}
	return t
}

// flushAt is how much of a CSV file is gathered before it is written, in bytes.
const flushAt = 64 << 10

func (t *table) write(vs []parquet.Value) error {
	if len(vs) != len(t.columns) {
		panic(fmt.Sprintf("export: %d values for %d columns", len(vs), len(t.columns)))
	}
	if t.csv != nil {
		for i, v := range vs {
			if i > 0 {
				t.line = append(t.line, ',')
			}
			switch {
			case v.IsNull():
			case v.Kind() == parquet.Int64:
				t.line = strconv.AppendInt(t.line, v.Int64(), 10)
			case v.Kind() == parquet.Float:
				t.line = strconv.AppendFloat(t.line, float64(v.Float()), 'g', -1, 32)
			case v.Kind() == parquet.Double:
				t.line = appendNumber(t.line, v.Double())
			default:
				t.line = appendCell(t.line, string(v.ByteArray()))
			}
		}
		t.line = append(t.line, '\n')
		if len(t.line) < flushAt {
			return nil
		}
		return t.flush()
	}
	for i, v := range vs {
		g := &t.gather[i]
		if g.optional && !v.IsNull() {
			v = v.Level(0, 1, 0)
		}
		g.values = append(g.values, v)
	}
	if len(t.gather[0].values) < rowsAtOnce {
		return nil
	}
	return t.flush()
}

// appendCell writes a text, in quotes where it needs them.
func appendCell(b []byte, s string) []byte {
	if !strings.ContainsAny(s, "\",\r\n") {
		return append(b, s...)
	}
	return append(append(append(b, '"'), strings.ReplaceAll(s, `"`, `""`)...), '"')
}

func (t *table) flush() (err error) {
	if t.csv != nil {
		_, err = t.csv.Write(t.line)
		t.line = t.line[:0]
		return err
	}
	for i := range t.gather {
		g := &t.gather[i]
		if _, e := g.to.WriteRowValues(g.values); err == nil {
			err = e
		}
		g.values = g.values[:0]
	}
	return err
}

func (t *table) close() error {
	err := t.flush()
	if t.csv != nil {
		return err
	}
	return errors.Join(err, t.parquet.Close())
}
