package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star/observe/whatif"
	"star/runlog"
)

type closer struct{ io.Writer }

func (closer) Close() error { return nil }

// job is a job with rows that a test makes up.
type job struct {
	t    *testing.T
	head *Head
	log  bytes.Buffer
	said []string
	now  time.Duration
	pid  int
	rng  *rand.Rand
}

func newJob(t *testing.T, ranks int) *job {
	j := &job{t: t, pid: 100, rng: rand.New(rand.NewPCG(1, 2))}
	j.head = NewHead(runlog.NewWriter(closer{&j.log}), runlog.Start{Program: "test"}, func(s string) { j.said = append(j.said, s) })
	for r := range ranks {
		j.hello(r, ranks)
	}
	return j
}

func (j *job) hello(r, world int) {
	j.head.Take(Row{Kind: "hello", Rank: r, World: world, PID: j.pid + r, Host: "node-a", How: "DDP over gloo", Script: "train.py", Optimizer: "SGD", Momentum: 0.9}, j.now)
}

// step is one of all ranks, where some load for longer: all wait for the slowest.
func (j *job) step(n int64, ranks int, load map[int]float64) {
	rows := make([]Row, ranks)
	took := 0.0
	for r := range rows {
		own := 0.040 + 0.002*j.rng.Float64()
		rows[r] = Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Load: load[r], Took: own + load[r], Samples: 32}
		took = max(took, rows[r].Took)
	}
	took += 0.003
	j.now += seconds(took)
	for r := range rows {
		rows[r].Wait, rows[r].Took = took-rows[r].Took, took
		j.head.Take(rows[r], j.now+time.Duration(r)*time.Microsecond)
	}
}

// sends is a step in which the data of one rank wait for its link for longer: the exchange of all takes that time more.
func (j *job) sends(n int64, ranks, slow int, longer float64) {
	took := 0.050 + longer
	j.now += seconds(took)
	for r := range ranks {
		row := Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: took, Wait: took - 0.040 - 0.002*j.rng.Float64(), Samples: 32}
		if r == slow {
			row.Send = longer
		}
		j.head.Take(row, j.now+time.Duration(r)*time.Microsecond)
	}
}

func (j *job) says(words ...string) {
	j.t.Helper()
	for _, line := range j.said {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	j.t.Errorf("nobody says %q:\n%s", words, strings.Join(j.said, "\n"))
}

func (j *job) saysNot(word string) {
	j.t.Helper()
	for _, line := range j.said {
		if strings.Contains(line, word) {
			j.t.Errorf("%q is said: %s", word, line)
		}
	}
}

// A rank with a slow link is named, though all ranks wait in the exchange as long.
func TestSlowLinkIsNamed(t *testing.T) {
	j := newJob(t, 3)
	n := int64(0)
	for ; n < 100; n++ {
		j.sends(n, 3, 1, 0)
	}
	j.saysNot("slow")
	for ; n < 200; n++ {
		j.sends(n, 3, 1, 0.080)
	}
	j.says("rank 1 on node-a is 3.0x slow since step 100", "slow link: sending 80 ms, others 0 ms (cause: network-out)")
	j.says("of the job's time since then: 130 ms a step instead of")
	j.saysNot("rank 0 on")
	j.saysNot("rank 2 on")
	for ; n < 400; n++ {
		j.sends(n, 3, 1, 0)
	}
	j.says("rank 1 on node-a is as fast as the others again")
}

// The stages of a pipeline have different work, which makes none of them slow.
func TestStages(t *testing.T) {
	j := newJob(t, 0)
	for r := range 3 {
		j.head.Take(Row{Kind: "hello", Rank: r, World: 3, PID: j.pid + r, Host: "node-a", How: "pipeline over gloo", Script: "train.py", Optimizer: "SGD"}, 0)
	}
	step := func(n int64, own [3]float64) {
		took := own[0] + own[1] + own[2]
		j.now += seconds(took)
		for r, o := range own {
			o *= 1 + 0.02*j.rng.Float64()
			row := Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: took, Samples: 32}
			if r == 0 { // only the first stage needs the data
				row.Load = 0.020
			}
			row.Wait = max(took-o-row.Load, 0)
			j.head.Take(row, j.now+time.Duration(r)*time.Microsecond)
		}
	}
	n := int64(0)
	for ; n < 100; n++ {
		step(n, [3]float64{0.040, 0.080, 0.030})
	}
	j.says("different work")
	j.saysNot("slow since")
	for ; n < 200; n++ {
		step(n, [3]float64{0.040, 0.160, 0.030})
	}
	j.says("rank 1 on node-a is 2.0x slow since step 100: compute 16", "ms in its first steps")
	j.saysNot("rank 0 on")
	j.saysNot("rank 2 on")
	j.saysNot("would save:")
	j.saysNot("of the job's time")
	j.head.End(j.now, "")
	j.says("200 steps in", "slower than in its first steps was rank 1")
}

// Where every rank of a host waits for a processor, one that waits longer is not slow; one that has more work is, and
// so is one that is kept from the processors alone.
func TestFullHost(t *testing.T) {
	for _, c := range []struct {
		name  string
		queue [3]float64 // s, of a step in which each rank computes for 20 ms
		more  float64    // s, that rank 1 sleeps longer
		host1 string     // of rank 1; empty: that of the others
		slow  bool
	}{
		{"one waits longer", [3]float64{0.010, 0.024, 0.012}, 0, "", false},
		{"one waits longer and sleeps", [3]float64{0.010, 0.024, 0.012}, 0.040, "", true},
		{"one waits less and sleeps", [3]float64{0.024, 0.010, 0.020}, 0.040, "", true},
		{"one waits much longer than the others", [3]float64{0.010, 0.060, 0.012}, 0, "", true},
		{"only one waits", [3]float64{0, 0.024, 0}, 0, "", true},
		{"one waits on a host of its own", [3]float64{0.010, 0.024, 0.012}, 0, "node-b", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t, 0)
			host := []string{"node-a", "node-a", "node-a"}
			if c.host1 != "" {
				host[1] = c.host1
			}
			for r := range 3 {
				j.head.Take(Row{Kind: "hello", Rank: r, World: 3, PID: j.pid + r, Host: host[r], How: "DDP over gloo", Script: "train.py", Optimizer: "SGD"}, 0)
			}
			for n := range int64(400) {
				var rows [3]Row
				took := 0.0
				for r := range rows {
					queue := c.queue[r] * (0.5 + j.rng.Float64())
					own := 0.022 + queue
					if r == 1 && n >= 100 {
						own += c.more
					}
					rows[r] = Row{Kind: "step", Rank: r, PID: j.pid + r, Host: host[r], Step: n, Took: own, CPU: 0.020, Queue: queue, Samples: 32,
						Telemetry: map[string]float64{"run_delay": queue / 0.05}}
					took = max(took, own)
				}
				took += 0.003
				j.now += seconds(took)
				for r, row := range rows {
					row.Wait, row.Took = took-row.Took, took
					j.head.Take(row, j.now+time.Duration(r)*time.Microsecond)
				}
			}
			if c.slow {
				j.says("rank 1 on", "slow since step")
			} else {
				j.saysNot("slow since")
				j.says("each rank on node-a waits for a processor", "for each second that it computes")
			}
			j.saysNot("rank 0 on")
			j.saysNot("rank 2 on")
		})
	}
}

// A rank that loads slowly is named, with what it costs, and its end is.
func TestSlowRankIsNamed(t *testing.T) {
	j := newJob(t, 4)
	n := int64(0)
	for ; n < 100; n++ {
		j.step(n, 4, nil)
	}
	j.says("4 ranks of train.py on 1 host, DDP over gloo, 4", "ms a step")
	j.saysNot("slow")
	for ; n < 200; n++ {
		j.step(n, 4, map[int]float64{2: 0.080})
	}
	j.says("rank 2 on node-a is 3.0x slow since step 100", "load 80 ms", "(cause: data)")
	j.says("of the job's time since then", "a step instead of 4", "STAR would save")
	for ; n < 400; n++ {
		j.step(n, 4, nil)
	}
	j.says("rank 2 on node-a is as fast as the others again at step 2")
	j.head.End(j.now, "")
	j.says("400 steps in", "spent waiting for slow ranks")

	j.head.log.Flush()
	r := whatif.New("log")
	kinds := map[string]int{}
	contents, err := runlog.Read(&j.log, "log", func(l runlog.Line) error { kinds[fmt.Sprintf("%T", l.Entry)]++; return r.Add(l) })
	if err != nil {
		t.Fatal(err)
	}
	if kinds["runlog.Record"] != 1600 || kinds["runlog.Fire"] != 400 || kinds["runlog.Verdict"] < 2 || kinds["runlog.Summary"] != 1 {
		t.Errorf("the log has %v", kinds)
	}
	run, err := r.Run(contents)
	if err != nil {
		t.Fatal(err)
	}
	again, err := run.Again()
	if off := again.Time.Seconds()/run.Took.Seconds() - 1; err != nil || off > 0.02 || off < -0.02 {
		t.Errorf("the log, simulated as it was, is %.1f %% off: %v", 100*off, err)
	}
}

// Without a slow worker, no worker is blamed.
func TestNobodyIsBlamed(t *testing.T) {
	j := newJob(t, 8)
	for n := range int64(2000) {
		j.step(n, 8, nil)
	}
	j.head.End(j.now, "")
	j.says("no rank was slower than the others")
}

// Rows that are lost cost their steps, and nothing else.
func TestLostRows(t *testing.T) {
	j := newJob(t, 3)
	for n := range int64(300) {
		switch {
		case n%10 == 3:
			j.now += 50 * time.Millisecond
			for _, r := range []int{0, 2} { // that of rank 1 is lost
				j.head.Take(Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: 0.05, Samples: 32, Dropped: 0}, j.now)
			}
		default:
			j.step(n, 3, nil)
		}
	}
	for r := range 3 {
		j.head.Take(Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: 300, Took: 0.05, Samples: 32, Dropped: []int64{0, 30, 0}[r]}, j.now)
	}
	j.head.End(j.now, "")
	j.says("271 steps")
	j.says("30 rows of steps were dropped")
	j.head.log.Flush()
	r := whatif.New("log")
	if _, err := runlog.Read(&j.log, "log", r.Add); err != nil {
		t.Error(err)
	}
	if len(j.head.steps) > 3*behind {
		t.Errorf("%d incomplete steps are kept", len(j.head.steps))
	}
}

// Two processes of one rank, ranks of another job, and what is started again.
func TestWhoIsWho(t *testing.T) {
	j := newJob(t, 2)
	for n := range int64(20) {
		j.step(n, 2, nil)
	}
	j.head.Take(Row{Kind: "hello", Rank: 1, World: 2, PID: 999, Host: "node-b"}, j.now)
	j.says("two processes are rank 1: 101 on node-a, and 999 on node-b, which is left out")
	j.head.Take(Row{Kind: "hello", Rank: 1, World: 3, PID: 999, Host: "node-b"}, j.now)
	j.says("rank 1 on node-b says that the job has 3 ranks, others say 2")
	j.head.Take(Row{Kind: "step", Rank: 1, PID: 999, Host: "node-b", Step: 20, Took: 9}, j.now)

	j.now += 10 * time.Second // all are started again
	j.pid = 200
	for r := range 2 {
		j.hello(r, 2)
	}
	j.says("rank 0 restarted")
	for n := range int64(20) {
		j.step(n, 2, nil)
	}
	j.head.Take(Row{Kind: "note", Rank: 1, Text: "ValueError"}, j.now)
	j.says("rank 1 is not measured any more, and goes on: ValueError")
	j.head.End(j.now, "")
	j.says("40 steps")
}

// What was lacking is said where nothing could be measured.
func TestSilence(t *testing.T) {
	j := newJob(t, 0)
	j.head.End(0, "")
	j.says("no rank has made a step", "python -I")
	j = newJob(t, 0)
	j.hello(1, 3)
	j.head.End(0, "")
	j.says("there is nothing of ranks 0, 2 of 3", "star watch --to")
	j = newJob(t, 1)
	for n := range int64(20) {
		j.step(n, 1, nil)
	}
	j.says("with one rank no rank is slower than another")
}

func TestParseRow(t *testing.T) {
	for text, want := range map[string]string{
		`{"k":"step","v":2,"rank":0,"pid":1,"step":3,"took":0.5,"wait":0.1}`:              "",
		`{"k":"hello","v":2,"rank":3,"world":4,"pid":1,"script":"\u001b[2Jx<script>.py"}`: "",
		`{"k":"step","v":3,"rank":0,"step":3,"took":0.5}`:                                 "version 3",
		`{"k":"step","v":2,"rank":0,"step":3,"took":0.5,"wait":0.6}`:                      "0.6 waiting",
		`{"k":"step","v":2,"rank":0,"step":3,"took":-1}`:                                  "a time of -1",
		`{"k":"step","v":2,"rank":-1,"step":3,"took":1}`:                                  "rank -1",
		`{"k":"hello","v":2,"rank":4,"world":4}`:                                          "rank 4 of 4",
		`{"k":"hello","v":2,"rank":0,"world":4,"momentum":1.5}`:                           "momentum 1.5",
		`{"k":"stop","v":2}`:   `kind "stop"`,
		`{"k":"note","v":2} x`: "more than one",
		`{"k":"note","v":2,"text":"` + strings.Repeat("x", MaxRow) + `"}`: "at most",
		`step`: "invalid",
	} {
		r, err := ParseRow([]byte(text))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60s: %v, want %q", text, err, want)
		case strings.ContainsRune(r.Script, '\x1b'):
			t.Errorf("%q would move a cursor", r.Script)
		}
	}
}

func FuzzParseRow(f *testing.F) {
	f.Add([]byte(`{"k":"step","v":1,"rank":0,"pid":1,"step":3,"took":0.5,"load":0.1,"wait":0.1,"cpu":0.2,"samples":32,"dropped":1,"telemetry":{"steal":0.5}}`))
	f.Add([]byte(`{"k":"hello","v":1,"rank":0,"world":1,"pid":1,"how":"DDP","script":"x","python":"3","torch":"2","optimizer":"SGD","momentum":0.9,"params":5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := NewHead(runlog.NewWriter(nil), runlog.Start{}, func(string) {})
		for r := range 2 {
			h.Take(Row{Kind: "hello", Rank: r, World: 2}, 0)
		}
		r, err := ParseRow(b)
		if err != nil {
			return
		}
		for i := range 20 { // whatever passes, the head bears
			for rank := range 2 {
				q := r
				q.PID, q.Host, q.Rank, q.Step = 0, "", rank, int64(i)
				h.Take(q, time.Duration(i)*time.Second)
			}
			h.Take(r, time.Duration(i)*time.Second)
		}
		h.End(time.Minute, "")
	})
}

// Rows with a step that is far from those of the others are forgotten, as many as they are, and end nothing.
func TestOddSteps(t *testing.T) {
	j := newJob(t, 2)
	for n := range int64(20) {
		j.step(n, 2, nil)
	}
	for _, step := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 40, 1 << 53} {
		j.head.Take(Row{Kind: "step", Rank: 0, PID: j.pid, Host: "node-a", Step: step, Took: .1}, j.now)
	}
	for n := range int64(3 * behind) {
		j.head.Take(Row{Kind: "step", Rank: 0, PID: j.pid, Host: "node-a", Step: 1<<50 + n, Took: .1}, j.now)
	}
	if n := len(j.head.steps); n > behind {
		t.Errorf("%d incomplete steps are kept", n)
	}
	for n := int64(20); n < 40; n++ {
		j.step(n, 2, nil)
	}
	if j.head.version != 40 {
		t.Errorf("%d steps are complete, want 40", j.head.version)
	}
	j.now += time.Minute
	j.pid += 10 // all are started again
	j.hello(0, 2)
	j.hello(1, 2)
	j.head.Take(Row{Kind: "step", Rank: 0, PID: j.pid, Host: "node-a", Step: math.MaxInt64, Took: .1}, j.now)
	j.says("rank 0", "step 9223372036854775807", "cannot be")
	for n := range int64(10) {
		j.step(n, 2, nil)
	}
	if j.head.version != 50 {
		t.Errorf("%d steps are complete after a new start, want 50", j.head.version)
	}
	for _, r := range j.head.ranks {
		if len(r.waits) > behind {
			t.Errorf("%d rows of rank %d wait", len(r.waits), r.Rank)
		}
	}
}

// A row that comes late by milliseconds is no jump of a clock: not for the head, and not in the log that it writes.
func TestLateRows(t *testing.T) {
	j := newJob(t, 2)
	for n := range int64(100) {
		j.now += 100 * time.Millisecond
		late := time.Duration(0)
		if n%3 == 0 {
			late = 30 * time.Millisecond
		}
		for r := range 2 {
			j.head.Take(Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: .1, Wait: .09, Samples: 32}, j.now+late)
		}
	}
	j.head.End(j.now, "")
	if err := j.head.log.Flush(); err != nil {
		t.Fatal(err)
	}
	j.saysNot("clock")
	last := map[int]float64{}
	for line := range strings.Lines(j.log.String()) {
		var rec struct {
			Type   string
			Worker int
			At     float64
			T      float64
		}
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		if rec.Type != "record" {
			continue
		}
		if rec.At < last[rec.Worker] {
			t.Errorf("rank %d: %v after %v", rec.Worker, rec.At, last[rec.Worker])
		}
		last[rec.Worker] = rec.At
	}
	if len(last) != 2 {
		t.Errorf("records of %d ranks", len(last))
	}
}
