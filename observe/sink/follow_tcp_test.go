package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"star/internal/exitcode"
	"star/job"
	"star/runlog/parts"
)

// patient ends every wait of a test.
const patient = time.Minute

// journal writes a run log of two workers, an update each second.
type journal struct {
	t    *testing.T
	path string
	n    int
	late float64   // seconds more that worker 1 loads
	out  io.Writer // nil: the file at path
}

func newJournal(t *testing.T) *journal {
	j := &journal{t: t, path: filepath.Join(t.TempDir(), "run.jsonl")}
	j.begin("2026-01-02T03:04:05Z")
	return j
}

func (j *journal) begin(at string) {
	j.n = 0
	j.write(`{"type":"start","format":1,"program":"star 0.1.0","time":"` + at + `","job":"trial","config":{"arch":"ps","mode":"auto"}}`)
	j.write(`{"type":"train","t":0,"workers":2,"shards":1,"model":"m","model_hash":"h","params":1,"data":"d","samples":100,"limit":1000,"version":0,"plan":"ssgd"}`)
}

func (j *journal) write(line string) {
	j.t.Helper()
	if j.out != nil {
		if _, err := io.WriteString(j.out, line+"\n"); err != nil {
			j.t.Fatal(err)
		}
		return
	}
	f, err := os.OpenFile(j.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		j.t.Fatal(err)
	}
}

// steps writes updates: each has 5 scalars for each worker and 3 or 4 of the job.
func (j *journal) steps(n int) {
	j.t.Helper()
	var b strings.Builder
	for range n {
		for w := range 2 {
			fmt.Fprintf(&b, `{"type":"record","t":%d,"worker":%d,"step":%d,"basis":%d,"at":%d,"load":%g,"compute":0.2,"push":0.1,"wait":0,"pull":0,"transit":0,"samples":5,"loss":0.5,"norm2":%g,"cpu":1,"net_in":%g,"net_out":%g}`+"\n", j.n+1, w, j.n, j.n, j.n+1, 0.1+float64(w)*j.late,
				rand.Float64(), rand.Float64(), rand.Float64()) // so that it does not compress well
		}
		fmt.Fprintf(&b, `{"type":"fire","t":%d,"seq":%d,"version":%d,"workers":[0,1],"staleness":[0,0],"samples":%d}`+"\n", j.n+1, j.n+1, j.n+1, 10*(j.n+1))
		j.n++
	}
	j.write(strings.TrimSuffix(b.String(), "\n"))
}

func (j *journal) slow() {
	j.write(fmt.Sprintf(`{"type":"verdict","t":%d,"worker":1,"event":"slow","step":%d,"since":%d,"slowdown":2,"cause":"data","evidence":[{"what":"load","value":1,"other":0.1,"text":"load 1 s, others 0.1 s"}]}`, j.n, j.n, j.n))
}

func (j *journal) end() {
	j.write(`{"type":"summary","arch":"ps","mode":"ssgd","workers":2,"shards":1,"model":"m","dataset":"d","seed":1,"steps":1,"updates":` + fmt.Sprint(j.n) + `,"samples":1,"wasted_samples":0,"train_loss":0.5,"test_loss":null,"test_accuracy":0,"evaluated":false,"wall_s":1,"samples_per_s":1,"staleness":{"mean":0,"max":0,"histogram":{}},"switches":0,"bytes_sent":0,"run_log":"","checkpoint":""}`)
}

// rows of an OTLP job with n updates, and events: its begin, its end.
func rowsOf(n int) int64 { return int64(14*n - 1) }

// collector is a server that counts the rows of OTLP.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	points  map[string]int // by metric
	logs    []string
	answers func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	bodies  [][]byte
	header  http.Header
}

func newCollector(t *testing.T) *collector {
	c := &collector{points: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	answers := c.answers
	c.mu.Unlock()
	if answers != nil && answers(w, r) {
		return
	}
	var q struct {
		ResourceMetrics []struct {
			ScopeMetrics []struct{ Metrics []gauge }
		}
		ResourceLogs []struct {
			ScopeLogs []struct {
				LogRecords []struct{ Body struct{ StringValue string } }
			}
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies, c.header = append(c.bodies, body), r.Header.Clone()
	for _, rm := range q.ResourceMetrics {
		for _, m := range rm.ScopeMetrics[0].Metrics {
			c.points[m.Name] += len(m.Gauge.Points)
		}
	}
	for _, rl := range q.ResourceLogs {
		for _, l := range rl.ScopeLogs[0].LogRecords {
			c.logs = append(c.logs, l.Body.StringValue)
		}
	}
	io.WriteString(w, "{}")
}

func (c *collector) answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = f
}

// taken is the number of rows: all but what OTLP adds about the sink.
func (c *collector) taken() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, points := range c.points {
		if name != "star.sink.rows_lost" && name != "star.job.updates" {
			n += int64(points)
		}
	}
	return n + int64(len(c.logs))
}

func follower(j *journal, to string, follow bool) *Follower {
	target, err := ParseTarget(to)
	if err != nil {
		j.t.Fatal(err)
	}
	return &Follower{Path: j.path, Follow: follow, To: target, Log: slog.New(slog.NewTextHandler(j.t.Output(), nil)), Patience: Patience{Appear: patient, Silent: patient, Grace: 2 * time.Second}}
}

func run(t *testing.T, f *Follower) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return f.Run(ctx)
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for:", what)
		}
	}
}

func TestWholeLog(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	j.steps(300) // several batches
	j.slow()
	j.end()
	o, err := run(t, follower(j, "otlp="+c.URL, false))
	want := rowsOf(300) + 4 // begin, slow, recovered at the end, end
	if err != nil || o != (Outcome{Sent: want}) || c.taken() != want {
		t.Fatalf("%+v, %v: %d rows were taken, want %d", o, err, c.taken(), want)
	}
	if c.points["star.train.loss"] != 300 || c.points["star.worker.compute"] != 600 {
		t.Error(c.points)
	}
	if !strings.Contains(strings.Join(c.logs, "\n"), "worker 1 is 2.0x slow since step 300: load 1 s, others 0.1 s") {
		t.Error(c.logs)
	}
	// The next process knows.
	if o, err := run(t, follower(j, "otlp="+c.URL, true)); err != nil || o != (Outcome{Before: want}) || c.taken() != want {
		t.Fatalf("%+v, %v", o, err)
	}
}

func TestFollowsWhileTheServerFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fails func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"500", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "broken", http.StatusInternalServerError)
			return true
		}},
		{"429", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "too much", http.StatusTooManyRequests)
			return true
		}},
		{"hangs up", func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.Close()
			}
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j, s := newJournal(t), newCollector(t)
			failed := make(chan bool, 100)
			s.answer(func(w http.ResponseWriter, r *http.Request) bool { failed <- true; return c.fails(w, r) })
			done := make(chan Outcome, 1)
			go func() {
				o, err := run(t, follower(j, "otlp="+s.URL, true))
				if err != nil {
					t.Error(err)
				}
				done <- o
			}()
			<-failed
			j.steps(20) // the job is not held up
			<-failed
			s.answer(nil)
			until(t, "rows", func() bool { return s.taken() >= rowsOf(20) })
			j.steps(5)
			j.end()
			if o, want := <-done, rowsOf(25)+2; o != (Outcome{Sent: want}) || s.taken() != want {
				t.Errorf("%+v, %d taken, want %d", o, s.taken(), want)
			}
		})
	}
}

// Each line of a log that --log-max cuts is sent once, or counted: while the sink does not answer, or while no process
// follows.
func TestLogMax(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("stops=%v", stops), func(t *testing.T) {
			t.Parallel()
			j, c := &journal{t: t, path: filepath.Join(t.TempDir(), "run.jsonl")}, newCollector(t)
			file, err := os.Create(j.path)
			if err != nil {
				t.Fatal(err)
			}
			w := parts.NewRotating(file, j.path, parts.LeastMax)
			j.out = w
			j.begin("2026-01-02T03:04:05Z")
			j.steps(100) // less than a part: the first gap has lines that were sent
			follow := func() (stop context.CancelFunc, wait func() Outcome) {
				ctx, cancel := context.WithTimeout(t.Context(), patient)
				done := make(chan Outcome, 1)
				go func() {
					o, err := follower(j, "otlp="+c.URL, true).Run(ctx)
					if err != nil {
						t.Error(err)
					}
					done <- o
				}()
				return cancel, func() Outcome { return <-done }
			}
			stop, wait := follow()
			until(t, "rows", func() bool { return c.taken() == rowsOf(100)+1 })
			var before Outcome
			asked, release := make(chan bool, 1), make(chan bool)
			answer := sync.OnceFunc(func() { close(release) })
			defer answer()
			if stops {
				stop()
				before = wait()
			} else {
				c.answer(func(http.ResponseWriter, *http.Request) bool {
					select {
					case asked <- true:
					default:
					}
					<-release
					return false
				})
				j.steps(1)
				<-asked
			}
			for thinned := false; !thinned; {
				if j.steps(100); j.n > 200000 {
					t.Fatal("no part was thinned")
				}
				time.Sleep(5 * time.Millisecond)                       // while a part is compressed, the next one grows
				names, _ := filepath.Glob(j.path + ".*-00000[3-9].gz") // also parts that no process has open
				thinned = len(names) > 0
			}
			if c.answer(nil); stops {
				stop, wait = follow()
			}
			defer stop()
			answer()
			j.slow()
			j.steps(50)
			j.end()
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			o := wait()
			if n := int64(c.points["star.worker.compute"] + c.points["star.job.staleness"]); n+o.Lines != int64(3*j.n) || o.Lines == 0 {
				t.Errorf("%d lines were taken, %d are counted as lost, of %d", n, o.Lines, 3*j.n)
			}
			if o.Sent+o.Before != c.taken() || o.Before != before.Sent || o.Rejected+o.Unsent != 0 {
				t.Errorf("%+v, %d taken", o, c.taken())
			}
			if n := strings.Count(strings.Join(c.logs, "\n"), "x slow since"); n != 1 {
				t.Errorf("%d times: %q", n, c.logs)
			}
			if again, err := run(t, follower(j, "otlp="+c.URL, true)); err != nil || again != (Outcome{Before: c.taken()}) {
				t.Errorf("%+v, %v", again, err)
			}
		})
	}
}

// What a dead server does not take is counted, and sent by the next process.
func TestDeadServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	j := newJournal(t)
	j.steps(200)
	j.end()
	o, err := run(t, follower(j, "otlp=http://"+addr, true))
	want := rowsOf(200) + 2
	if o != (Outcome{Unsent: want}) || job.ExitCode(err) != exitcode.Lost {
		t.Fatalf("%+v, %v; want %d not delivered", o, err, want)
	}
	c := newCollector(t)
	c.Listener.Close()
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Skip("another process has the port now:", err)
	}
	back := &http.Server{Handler: http.HandlerFunc(c.serve)}
	go back.Serve(l)
	defer back.Close()
	if o, err := run(t, follower(j, "otlp=http://"+addr, true)); err != nil || o != (Outcome{Sent: want}) || c.taken() != want {
		t.Fatalf("%+v, %v", o, err)
	}
}

// A process that dies in the middle costs no row.
func TestContinues(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	j.steps(10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan Outcome, 1)
	go func() {
		o, err := follower(j, "otlp="+c.URL, true).Run(ctx)
		if err != nil {
			t.Error(err)
		}
		done <- o
	}()
	until(t, "rows", func() bool { return c.taken() == rowsOf(10)+1 })
	cancel()
	if o := <-done; o != (Outcome{Sent: rowsOf(10) + 1}) {
		t.Fatalf("%+v", o)
	}
	j.steps(10)
	j.end()
	if o, err := run(t, follower(j, "otlp="+c.URL, true)); err != nil || o != (Outcome{Before: rowsOf(10) + 1, Sent: 141}) || c.taken() != rowsOf(20)+2 {
		t.Fatalf("%+v, %v, %d taken", o, err, c.taken())
	}
}

func TestRejectedRowsAreCounted(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	j.steps(10)
	j.end()
	c.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/metrics" {
			io.WriteString(w, `{"partialSuccess":{"rejectedDataPoints":"7","errorMessage":"too old"}}`)
		} else {
			http.Error(w, "no logs here", http.StatusBadRequest)
		}
		return true
	})
	f := follower(j, "otlp="+c.URL, false)
	o, err := run(t, f)
	if want := (Outcome{Sent: rowsOf(10) - 7, Rejected: 9}); err != nil || o != want {
		t.Fatalf("%+v, %v; want %+v", o, err, want)
	}
	if !strings.Contains(o.String(), "9 lost") {
		t.Error(o)
	}
}

func TestFatalAnswers(t *testing.T) {
	t.Parallel()
	for status, exit := range map[int]int{401: exitcode.Refused, 403: exitcode.Refused, 404: exitcode.Usage} {
		j, c := newJournal(t), newCollector(t)
		c.answer(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true })
		_, err := run(t, follower(j, "webhook="+c.URL+"/secret", true))
		if job.ExitCode(err) != exit || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %v (exit %d, want %d)", status, err, job.ExitCode(err), exit)
		}
	}
}

// The address of a webhook is often a secret.
func TestErrorsHideAddresses(t *testing.T) {
	c := newCollector(t)
	c.Close()
	s, err := newWebhook(c.URL+"/secret", os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	w := s.(*webhook)
	if _, err := post(t.Context(), &w.client, w.to, nil, 1, 1); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// A slow server delays its own rows only.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	c.answer(func(http.ResponseWriter, *http.Request) bool { time.Sleep(300 * time.Millisecond); return false })
	j.steps(300)
	j.end()
	if o, err := run(t, follower(j, "otlp="+c.URL, true)); err != nil || o.Sent != rowsOf(300)+2 || c.taken() != o.Sent {
		t.Fatalf("%+v, %v", o, err)
	}
}

// A restarted job writes a new log under the same name.
func TestAnotherJob(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	j.steps(3)
	done := make(chan Outcome, 1)
	go func() {
		o, err := run(t, follower(j, "otlp="+c.URL, true))
		if err != nil {
			t.Error(err)
		}
		done <- o
	}()
	until(t, "rows", func() bool { return c.taken() == rowsOf(3)+1 })
	if err := os.Rename(j.path, filepath.Join(filepath.Dir(j.path), "run.1.jsonl")); err != nil {
		t.Fatal(err)
	}
	j.begin("2026-01-02T04:00:00Z")
	j.steps(4)
	j.end()
	if o := <-done; o.Sent != rowsOf(3)+1+rowsOf(4)+2 || c.taken() != o.Sent {
		t.Errorf("%+v, %d taken", o, c.taken())
	}
}

func TestOneProcessPerSink(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		defer close(done)
		follower(j, "otlp="+c.URL, true).Run(ctx)
	}()
	until(t, "the first row", func() bool { return c.taken() > 0 })
	_, err := run(t, follower(j, "otlp="+c.URL, true))
	cancel()
	<-done
	if err == nil || !strings.Contains(err.Error(), "another process sends") || job.ExitCode(err) != exitcode.Usage {
		t.Error(err)
	}
}

func TestSilentLog(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	f := follower(j, "otlp="+c.URL, true)
	f.Patience.Silent = time.Second
	if _, err := run(t, f); err == nil || job.ExitCode(err) != exitcode.Restart {
		t.Error(err)
	}
}

// A job that is only observed has its verdicts in the log: no worker is called slow twice.
func TestOneEventPerVerdict(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	text, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.path, []byte(strings.Replace(string(text), `"mode":"auto"`, `"mode":"ssgd","watched":"train.py"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	j.late = 0.9
	j.steps(60)
	j.slow()
	j.end()
	if _, err := run(t, follower(j, "otlp="+c.URL, false)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(c.logs, "\n"), "x slow since"); n != 1 {
		t.Errorf("%d times: %q", n, c.logs)
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	j, c := newJournal(t), newCollector(t)
	j.steps(3)
	j.slow()
	j.end()
	if o, err := run(t, follower(j, "webhook="+c.URL, false)); err != nil || o.Sent != 4 {
		t.Fatal(o, err)
	}
	var got struct {
		Text   string
		Events []hooked
	}
	if err := json.Unmarshal(c.bodies[0], &got); err != nil || len(got.Events) != 4 {
		t.Fatal(string(c.bodies[0]), err)
	}
	if lines := strings.Split(got.Text, "\n"); len(lines) != 4 || lines[1] != "trial: worker 1 is 2.0x slow since step 3: load 1 s, others 0.1 s" {
		t.Error(got.Text)
	}
	if e := got.Events[1]; e.Kind != "slow" || e.Level != "warn" || e.Worker == nil || *e.Worker != 1 {
		t.Errorf("%+v", e)
	}
}

// The variables, header and payload are those of kubeflow/trainer, proposal 2779, and of KubeflowCallback of
// transformers 5.
func TestTrainJob(t *testing.T) {
	j, c := newJournal(t), newCollector(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("jwt\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEFLOW_TRAINER_SERVER_URL", c.URL+"/apis/trainer.kubeflow.org/v1alpha1/namespaces/n/trainjobs/j/status")
	t.Setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", token)
	j.steps(30)
	j.end()
	if _, err := run(t, follower(j, "trainjob", true)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TrainerStatus struct {
			ProgressPercentage int
			LastUpdatedTime    time.Time
			Metrics            []namedText
		}
	}
	last := c.bodies[len(c.bodies)-1]
	if err := json.Unmarshal(last, &got); err != nil || c.header.Get("Authorization") != "Bearer jwt" {
		t.Fatal(string(last), err, c.header)
	}
	if s := got.TrainerStatus; s.ProgressPercentage != 30 || s.LastUpdatedTime.IsZero() || s.Metrics[0] != (namedText{"loss", "0.5"}) {
		t.Errorf("%+v", s)
	}
}

func TestBadTargets(t *testing.T) {
	for _, to := range []string{"tensorboard", "", "=x"} {
		if _, err := ParseTarget(to); err == nil || !strings.Contains(err.Error(), "otlp") {
			t.Errorf("%q: %v", to, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "")
	for to, want := range map[string]string{"otlp=collector:4318": "https://host:port", "webhook": "webhook=https://", "trainjob": "KUBEFLOW_TRAINER_SERVER_URL", "trainjob=x": "no value"} {
		target, err := ParseTarget(to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.New(); err == nil || !strings.Contains(err.Error(), want) || job.ExitCode(err) != exitcode.Usage {
			t.Errorf("%s: %v", to, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "key")
	if _, err := newOTLP("", os.Getenv); err == nil {
		t.Error("a header without a value was taken")
	}
}

func TestVariablesOfOpenTelemetry(t *testing.T) {
	j, c := newJournal(t), newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL+"/")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-tenant=t")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=p,service.name=other")
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	if _, err := run(t, follower(j, "otlp", false)); err != nil {
		t.Fatal(err)
	}
	if c.header.Get("Api-Key") != "a b" || c.header.Get("X-Tenant") != "t" {
		t.Error(c.header)
	}
	if b := string(c.bodies[0]); !strings.Contains(b, `"k8s.pod.name"`) || !strings.Contains(b, `"mine"`) || strings.Contains(b, `"other"`) {
		t.Error(b)
	}
}
