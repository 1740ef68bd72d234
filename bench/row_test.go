package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The JSON of rows is an interface: exactly these keys, in this order, from both benchmarks.
func TestRowJSON(t *testing.T) {
	const want = "ranks bytes transport algorithm runs median_s p10_s p90_s algbw_Bps busbw_Bps cpu_s_per_GB allocs_per_op"
	for _, v := range []any{AllReduceResult{}, PSResult{Ratio: 1, Plain: 2}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		dec := json.NewDecoder(strings.NewReader(string(text)))
		for depth := 0; ; {
			tok, err := dec.Token()
			if err == io.EOF {
				break
			}
			switch x := tok.(type) {
			case json.Delim:
				depth++
			case string:
				if depth == 1 && len(x) > 0 {
					keys = append(keys, x)
				}
			}
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%T: %s\nwant %s", v, got, want)
		}
	}
}

func TestReadRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	rows := []Row{{Ranks: 2, Bytes: 4, Transport: "tcp", Algorithm: "ring", Runs: 5, Median: 1e-5, Allocs: -1}}
	good, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(good): "", "[]": "empty", "{}": "cannot unmarshal", "[{}]": "row 0", "": "EOF", string(good) + "1": "follows",
		`[{"ranks":2,"bytes":4,"algorithm":"ring"}]`: "0 s",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadRows(path)
		switch {
		case want == "" && (err != nil || !reflect.DeepEqual(got, rows)):
			t.Errorf("%s: %+v, %v", text, got, err)
		case want != "" && (!errors.Is(err, ErrRows) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ReadRows(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestCompare(t *testing.T) {
	row := func(n int, size int64, kind, algorithm string, median float64) Row {
		return Row{Ranks: n, Bytes: size, Transport: kind, Algorithm: algorithm, Median: median}
	}
	old := []Row{row(2, 4, "tcp", "ring", 2), row(2, 4, "tcp", "gloo", 9), row(2, 8, "tcp", "ring", 4), row(2, 8, "tcp", "tree", 6), row(4, 4, "shm", "tree", 1)}
	now := []Row{row(2, 4, "tcp", "halving", 1), row(2, 4, "tcp", "gloo", 9), row(2, 8, "tcp", "ring", 8), row(2, 8, "tcp", "halving", 1), row(4, 4, "tcp", "tree", 1)}
	var got []float64
	for _, c := range Compare(old, now) {
		got = append(got, c.Ratio)
	}
	// Another algorithm by choice; a peer; the same one of several; one of several that is
	// new; another transport.
	if want := []float64{2, 1, 0.5, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Plots are files of their format that name all lines; a bad name is refused.
func TestPlot(t *testing.T) {
	dir := t.TempDir()
	var rows []Row
	for _, n := range []int{2, 4} {
		for _, size := range []int64{4, 1 << 16, 100e6} {
			for _, a := range []string{"ring", "gloo"} {
				rows = append(rows, Row{Ranks: n, Bytes: size, Transport: "tcp", Algorithm: a, Median: 1e-6 * float64(size)})
			}
		}
	}
	rows[0].Algorithm = "doubling" // chosen by size: still one line
	svg := filepath.Join(dir, "a.svg")
	if err := Plot(svg, "test", rows); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"STAR tcp", "gloo", "test, 4 ranks", "256 KiB", "100 µs"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the plot does not say %q", want)
		}
	}
	if strings.Contains(string(text), "doubling") {
		t.Error("a line for each algorithm that was chosen")
	}
	bars := slices.Clone(rows)
	for i := range bars {
		bars[i].P10, bars[i].P90 = -1, 2*bars[i].Median // one that goes below 0 is cut, as the axis has no 0
	}
	if err := Plot(svg, "test", bars); err != nil {
		t.Fatal(err)
	}
	if more, err := os.ReadFile(svg); err != nil || bytes.Count(more, []byte("<path")) < bytes.Count(text, []byte("<path"))+len(rows) {
		t.Errorf("%v; there are no error bars", err)
	}
	pdf := filepath.Join(dir, "a.pdf")
	if err := Plot(pdf, "test", bars); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(pdf); err != nil || !bytes.HasPrefix(text, []byte("%PDF-")) || !bytes.HasSuffix(bytes.TrimSpace(text), []byte("%%EOF")) {
		t.Errorf("%v, not a PDF", err)
	}
	f := filepath.Join(dir, "a.png")
	if err := Plot(f, "test", rows); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if img, err := png.Decode(r); err != nil || img.Bounds().Dx() < 2*img.Bounds().Dy() {
		t.Errorf("%v, want two pictures side by side", err)
	}
	for path, rows := range map[string][]Row{"a.gif": rows, "b.svg": nil, "nowhere/a.svg": rows} {
		if err := Plot(filepath.Join(dir, path), "test", rows); err == nil {
			t.Errorf("%s: accepted", path)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("files that nobody wants: %v, %v", left, err)
	}
}
