package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/observe/explain"
	"star/runlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, name string) *State {
	t.Helper()
	f, err := os.Open("../../runlog/testdata/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := NewState()
	if _, err := runlog.Read(f, name, s.Line); err != nil {
		t.Fatal(err)
	}
	return s
}

// A view is JSON, has a row for each worker and a value for each stretch, and applies as many samples as the log.
func TestView(t *testing.T) {
	for _, name := range []string{"ssgd", "ring", "queue", "lines"} {
		s := read(t, name)
		v := s.View()
		if _, err := json.Marshal(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if v.Status != "ended" && v.Status != "failed" || v.Headline == "" || len(v.Workers) != s.train.Workers-len(s.train.Absent) {
			t.Errorf("%s: %s, %q, %d workers of %d", name, v.Status, v.Headline, len(v.Workers), s.train.Workers)
		}
		n := len(v.Series.T)
		if n == 0 || len(v.Series.Rate) != n || len(v.Series.Loss) != n || len(v.Series.Noise) != n {
			t.Errorf("%s: series of %d, %d, %d, %d", name, n, len(v.Series.Rate), len(v.Series.Loss), len(v.Series.Noise))
		}
		sum := 0.0
		for _, x := range s.rate.sums[0] {
			sum += x
		}
		if int64(math.Round(sum)) != s.samples { // a gap spreads its samples
			t.Errorf("%s: %g samples are drawn, %d were applied", name, sum, s.samples)
		}
		for _, w := range v.Workers {
			if len(w.Line) > n || strings.Trim(w.Line, "=#. ") != "" {
				t.Errorf("%s: worker %d: %q for %d stretches", name, w.Rank, w.Line, n)
			}
		}
	}
}

// A stretch of the chart without an update is not one without samples, where a step takes longer.
func TestRateOfLongSteps(t *testing.T) {
	s := script(t, runlog.Train{Workers: 1, Plan: "ssgd"})
	for n := range int64(50) {
		e := runlog.Fire{Seq: n + 1, Version: n + 1, Workers: []star.Worker{0}, Staleness: []int64{0}, Samples: 32 * (n + 1)}
		if err := s.Line(runlog.Line{T: time.Second + time.Duration(n+1)*120*time.Millisecond, Entry: e}); err != nil {
			t.Fatal(err)
		}
	}
	rate := s.View().Series.Rate
	for i, r := range rate[:len(rate)-1] {
		if want := 32 / 0.12; !(float64(r) > 0.99*want && float64(r) < 1.01*want) {
			t.Errorf("%g samples/s in stretch %d, want %g", float64(r), i, want)
		}
	}
}

// script is a log by hand, a second between lines.
func script(t *testing.T, entries ...runlog.Entry) *State {
	t.Helper()
	s := NewState()
	for i, e := range append([]runlog.Entry{runlog.Start{Program: "star", Job: "j", Config: json.RawMessage("{}")}}, entries...) {
		if err := s.Line(runlog.Line{Number: i + 1, T: time.Duration(i) * time.Second, Entry: e}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// The view of a job that star only watches says so.
func TestViewOfAWatchedJob(t *testing.T) {
	for config, want := range map[string]bool{"{}": false, `{"watched":"torchrun"}`: true} {
		s := NewState()
		if err := s.Line(runlog.Line{Number: 1, Entry: runlog.Start{Job: "j", Config: json.RawMessage(config)}}); err != nil {
			t.Fatal(err)
		}
		if got := s.View().Watched; got != want {
			t.Errorf("%s: watched %v", config, got)
		}
	}
}

// The headline says which worker is slow, and what it costs.
func TestHeadline(t *testing.T) {
	train := runlog.Train{Workers: 3, Plan: "ssgd", Limit: 100}
	record := func(w star.Worker, step int64, compute, wait time.Duration) runlog.Record {
		return runlog.Record{Record: star.Record{Worker: w, Step: step, Compute: compute, Wait: wait, Samples: 1}}
	}
	slow := runlog.Verdict{Worker: 2, Event: "slow", Step: 9, Since: 7, Slowdown: 3, Cause: "compute", Evidence: []runlog.Evidence{{Text: "compute 30 ms"}}}
	hang := runlog.Hang{Event: "begun", Missing: []star.Worker{2}, Text: "2 of 3 ranks wait in barrier #1; rank 2 is in train.py:1"}
	together := runlog.Slowdown{Event: "slow", Since: 1, Workers: 3, Hosts: []string{"a", "b"}, Slowdown: 2, Part: "load", Cause: "data", Evidence: []runlog.Evidence{{Text: "slow data"}}}
	for _, c := range []struct {
		name string
		log  []runlog.Entry
		want string
	}{
		{"before", nil, "The training has not begun: waiting for workers and servers."},
		{"calm", []runlog.Entry{train}, "No worker is slow."},
		{"slow", []runlog.Entry{train, slow, record(0, 0, 200*time.Millisecond, 600*time.Millisecond), record(2, 0, time.Second, 0)}, "Worker 2 is 3.0x slow since step 7, 2.0 s ago: compute. The others waited 75 % of their time meanwhile."},
		{"two", []runlog.Entry{train, slow, runlog.Verdict{Worker: 1, Event: "slow", Step: 11, Since: 9, Slowdown: 5, Cause: "data"}}, "Worker 1 is 5.0x slow since step 9, 0.0 s ago: data. Another worker is slow, too."},
		{"over", []runlog.Entry{train, slow, runlog.Verdict{Worker: 2, Event: "recovered", Step: 9, Slowdown: 3}}, "No worker is slow now; 1 slow time so far."},
		{"left", []runlog.Entry{train, slow, runlog.Leave{Worker: 2, Why: "killed"}}, "No worker is slow now; 1 slow time so far."},
		{"ended", []runlog.Entry{train, slow, runlog.Verdict{Worker: 2, Event: "recovered", Step: 9, Slowdown: 3}, runlog.Summary{}}, "Worker 2 was 3.0x slow from step 7, for 1.0 s: compute."},
		{"together", []runlog.Entry{train, together}, "All workers on a, b are 2.0x slow together, against the job's own past, mostly in load: slow data. Since 1.0 s ago."},
		{"together, and one more", []runlog.Entry{train, together, slow}, "Worker 2 is 3.0x slow since step 7, 0.0 s ago: compute."},
		{"together, over", []runlog.Entry{train, together, runlog.Slowdown{Event: "recovered", Since: 1, Until: 3}}, "All workers on a, b were 2.0x slow together, against the job's own past, mostly in load: slow data. For 2.0 s."},
		{"together, taken over", []runlog.Entry{train, together, runlog.Term{Term: 2}}, "All workers on a, b were 2.0x slow together, against the job's own past, mostly in load: slow data. For 2.0 s."},
		{"hangs", []runlog.Entry{train, slow, hang}, "The job hangs: 2 of 3 ranks wait in barrier #1; rank 2 is in train.py:1."},
		{"ended in a hang", []runlog.Entry{train, hang, runlog.Summary{}}, "The job ended in a hang: 2 of 3 ranks wait in barrier #1; rank 2 is in train.py:1."},
		{"hung", []runlog.Entry{train, hang, runlog.Hang{Event: "over", Missing: []star.Worker{2}}}, "No worker is slow."},
		{"failed", []runlog.Entry{train, runlog.Summary{Result: runlog.Result{Error: "no disk"}}}, "The job failed: no disk"},
	} {
		if got, _ := script(t, c.log...).headline(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// While a worker is slow, the page says so without a break, also across changes of plan, and star explain tells one
// episode.
func TestSlowAcrossPlans(t *testing.T) {
	const from, to = 40, 360
	s, teller := NewState(), explain.New()
	now := time.Duration(0)
	say := func(e runlog.Entry) {
		l := runlog.Line{T: now, Entry: e}
		if err := s.Line(l); err != nil {
			t.Fatal(err)
		}
		if err := teller.Add(l); err != nil {
			t.Fatal(err)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	noisy := func(d time.Duration) time.Duration {
		return time.Duration(float64(d) * math.Exp(0.2*rnd.NormFloat64()))
	}
	say(runlog.Start{Config: json.RawMessage("{}")})
	say(runlog.Train{Workers: 4, Plan: "ssgd"})
	plan, noticed := modes.SSGD(4), int64(0)
	for step := range int64(480) {
		for at, text := range map[int64]string{100: "ssgd local=8", 180: "ssgd", 260: "ssgd local=4", 320: "ssgd queue=8"} {
			if step == at {
				plan, _ = modes.Parse(text, 4)
				say(runlog.Plan{Plan: text})
			}
		}
		for w := range star.Worker(4) {
			each, parts := 8*time.Millisecond, max(plan.Local, 1)
			if w == 2 && step >= from && step < to {
				each *= 2
			}
			if plan.Queue > 0 { // in parts of 4 samples
				parts = int(72 * time.Millisecond / each)
				each = each * 4 / 32
			}
			r := star.Record{Worker: w, Step: step, At: now, Compute: noisy(each * time.Duration(parts)), Push: noisy(12 * time.Millisecond), Samples: 32 * parts}
			if plan.Queue > 0 {
				r.Samples = 4 * parts
			}
			r.Telemetry.Set(star.Parts, float64(parts))
			now += 20 * time.Millisecond
			say(runlog.Record{Record: r})
		}
		v := s.View()
		slow := v.Workers[2].Slow == v.Workers[2].Slow // not NaN
		if slow && noticed == 0 {
			noticed = step
		}
		if want := noticed > 0 && step < to; step < to && slow != want || slow != v.Bad {
			t.Fatalf("step %d: slow %v, want %v; %q", step, slow, want, v.Headline)
		}
	}
	v, told := s.View(), teller.Story(runlog.Contents{}).Episodes
	if len(v.Episodes) != 1 || v.Bad || noticed > from+40 {
		t.Errorf("noticed in step %d, %q: %+v", noticed, v.Headline, v.Episodes)
	}
	if len(told) != 1 || told[0].Worker != 2 || told[0].Open || told[0].From < from-10 || told[0].To > to+10 {
		t.Errorf("%+v", told)
	}
}

// A worker that is slow while the job runs has a row that says so, from then to now.
func TestSlowRow(t *testing.T) {
	s := script(t, runlog.Train{Workers: 2, Plan: "ssgd"}, runlog.Join{Worker: 0}, runlog.Verdict{Worker: 1, Event: "slow", Slowdown: 2, Cause: "data"}, runlog.Join{Worker: 0}, runlog.Join{Worker: 0})
	v := s.View()
	w := v.Workers[1]
	first, last := strings.IndexByte(w.Line, '#'), strings.LastIndexByte(w.Line, '#')
	at := func(k int) float64 { return v.Series.From + float64(k)*v.Series.Width }
	if w.Slow != 2 || w.Cause != "data" || math.Abs(at(first)-3) > v.Series.Width || math.Abs(at(last+1)-5) > v.Series.Width {
		t.Errorf("%+v: slow from %g to %g", w, at(first), at(last+1))
	}
	if strings.Contains(v.Workers[0].Line, "#") {
		t.Errorf("%+v", v.Workers[0])
	}
}

// However long a job is, a series keeps its sum and its size.
func TestSeries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		began := time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "began"))
		s := newSeries(began, 2)
		at, sum, spent := began, 0.0, 0.0
		for range rapid.IntRange(1, 40).Draw(t, "times") {
			at += time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "later"))
			x := float64(rapid.IntRange(0, 1000).Draw(t, "x"))
			s.add(at, 0, x)
			sum += x
			took := time.Duration(rapid.Int64Range(0, int64(at-began)).Draw(t, "took"))
			s.spread(at-took, at, 1, 1)
			spent += took.Seconds()
		}
		got, seconds := 0.0, 0.0
		for i := range s.sums[0] {
			got, seconds = got+s.sums[0][i], seconds+s.sums[1][i]
			if i >= s.n && s.sums[0][i] != 0 {
				t.Fatalf("stretch %d of %d has %g", i, s.n, s.sums[0][i])
			}
		}
		if got != sum || math.Abs(seconds-spent) > 1e-6*(1+spent) || len(s.sums[0]) != stretches || s.n > stretches {
			t.Fatalf("sum %g, want %g; %g s, want %g; %d stretches", got, sum, seconds, spent, s.n)
		}
		if end := s.began + time.Duration(s.n)*s.width; at >= end {
			t.Fatalf("%v is behind the end, %v", at, end)
		}
	})
}

const evil = `</script><script>alert("w")</script>` + "\u2028"

func hostile(t *testing.T) *State {
	return script(t, runlog.Join{Worker: 0, Peer: evil}, runlog.Train{Workers: 1, Plan: evil, Model: evil, Data: evil},
		runlog.Verdict{Event: "slow", Slowdown: 2, Cause: evil, Evidence: []runlog.Evidence{{Text: evil}}}, runlog.Checkpoint{ID: evil, Err: evil}, runlog.Leave{Why: evil})
}

// A report is one self-contained file: it loads nothing, and no text of a log ends its data.
func TestReport(t *testing.T) {
	var b bytes.Buffer
	if err := Report(&b, hostile(t)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{evil, `alert("w")`, ` src="`, `<link rel="stylesheet"`, `@import`, `url(http`} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the report has %q", bad)
		}
	}
	data := regexp.MustCompile(`(?s)<script type="application/json" id="view">(.*?)</script>`).FindSubmatch(b.Bytes())
	if data == nil {
		t.Fatal("no data")
	}
	var v struct {
		Page int
		View
	}
	if err := json.Unmarshal(data[1], &v); err != nil || v.Page != page || v.Model != evil || v.Workers[0].Peer != evil {
		t.Errorf("%v, %+v", err, v)
	}
}

// The page is served with what keeps other scripts out, and only to be read.
func TestHandler(t *testing.T) {
	live := NewLive()
	srv := httptest.NewServer(live.Handler(Downloads{"run.jsonl": func(w io.Writer) error { _, err := io.WriteString(w, "log"); return err }}))
	defer srv.Close()
	defer live.Close()
	get := func(method, path string) (*http.Response, string) {
		req, _ := http.NewRequest(method, srv.URL+path, nil)
		r, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r, string(b)
	}
	for _, path := range []string{"/", "/app.js", "/parts.js", "/style.css", "/uplot.js", "/uplot.css", "/view.json", "/run.jsonl"} {
		r, body := get("GET", path)
		if r.StatusCode != 200 || body == "" || !strings.HasPrefix(r.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %d bytes, %v", path, r.StatusCode, len(body), r.Header)
		}
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{{"POST", "/", 405}, {"DELETE", "/run.jsonl", 405}, {"GET", "/none", 404}, {"GET", "/../live.go", 404}} {
		if r, _ := get(c.method, c.path); r.StatusCode != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, r.StatusCode, c.want)
		}
	}
	// Nothing that the page has comes from elsewhere.
	for _, name := range []string{"index.html", "style.css", "app.js", "parts.js", "uplot.css"} {
		b, err := static.ReadFile("static/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`(?i)(src|href)="(https?:)?//|url\(|@import|innerHTML|document\.write`).Find(b); m != nil {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// stream opens events.
func stream(t *testing.T, ctx context.Context, url string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	req, _ := http.NewRequestWithContext(ctx, "GET", url+"/events", nil)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(r.Body)
	sc.Buffer(nil, 1<<20)
	return r, sc
}

// next is the next view of a stream; false: it is over.
func next(t *testing.T, sc *bufio.Scanner) (v View, ok bool) {
	t.Helper()
	for sc.Scan() {
		if text, data := strings.CutPrefix(sc.Text(), "data: {\"page\""); data {
			if err := json.Unmarshal([]byte(`{"page"`+text), &v); err != nil {
				t.Fatal(err)
			}
			return v, true
		}
	}
	return v, false
}

// A page hears of what comes, and of the end; one that comes later is sent the whole.
func TestEvents(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	live := NewLive()
	srv := httptest.NewServer(live.Handler(nil))
	defer srv.Close()
	defer live.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, sc := stream(t, ctx, srv.URL)
	defer r.Body.Close()
	if v, ok := next(t, sc); !ok || v.Status != "waiting" || r.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v, %+v, %v", ok, v, r.Header)
	}
	say := func(n int, e runlog.Entry) {
		if err := live.Line(runlog.Line{Number: n, T: time.Duration(n) * time.Second, Entry: e}); err != nil {
			t.Fatal(err)
		}
		live.Wake()
	}
	say(1, runlog.Start{Job: "j", Config: json.RawMessage("{}")})
	say(2, runlog.Train{Workers: 1, Plan: "ssgd"})
	for {
		v, ok := next(t, sc)
		if !ok {
			t.Fatal("the stream is over")
		}
		if v.Status == "running" {
			break
		}
	}
	say(3, runlog.Summary{Result: runlog.Result{Updates: 5}})
	var v View
	for {
		x, ok := next(t, sc)
		if !ok {
			break
		}
		v = x
	}
	if v.Status != "ended" || v.Result.Updates != 5 {
		t.Errorf("the last view: %+v", v)
	}
	late, sc := stream(t, ctx, srv.URL)
	defer late.Body.Close()
	if v, ok := next(t, sc); !ok || v.Status != "ended" {
		t.Errorf("who comes late: %v, %+v", ok, v)
	}
}

// What is written before a log is let go is still sent; there is a bound of pages.
func TestStreams(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	live := NewLive()
	srv := httptest.NewServer(live.Handler(nil))
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var first *bufio.Scanner
	for i := range mostStreams {
		r, sc := stream(t, ctx, srv.URL)
		defer r.Body.Close()
		if _, ok := next(t, sc); !ok {
			t.Fatalf("stream %d: %d", i, r.StatusCode)
		}
		if i == 0 {
			first = sc
		}
	}
	if r, _ := stream(t, ctx, srv.URL); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more: %d", r.StatusCode)
	} else {
		r.Body.Close()
	}
	log := `{"type":"start","format":1,"program":"p","time":"2026-01-01T00:00:00Z","job":"last","config":{}}` + "\n"
	following, stop := context.WithCancel(ctx)
	stop()
	if err := live.Follow(following, strings.NewReader(log), "log", nil); err != nil {
		t.Error(err)
	}
	live.Close()
	var v View
	for {
		x, ok := next(t, first)
		if !ok {
			break
		}
		v = x
	}
	if v.Job != "last" {
		t.Errorf("the last view: %+v", v)
	}
}

// A page that is fed shows what one that reads does: from where it began to read, also when more lines came meanwhile
// than are kept.
func TestTap(t *testing.T) {
	for _, lines := range []int{0, 1, 500, mostLines + 500} {
		name := t.TempDir() + "/run.jsonl"
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		tap, log, at := NewTap(), runlog.NewWriter(f), time.Duration(0)
		fed, made := 0, 0
		log.Beside(func(l runlog.Line) {
			tap.Line(l)
			fed++
		})
		iterations := func(n int) {
			for range n {
				at += 10 * time.Millisecond
				w, step := star.Worker(made%2), int64(made/2)
				made++
				log.Record(at, &runlog.Record{Record: star.Record{Worker: w, Step: step, At: at, Compute: time.Duration(1+2*w) * 10 * time.Millisecond, Samples: 8, Loss: 1}, Start: -1})
			}
		}
		log.Write(0, runlog.Start{Format: 1, Program: "p", Job: "j", Config: json.RawMessage("{}")})
		log.Write(at, runlog.Train{Workers: 2, Plan: "ssgd", Limit: 100})
		iterations(300)
		tap.take(0, new(batch)) // a reader wants it
		iterations(lines)
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		live, done := NewLive(), make(chan error, 1)
		_, changed, _ := live.view()
		go func() { done <- live.Follow(context.Background(), file, name, tap) }()
		if lines == 0 { // it has nothing to begin with, and reads that
			if err := log.Flush(); err != nil {
				t.Fatal(err)
			}
			<-changed
		}
		iterations(300)
		log.Write(at, runlog.Summary{Result: runlog.Result{Updates: 5}})
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		file.Close()
		live.Close()
		whole := NewState()
		file, err = os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := runlog.Read(file, name, whole.Line); err != nil {
			t.Fatal(err)
		}
		file.Close()
		got, want := encode(live.state.View()), encode(whole.View())
		if !bytes.Equal(got, want) {
			t.Errorf("%d lines: %s\nwant %s", lines, got, want)
		}
		if fed != 603+lines || tap.next != 0 {
			t.Errorf("%d of %d lines came, and %d are still wanted", fed, 603+lines, tap.next)
		}
	}
}

// A log that is damaged is shown as far as it goes, and why it goes no further.
func TestFollowDamage(t *testing.T) {
	live := NewLive()
	err := live.Follow(context.Background(), strings.NewReader("{\"type\":\"start\",\"format\":1,\"program\":\"p\",\"job\":\"j\",\"config\":{}}\nno\n"), "log", nil)
	text, _, _ := live.view()
	if err == nil || !bytes.Contains(text, []byte("log:2: not a line of a run log")) || !bytes.Contains(text, []byte(`"unreadable"`)) {
		t.Errorf("%v, %s", err, text)
	}
}

// What an hour of 64 workers takes, each twentieth of ten records a second: for each record, and for a view.
func BenchmarkHour(b *testing.B) {
	const n = 64 * 10 * 3600 / 20
	size := 0
	for b.Loop() {
		s := NewState()
		s.Line(runlog.Line{Number: 1, Entry: runlog.Start{Config: json.RawMessage("{}")}})
		s.Line(runlog.Line{Number: 2, Entry: runlog.Train{Workers: 64, Plan: "ssgd", Limit: 1 << 40}})
		for i := range int64(n) {
			at := time.Duration(i) * time.Hour / n
			s.Line(runlog.Line{Number: 3, T: at, Entry: runlog.Record{Record: star.Record{Worker: star.Worker(i % 64), Step: i / 64, At: at, Compute: 60e6, Wait: 40e6, Samples: 8, Loss: 1}}})
		}
		size = len(encode(s.View()))
	}
	b.ReportMetric(float64(size), "B/view")
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
}
