package export

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/encoding/protowire"

	"star"
	"star/runlog"
)

var logs = []string{"ssgd", "ring", "queue", "lines"}

func logOf(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../runlog/testdata/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func feed(t testing.TB, log []byte, k Sink) {
	t.Helper()
	if _, err := runlog.Read(bytes.NewReader(log), "log", k.Line); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}

func tables(t testing.TB, f Format, log []byte) map[string]*bytes.Buffer {
	t.Helper()
	out := map[string]*bytes.Buffer{}
	k, err := NewTables(f, func(name string) (io.Writer, error) {
		out[name] = new(bytes.Buffer)
		return out[name], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	feed(t, log, k)
	return out
}

// What a column has is what the log's field of that name has; CSV and Parquet have the same.
func TestTables(t *testing.T) {
	for _, name := range logs {
		log := logOf(t, name)
		inCSV, inParquet := tables(t, CSV, log), tables(t, Parquet, log)
		kinds := map[string]string{"record": "record", "fire": "update", "verdict": "verdict", "plan": "plan", "eval": "evaluation"}
		lines := map[string][]map[string]any{}
		for line := range bytes.Lines(log) {
			var m map[string]any
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			if m["type"] == "fire" && m["workers"] == nil {
				continue
			}
			if table, ok := kinds[m["type"].(string)]; ok {
				lines[table] = append(lines[table], m)
			}
		}
		for _, table := range Names {
			rows, err := csv.NewReader(inCSV[table]).ReadAll()
			if err != nil {
				t.Fatalf("%s, %s: %v", name, table, err)
			}
			if len(rows)-1 != len(lines[table]) {
				t.Fatalf("%s, %s: %d rows of %d lines", name, table, len(rows)-1, len(lines[table]))
			}
			file := readParquet(t, inParquet[table].Bytes())
			if len(file) != len(rows)-1 {
				t.Fatalf("%s, %s: %d rows in Parquet, %d in CSV", name, table, len(file), len(rows)-1)
			}
			for i, m := range lines[table] {
				same := 0
				tele, _ := m["telemetry"].(map[string]any)
				for c, column := range rows[0] {
					cell := rows[i+1][c]
					if got := file[i][column]; got != cell && !sameNumber(got, cell) {
						t.Errorf("%s, %s, row %d: %s is %q in CSV, %q in Parquet", name, table, i, column, cell, got)
					}
					want, ok := m[column]
					if v, measured := tele[column]; measured {
						want, ok = v, true
					}
					switch w := want.(type) {
					case float64:
						x, err := strconv.ParseFloat(cell, 64)
						if err != nil || math.Abs(x-w) > 1e-6*math.Abs(w) {
							t.Errorf("%s, %s, row %d: %s is %s, the log has %g", name, table, i, column, cell, w)
						}
						same++
					case string:
						if cell != w {
							t.Errorf("%s, %s, row %d: %s is %q, the log has %q", name, table, i, column, cell, w)
						}
						same++
					case nil:
						if _, derived := map[string]bool{"mode": true, "loss": table == "update"}[column]; ok && cell != "" && !derived {
							t.Errorf("%s, %s, row %d: %s is %q, the log has null", name, table, i, column, cell)
						}
					}
				}
				if same < 3 {
					t.Errorf("%s, %s: %d columns are fields of the log", name, table, same)
				}
			}
		}
	}
}

// readParquet has each row's values as texts, by column.
func readParquet(t *testing.T, b []byte) (rows []map[string]string) {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	names := f.Schema().Columns()
	for _, g := range f.RowGroups() {
		r := g.Rows()
		buf := make([]parquet.Row, 7)
		for {
			n, err := r.ReadRows(buf)
			for _, row := range buf[:n] {
				m := map[string]string{}
				for _, v := range row {
					s := ""
					switch {
					case v.IsNull():
					case v.Kind() == parquet.Int64:
						s = strconv.FormatInt(v.Int64(), 10)
					case v.Kind() == parquet.Float:
						s = strconv.FormatFloat(float64(v.Float()), 'g', -1, 32)
					case v.Kind() == parquet.Double:
						s = strconv.FormatFloat(v.Double(), 'g', -1, 64)
					default:
						s = string(v.ByteArray())
					}
					m[names[v.Column()][0]] = s
				}
				rows = append(rows, m)
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
	return rows
}

// The loss of an update is that of its gradients, also where they come out of order.
func TestUpdates(t *testing.T) {
	var g gradients
	number := 0
	take := func(e runlog.Entry) (Update, bool) {
		number++
		return g.take(runlog.Line{Number: number, T: time.Duration(number) * time.Millisecond, Entry: e})
	}
	record := func(w star.Worker, step, basis int64, loss float64, samples int) {
		take(runlog.Record{Record: star.Record{Worker: w, Step: step, Basis: basis, Loss: loss, Samples: samples}})
	}
	take(runlog.Train{Workers: 3, Plan: "asgd"})
	record(0, 0, 0, 1, 8)
	record(1, 0, 0, 5, 24)
	u, ok := take(runlog.Fire{Seq: 1, Version: 1, Workers: []star.Worker{0, 1}, Staleness: []int64{0, 0}, Samples: 32})
	if !ok || u.Loss != 4 || u.Plan != "asgd" || u.Took != 3*time.Millisecond || fmt.Sprint(u.Steps) != "[0 0]" {
		t.Errorf("%+v, %v", u, ok)
	}
	record(2, 0, 0, 7, 8) // dropped
	record(2, 1, 1, 9, 8)
	record(0, 1, 1, 3, 8)
	if u, ok := take(runlog.Fire{Seq: 2, Version: 1, Dropped: []star.Worker{2}, Samples: 32}); ok {
		t.Errorf("an update of nothing: %+v", u)
	}
	if u, ok = take(runlog.Fire{Seq: 3, Version: 2, Workers: []star.Worker{2}, Staleness: []int64{0}, Samples: 40}); !ok || u.Loss != 9 {
		t.Errorf("%+v, %v", u, ok)
	}
	if u, ok = take(runlog.Fire{Seq: 4, Version: 3, Workers: []star.Worker{0, 1}, Staleness: []int64{1, 0}, Samples: 56}); !ok || u.Loss != 3 || fmt.Sprint(u.Steps) != "[1 -1]" {
		t.Errorf("%+v, %v", u, ok)
	}
}

type traceEvent struct {
	Ph, Name, S, Cat, Bp string
	Pid, Tid             int
	ID                   int64
	Ts, Dur              float64
	Args                 map[string]any
}

func readTrace(t *testing.T, b []byte) []traceEvent {
	t.Helper()
	var file struct{ TraceEvents []traceEvent }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return file.TraceEvents
}

// Slices of a worker are the times of its records and lie behind each other; an arrow goes from each gradient to its
// update.
func TestTrace(t *testing.T) {
	for _, name := range []string{"ssgd", "ring", "queue"} {
		log := logOf(t, name)
		var out bytes.Buffer
		feed(t, log, NewTrace(&out))
		want := map[[2]int]float64{}
		used := 0
		if _, err := runlog.Read(bytes.NewReader(log), "", func(l runlog.Line) error {
			switch e := l.Entry.(type) {
			case runlog.Record:
				for tid, d := range map[int]time.Duration{threadLoad: e.Load, threadCompute: e.Compute, threadPush: e.Push} {
					want[[2]int{int(e.Worker), tid}] += d.Seconds()
				}
			case runlog.Fire:
				used += len(e.Workers)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		got := map[[2]int]float64{}
		ends := map[[2]int]float64{}
		begun, ended := map[int64]float64{}, map[int64]float64{}
		for _, e := range readTrace(t, out.Bytes()) {
			at := [2]int{e.Pid, e.Tid}
			switch e.Ph {
			case "X":
				got[at] += e.Dur / 1e6
				if e.Dur <= 0 || e.Ts < 0 {
					t.Errorf("%s: %+v", name, e)
				}
				if e.Pid != coordinator && (e.Tid == threadLoad || e.Tid == threadCompute || e.Tid == threadPush) {
					if e.Ts < ends[at]-0.001 {
						t.Errorf("%s: %+v begins before the end of the one before, %g", name, e, ends[at])
					}
					ends[at] = e.Ts + e.Dur
				}
			case "s":
				begun[e.ID] = e.Ts
			case "f":
				ended[e.ID] = e.Ts
			}
		}
		for at, s := range want {
			if math.Abs(got[at]-s) > 1e-9+1e-6*s {
				t.Errorf("%s: worker %d, %s: %g s, the records have %g", name, at[0], threads[at[1]], got[at], s)
			}
		}
		if len(begun) != used || len(ended) != used {
			t.Errorf("%s: %d arrows begin and %d end, %d gradients were used", name, len(begun), len(ended), used)
		}
		for id, at := range begun {
			if ended[id] < at {
				t.Errorf("%s: arrow %d goes from %g back to %g", name, id, at, ended[id])
			}
		}
	}
}

// What a log says of itself is text, whatever is in it.
func TestTraceIsText(t *testing.T) {
	var out bytes.Buffer
	k := NewTrace(&out)
	const evil = "</script><script>alert(1)</script>\"\\\x00é"
	for i, e := range []runlog.Entry{runlog.Train{Workers: 1, Plan: evil}, runlog.Join{Peer: evil}, runlog.Verdict{Event: "slow", Cause: evil}, runlog.Leave{Why: evil}} {
		if err := k.Line(runlog.Line{T: time.Duration(i+1) * time.Second, Entry: e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out.Bytes(), []byte("<script")) {
		t.Errorf("%s", out.Bytes())
	}
	found := 0
	for _, e := range readTrace(t, out.Bytes()) {
		if s, _ := e.Args["says"].(string); strings.Contains(e.Name, evil) || s == evil {
			found++
		}
	}
	if found < 4 {
		t.Errorf("%d texts of 4 are there: %s", found, out.Bytes())
	}
}

// scalars reads an event file, by tag: step and value.
func scalars(t *testing.T, b []byte) map[string][][2]float64 {
	t.Helper()
	out := map[string][][2]float64{}
	field := func(b []byte, want protowire.Number) (v []byte, n uint64) {
		for len(b) > 0 {
			num, typ, k := protowire.ConsumeTag(b)
			if k < 0 {
				t.Fatal(protowire.ParseError(k))
			}
			b = b[k:]
			switch typ {
			case protowire.BytesType:
				x, k := protowire.ConsumeBytes(b)
				if num == want {
					return x, 0
				}
				b = b[k:]
			case protowire.VarintType:
				x, k := protowire.ConsumeVarint(b)
				if num == want {
					return nil, x
				}
				b = b[k:]
			case protowire.Fixed32Type:
				x, k := protowire.ConsumeFixed32(b)
				if num == want {
					return nil, uint64(x)
				}
				b = b[k:]
			default:
				x, k := protowire.ConsumeFixed64(b)
				if num == want {
					return nil, x
				}
				b = b[k:]
			}
		}
		return nil, 0
	}
	for first := true; len(b) > 0; first = false {
		n := binary.LittleEndian.Uint64(b)
		if masked(b[:8]) != binary.LittleEndian.Uint32(b[8:]) || masked(b[12:12+n]) != binary.LittleEndian.Uint32(b[12+n:]) {
			t.Fatal("checksum")
		}
		event := b[12 : 12+n]
		b = b[16+n:]
		if v, _ := field(event, 3); first && string(v) != "brain.Event:2" {
			t.Errorf("version %q", v)
		}
		if summary, _ := field(event, 5); summary != nil {
			value, _ := field(summary, 1)
			tag, _ := field(value, 1)
			_, bits := field(value, 2)
			_, step := field(event, 2)
			out[string(tag)] = append(out[string(tag)], [2]float64{float64(step), float64(math.Float32frombits(uint32(bits)))})
		}
	}
	return out
}

func TestEvents(t *testing.T) {
	// The record that every event file of TensorFlow begins with, but for its time: length 24, its checksum.
	if got := masked([]byte{24, 0, 0, 0, 0, 0, 0, 0}); got != 0x224b7fa3 {
		t.Errorf("checksum of the length 24: %#x", got)
	}
	log := logOf(t, "ssgd")
	var out bytes.Buffer
	feed(t, log, NewEvents(&out, 0))
	all := scalars(t, out.Bytes())
	want := map[string]int{}
	var accuracy float64
	if _, err := runlog.Read(bytes.NewReader(log), "", func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Fire:
			if len(e.Workers) > 0 {
				want["train/loss"]++
			}
		case runlog.Eval:
			want["test/accuracy"]++
			accuracy = float64(e.Accuracy)
		case runlog.Record:
			want[fmt.Sprintf("worker %d/compute (s)", e.Worker)]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for tag, n := range want {
		if len(all[tag]) != n {
			t.Errorf("%s: %d of %d", tag, len(all[tag]), n)
		}
	}
	if got := all["test/accuracy"]; len(got) > 0 && math.Abs(got[len(got)-1][1]-accuracy) > 1e-6 {
		t.Errorf("accuracy %v, the log has %g", got, accuracy)
	}
	out.Reset()
	feed(t, log, NewEvents(&out, time.Hour))
	if n := len(scalars(t, out.Bytes())["train/loss"]); n != 1 {
		t.Errorf("%d losses in less than an hour", n)
	}
}

// Programs that read these files read them.
func TestReaders(t *testing.T) {
	python := os.Getenv("TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import pandas, pyarrow, tensorboard").CombinedOutput(); err != nil {
		t.Skipf("%s has no pandas, pyarrow and tensorboard (pip install them; TEST_PYTHON names another Python): %s", python, bytes.TrimSpace(out))
	}
	dir := t.TempDir()
	log := logOf(t, "ssgd")
	for name, b := range tables(t, Parquet, log) {
		if err := os.WriteFile(filepath.Join(dir, name+".parquet"), b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var events bytes.Buffer
	feed(t, log, NewEvents(&events, 0))
	if err := os.WriteFile(filepath.Join(dir, EventFile(time.Unix(1, 0))), events.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python, "-c", `
import sys, pandas
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
e = EventAccumulator(sys.argv[1]); e.Reload()
r = pandas.read_parquet(sys.argv[1] + "/record.parquet"); u = pandas.read_parquet(sys.argv[1] + "/update.parquet")
print(len(r), len(u), len(e.Scalars("train/loss")), round(float(r["compute"].sum()), 6), r["worker"].nunique(), u["mode"].iloc[0])
`, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	records, updates, workers, compute, plan := 0, 0, map[star.Worker]bool{}, 0.0, ""
	if _, err := runlog.Read(bytes.NewReader(log), "", func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Train:
			plan = e.Plan
		case runlog.Record:
			records++
			workers[e.Worker] = true
			compute += e.Compute.Seconds()
		case runlog.Fire:
			if len(e.Workers) > 0 {
				updates++
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if want := fmt.Sprint(records, updates, updates, math.Round(1e6*compute)/1e6, len(workers), " ", plan); lines[len(lines)-1] != strings.ReplaceAll(want, "   ", " ") {
		t.Errorf("%s\nwant %s", out, want)
	}
}

// sameNumber says whether two texts are of one number.
func sameNumber(a, b string) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y
}

// Numbers are read back as they were.
func TestAppendNumber(t *testing.T) {
	xs := []float64{0, math.Copysign(0, -1), 1, -1, 0.1, -0.000000001, 1e-10, 123456.789, 999999.999999999, 1e6, 1e20, 1.0 / 3, math.MaxFloat64, -2.5e-300, 100, 1e-9}
	for range 1000 {
		xs = append(xs, time.Duration(len(xs)*len(xs)*7919).Seconds(), float64(len(xs))/7)
	}
	for _, x := range xs {
		s := string(appendNumber(nil, x))
		if y, err := strconv.ParseFloat(s, 64); err != nil || math.Float64bits(x) != math.Float64bits(y) {
			t.Errorf("%v becomes %s", x, s)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", 1: "0.001", -1500: "-1.5", 123456789: "123456.789", 2000: "2"} {
		if got := string(appendMicros(nil, d)); got != want {
			t.Errorf("%d ns are %s µs, want %s", d, got, want)
		}
	}
}

func BenchmarkExport(b *testing.B) {
	var log bytes.Buffer
	w := runlog.NewWriter(nopCloser{&log})
	w.Write(0, runlog.Start{Format: 1, Program: "star", Config: []byte("{}")})
	w.Write(0, runlog.Train{Workers: 4, Shards: 1, Limit: 1})
	const n = 20000
	for i := range int64(n) {
		at := time.Duration(i) * 1234567
		r := star.Record{
			Worker: star.Worker(i % 4), Step: i / 4, Basis: i, At: at, Load: 21345, Compute: 2123456, Push: 345678, Wait: 2345678, Pull: 456789, Transit: 34567,
			Samples: 64, Loss: 0.123456789, Norm2: 1.23456789, CPU: 0.7654321, NetIn: 940584, NetOut: 940712,
		}
		for m := range star.NumMetrics / 2 {
			r.Telemetry.Set(m, float64(m)/7)
		}
		w.Record(at, &runlog.Record{Record: r, Start: 64 * i})
		w.Write(at, runlog.Fire{Seq: i + 1, Version: i + 1, Workers: []star.Worker{r.Worker}, Staleness: []int64{0}, Samples: 64 * (i + 1)})
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for _, f := range []struct {
		name string
		make func() (Sink, error)
	}{
		{"perfetto", func() (Sink, error) { return NewTrace(io.Discard), nil }},
		{"tensorboard", func() (Sink, error) { return NewEvents(io.Discard, 0), nil }},
		{"parquet", func() (Sink, error) {
			return NewTables(Parquet, func(string) (io.Writer, error) { return io.Discard, nil })
		}},
		{"csv", func() (Sink, error) {
			return NewTables(CSV, func(string) (io.Writer, error) { return io.Discard, nil })
		}},
	} {
		b.Run(f.name, func(b *testing.B) {
			began := cpu()
			for b.Loop() {
				k, err := f.make()
				if err != nil {
					b.Fatal(err)
				}
				feed(b, log.Bytes(), k)
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric((cpu()-began).Seconds()*1e6/float64(n*b.N), "µs-of-processor/record")
		})
	}
}

// cpu is the processor time of this process so far.
func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
