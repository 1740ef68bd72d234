package trace

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// imported reads files, in order, and makes a trace of them.
func imported(m *Import, files ...string) (*Trace, error) {
	for i, text := range files {
		if err := m.Read(strings.NewReader(text), fmt.Sprintf("f%d", i)); err != nil {
			return nil, err
		}
	}
	return m.Trace("t")
}

func TestImport(t *testing.T) {
	for _, x := range []struct {
		name  string
		m     Import
		files []string
	}{
		{"csv", Import{}, []string{"rank,step,seconds\n0,0,1\n1,0,2\n0,1,1\n1,1,4\n"}},
		{"any order, other columns, comments", Import{}, []string{"# torchrun\r\nloss,step,seconds,rank\r\n.5,1,4,1\r\n,0,2,1\r\n\r\n,1,1,0\r\n,0,1,0\r\n"}},
		{"tabs, quotes, a mark of order", Import{}, []string{"\ufeff\"rank\"\tstep\tstep_time_ms\n0\t0\t1000\n\"1\"\t0\t2000\n0\t1\t1e3\n1\t1\t4000\n"}},
		{"jsonl", Import{}, []string{`{"event":"start"}
{"global_rank":0,"iteration":0,"elapsed_ms":1000,"loss":2.5}
{"global_rank":1,"iteration":0,"elapsed_ms":2000,"lr":null}
{"global_rank":"0","iteration":1.0,"elapsed_ms":"1000"}
{"global_rank":1,"iteration":1,"elapsed_ms":4000}
`}},
		{"named columns", Import{Columns: Columns{Rank: "who", Step: "k", Time: "t", Unit: time.Millisecond}}, []string{"rank,who,k,t,step,seconds\n9,0,0,1000,9,9\n9,1,0,2000,9,9\n9,0,1,1000,9,9\n9,1,1,4000,9,9\n"}},
		{"a file of each rank", Import{Columns: Columns{Rank: RankOfFile}}, []string{"step,seconds\n0,1\n1,1\n", "{\"step\":0,\"time\":2}\n{\"step\":1,\"time\":4}\n"}},
		{"every tenth", Import{}, []string{"rank,step,seconds\n0,10,1\n1,10,2\n0,20,1\n1,20,4\n"}},
		{"the last step is not complete", Import{}, []string{"rank,step,seconds\n0,0,1\n1,0,2\n0,1,1\n1,1,4\n0,2,7\n"}},
		{"the last line is cut", Import{}, []string{"rank,step,seconds\n0,0,1\n1,0,2\n0,1,1\n1,1,4\n0,2,7\n1,2,0."}},
		{"gaps", Import{Drop: true}, []string{"rank,step,seconds\n1,0,9\n0,1,1\n1,1,2\n0,5,1\n1,5,4\n"}},
	} {
		tr, err := imported(&x.m, x.files...)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		// Times 1 2 1 4: the median of the job is 1.5, those of the steps 1.5 and 2.5.
		if tr.Workers != 2 || tr.Steps != 2 || tr.Median != 1500*time.Millisecond || math.Abs(tr.Relative(1, 1)-4/1.5) > 1e-6 ||
			math.Abs(tr.Slowdown(1, 1)-1.6) > 1e-6 || math.Abs(tr.Slowdown(0, 0)-1/1.5) > 1e-6 {
			t.Errorf("%s: %+v", x.name, tr)
		}
	}
}

func TestImportNotices(t *testing.T) {
	m := Import{}
	if _, err := imported(&m, "{\"a\":1}\n{\"rank\":0,\"step\":0,\"time\":1}\n{\"rank\":1,\"step\":0,\"time\":1}\n{\"rank\":0,\"step\":1,\"time\":1}\n{\"rank\":1,\"st"); err != nil {
		t.Fatal(err)
	}
	want := []string{"f0:5: the last line has no end and is left out: it may have been cut", "f0: 1 lines that do not say how long a step took are left out",
		"f0:4: the last one, step 1 has no rank 1, and is left out"}
	if !slices.Equal(m.Notices, want) {
		t.Errorf("%q, want %q", m.Notices, want)
	}
}

func TestImportRejects(t *testing.T) {
	const h = "rank,step,seconds\n"
	for _, x := range []struct {
		name, text, want string
	}{
		{"empty", "", "f0:0: no rows"},
		{"header only", h, "f0:1: no rows"},
		{"no rank", "step,seconds\n0,1\n", "f0:1: the header has no column for the rank: want rank, global_rank, worker, or say --columns rank=NAME"},
		{"no step", "rank,seconds\n0,1\n", "f0:1: the header has no column for the step"},
		{"no time", "rank,step\n0,1\n", "f0:1: the header has no column for the time: want seconds,"},
		{"twice in the header", "rank,rank,step,seconds\n", "f0:1: the header has rank twice"},
		{"columns", h + "0,0\n", "f0:2: 2 columns, want 3 as in the header"},
		{"NaN", h + "0,0,NaN\n", `f0:2: seconds is "NaN", want a number above 0`},
		{"negative", h + "0,0,-1\n", `f0:2: seconds is "-1"`},
		{"nothing", h + "0,0,0\n", `f0:2: seconds is "0"`},
		{"infinite", h + "0,0,Inf\n", `f0:2: seconds is "Inf"`},
		{"rank", h + "x,0,1\n", `f0:2: rank is "x", want a whole number from 0 to`},
		{"half a rank", h + "0.5,0,1\n", `f0:2: rank is "0.5"`},
		{"large rank", h + "65536,0,1\n", `f0:2: rank is "65536"`},
		{"negative step", h + "0,-1,1\n", `f0:2: step is "-1"`},
		{"json", "{\"rank\":0,\"step\":0,\"time\":1}\n{\"rank\":0,\"step\":1,\"time\":NaN}\n", "f0:2: not a JSON object"},
		{"json without a rank", "{\"step\":0,\"time\":1}\n", "f0:1: it has time but no rank"},
		{"json without a step", "{\"rank\":0,\"time\":1}\n", "f0:1: it has time but no step"},
		{"twice", h + "0,0,1\n1,0,1\n0,0,2\n", "f0:4: step 0 of rank 0 is already at f0:2: want each step of a rank once"},
		{"a rank without rows", h + "0,0,1\n2,0,1\n", "f0: rank 1 has no rows, but there is a rank 2: want rows of ranks 0 to 2"},
		{"a gap of one", h + "0,0,1\n0,1,1\n1,1,1\n", "f0:2: step 0 has no rank 1: want one row of each of ranks 0 to 1 (--gaps drop"},
		{"a gap in between", h + "0,0,1\n1,0,1\n0,1,1\n0,2,1\n1,2,1\n", "f0:4: step 1 has no rank 1"},
		{"a gap of all", h + "0,0,1\n0,1,1\n0,3,1\n", "f0:4: step 3 follows step 1, but others are 1 apart"},
		{"extreme", h + "0,0,1\n1,0,1\n2,0,5000\n", "f0:4: 5000 s, which is 5e+03 of the median of its step"},
		{"quotes", h + "\"0,0,1\n", "f0:2: not a line of CSV"},
		{"long", h + strings.Repeat("1", maxLog+1), "f0:2: a line of more than"},
		{"gzip", "\x1f\x8b\x00", "f0: gzip"},
	} {
		if tr, err := imported(&Import{}, x.text); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %+v, %v; want %q", x.name, tr, err, x.want)
		}
	}
	if _, err := imported(&Import{Drop: true}, h+"0,0,1\n1,1,1\n"); err == nil || !strings.Contains(err.Error(), "no step has all ranks") {
		t.Errorf("nothing is left: %v", err)
	}
}

func TestParseColumns(t *testing.T) {
	c, err := ParseColumns([]string{"rank=r", "milliseconds=ms_all", "step=s"})
	if want := (Columns{"r", "s", "ms_all", time.Millisecond}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	for part, want := range map[string]string{"rank": "want rank=NAME", "rank=": "want rank=NAME", "loss=l": "loss is not rank"} {
		if _, err := ParseColumns([]string{part}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", part, err)
		}
	}
	if _, err := ParseColumns([]string{"seconds=a", "milliseconds=b"}); err != nil && !strings.Contains(err.Error(), "there is a already") {
		t.Error(err)
	} else if err == nil {
		t.Error("two columns of time")
	}
}

// What is imported, written and read again says the same.
func TestImportWriteRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers, steps := rapid.IntRange(1, 5).Draw(t, "workers"), rapid.IntRange(1, 6).Draw(t, "steps")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		var lines []string
		for s := range steps {
			for w := range workers {
				lines = append(lines, fmt.Sprintf("%d,%d,%v\n", w, 3*s, math.Exp(0.6*rnd.NormFloat64())))
			}
		}
		rnd.Shuffle(len(lines), func(a, b int) { lines[a], lines[b] = lines[b], lines[a] })
		tr, err := imported(&Import{}, "rank,step,seconds\n"+strings.Join(lines, ""))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if n, err := tr.WriteTo(&b); err != nil || n != int64(b.Len()) {
			t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
		}
		again, err := Read(&b, "again")
		if err != nil || again.Workers != workers || again.Steps != steps {
			t.Fatalf("%+v, %v", again, err)
		}
		for i := range tr.rel {
			if math.Abs(float64(again.rel[i]/tr.rel[i])-1) > 1e-5 || math.Abs(float64(again.slowdown[i]/tr.slowdown[i])-1) > 1e-5 {
				t.Fatalf("row %d: %v and %v, want %v and %v", i, again.slowdown[i], again.rel[i], tr.slowdown[i], tr.rel[i])
			}
		}
	})
}

func FuzzImport(f *testing.F) {
	f.Add([]byte("rank,step,seconds\n0,0,1\n1,0,2\n0,1,1\n1,1,4\n"), false)
	f.Add([]byte("{\"rank\":0,\"step\":0,\"time\":1}\n{\"rank\":1,\"step\":0,\"time_ms\":\"1\"}\n"), true)
	f.Add([]byte("\ufeffworker\titer\tms\n\"0\"\t1e1\t.5\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, drop bool) {
		m := Import{Drop: drop}
		err := m.Read(bytes.NewReader(b), "a")
		var tr *Trace
		if err == nil {
			tr, err = m.Trace("a")
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		if _, err := tr.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(&out, "b"); err != nil {
			t.Fatalf("%v\n%s", err, out.Bytes())
		}
	})
}
