package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	const good = "# from somewhere\n" + header + "\n0,1,5,1.5,1\n0,0,4,1,1\n\n# half-way\n1,0,4,0.9,1\n1,1,9,2.25,2\r\n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte(good))
	z.Close()
	for name, text := range map[string]string{"plain": good, "gzip": zipped.String()} {
		tr, err := Read(strings.NewReader(text), "/some/where/"+name)
		if err != nil {
			t.Fatal(err)
		}
		got := []float64{tr.Slowdown(0, 0), tr.Slowdown(1, 0), tr.Slowdown(0, 1), tr.Slowdown(1, 1), tr.Slowdown(1, 3)}
		want := []float64{1, 1.5, float64(float32(0.9)), 2.25, 2.25}
		if tr.Workers != 2 || tr.Steps != 2 || tr.Name != name || !cmp.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", tr, got, want)
		}
	}

	rows := func(lines ...string) string { return header + "\n" + strings.Join(lines, "\n") }
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "t.csv:0: want the header"},
		{"only comments", "# a\n# b\n", "t.csv:2: want the header"},
		{"other header", "a,b\n", "t.csv:1: want the header"},
		{"no steps", header, "t.csv:1: no steps"},
		{"columns", rows("0,0,1,1"), "t.csv:2: 4 columns"},
		{"NaN", rows("0,0,1,NaN,1"), `t.csv:2: slowdown "NaN"`},
		{"Inf", rows("0,0,Inf,1,1"), `t.csv:2: duration "Inf"`},
		{"word", rows("0,0,1,1,x"), `t.csv:2: rel "x"`},
		{"zero", rows("0,0,1,0,1"), "t.csv:2: slowdown 0"},
		{"huge", rows("0,0,1,2000,1"), "t.csv:2: slowdown 2000"},
		{"negative step", rows("-1,0,1,1,1"), `t.csv:2: step "-1"`},
		{"huge worker", rows("0,70000,1,1,1"), `t.csv:2: worker "70000"`},
		{"starts late", rows("2,0,1,1,1"), "t.csv:2: step 2 after step 0: a step is missing"},
		{"gap", rows("0,0,1,1,1", "2,0,1,1,1"), "t.csv:3: step 2 after step 0: a step is missing"},
		{"backwards", rows("0,0,1,1,1", "1,0,1,1,1", "0,0,1,1,1"), "t.csv:4: step 0 after step 1"},
		{"twice in the first step", rows("0,0,1,1,1", "0,0,1,1,1"), "t.csv:3: worker 0 twice in step 0: want each worker once in a step"},
		{"twice", rows("0,0,1,1,1", "1,0,1,1,1", "1,0,1,1,1"), "t.csv:4: worker 0 twice in step 1"},
		{"hole in the first step", rows("0,1,1,1,1", "1,0,1,1,1"), "t.csv:3: step 1 begins, but step 0 has no worker 0"},
		{"missing", rows("0,0,1,1,1", "0,1,1,1,1", "1,1,1,1,1", "2,0,1,1,1"), "t.csv:5: step 2 begins, but step 1 has no worker 0"},
		{"missing at the end", rows("0,0,1,1,1", "0,1,1,1,1", "1,0,1,1,1"), "t.csv:4: the file ends, but step 1 has no worker 1"},
		{"new worker", rows("0,0,1,1,1", "1,1,1,1,1"), "t.csv:3: worker 1 in step 1, but step 0 has only workers 0 to 0"},
		{"long line", header + "\n" + strings.Repeat("1", 5000), "t.csv:2: a line of more than"},
		{"cut line", rows("0,0,1,1,1", "0,1,1,1,1.5") + "\n1,0,1,1,1\n1,1,1,1,1", "t.csv:5: the last line has no end: it may have been cut; want a line break"},
		{"cut gzip", zipped.String()[:zipped.Len()-12], "unexpected EOF"},
		{"bad gzip", "\x1f\x8bxxxxxxxxxxxxxxx", "t.csv: gzip"},
	} {
		if tr, err := Read(strings.NewReader(c.text), "t.csv"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", c.name, tr, err, c.want)
		}
	}
	if _, err := Open("/no/such/trace.csv"); err == nil || !strings.Contains(err.Error(), "/no/such/trace.csv") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "\n0,0,1,1,1\n0,1,1,2,1\n1,1,1,1,1\n1,0,1,3,1\n"))
	f.Add([]byte(header + "\n0,65535,1,1,1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read(bytes.NewReader(b), "t")
		if err != nil {
			return
		}
		if len(tr.slowdown) != tr.Workers*tr.Steps {
			t.Fatalf("%d slowdowns, %d workers, %d steps", len(tr.slowdown), tr.Workers, tr.Steps)
		}
		for i, s := range tr.slowdown {
			if !(s > 0 && s <= MaxSlowdown) {
				t.Fatalf("slowdown %d is %v", i, s)
			}
		}
	})
}

// The recorded traces that this is made for, if they are there: STAR_DATA, or a folder shared/data
// beside the repository or above it.
func TestRecordedTraces(t *testing.T) {
	dir := os.Getenv("STAR_DATA")
	for up := ".."; dir == "" && len(up) < 40; up += "/.." {
		if d := filepath.Join(up, "shared", "data"); exists(d) {
			dir = d
		}
	}
	if dir == "" || !exists(filepath.Join(dir, "straggler-traces")) {
		t.Skip("no recorded traces: neither STAR_DATA nor shared/data has straggler-traces")
	}
	for name, want := range map[string][2]int{ // workers, steps: as their first line says
		"alibaba-job1.csv.gz":          {10, 300},
		"alibaba-job4.csv.gz":          {10, 2182},
		"bytedance-AR-allranks.csv.gz": {16, 44},
	} {
		tr, err := Open(filepath.Join(dir, "straggler-traces", name))
		if err != nil {
			t.Error(err)
		} else if got := [2]int{tr.Workers, tr.Steps}; got != want {
			t.Errorf("%s: workers, steps %v, want %v", name, got, want)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
