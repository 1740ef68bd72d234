package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star"
	"star/cmd/internal/cli"
	"star/cmd/tests/jobtest"
	"star/observe/explain"
	"star/observe/web"
	"star/observe/whatif"
	"star/runlog"
	"star/runlog/parts"
	"star/sched/estimate"
)

// The job of the log with gaps makes rounds of ssgd, each of a second with an update at its end. Between two of its
// first rounds it says that a worker is slow.
const (
	gapWorkers, gapRounds, gapBatch = 4, 1500, 8
	gapSlow, gapFast                = 20, 40
)

// gapLog writes the log of that job as a coordinator does, with so little room that the first lines are dropped, and
// returns its path.
func gapLog(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := runlog.NewWriter(parts.NewRotating(f, path, parts.LeastMax))
	config := `{"arch":"ps","mode":"auto","workers":4,"batch":8,"optimizer":"sgd"}`
	w.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star test", Job: "job", Time: time.Unix(1e9, 0),
		Config: json.RawMessage(config)})
	all := make([]star.Worker, gapWorkers)
	for i := range all {
		all[i] = star.Worker(i)
		w.Write(time.Millisecond, runlog.Join{Worker: all[i], Peer: "test"})
	}
	const round = gapWorkers * gapBatch
	w.Write(time.Second, runlog.Train{Workers: gapWorkers, Shards: 1, Params: 1000, Epoch: 10 * round,
		Limit: gapRounds * round, Plan: "ssgd"})
	rng := rand.New(rand.NewPCG(1, 2))
	at := time.Second
	for step := range int64(gapRounds) {
		for i, worker := range all {
			r := runlog.Record{Start: step*round + int64(i)*gapBatch, Record: star.Record{
				Worker: worker, Step: step, Basis: step, Samples: gapBatch, Load: time.Duration(rng.IntN(1e6)),
				Compute: 900 * time.Millisecond, Push: time.Duration(rng.IntN(1e6)), Wait: time.Duration(rng.IntN(1e8)),
				Loss: rng.Float64(), Norm2: rng.Float64()}}
			for m := range star.NumMetrics / 2 { // numbers that cannot be compressed
				r.Telemetry.Set(m, rng.Float64())
			}
			r.At = at + time.Duration(950+i)*time.Millisecond
			w.Record(r.At, &r)
		}
		at += time.Second
		w.Write(at, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: all, Staleness: make([]int64, gapWorkers),
			Samples: round * (step + 1)})
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil {
			t.Fatal(err)
		} else if info.Size() > parts.LeastMax/8 { // a part is due: the bound is of a compressor that keeps up
			time.Sleep(5 * time.Millisecond)
		}
		if step == gapSlow || step == gapFast {
			v := runlog.Verdict{Worker: 1, Event: "slow", Step: step, Since: gapSlow - 5, Slowdown: 2, Cause: "unknown"}
			if step == gapFast {
				v.Event, v.Until = "recovered", step-5
			}
			w.Write(at, v)
		}
		if step == gapSlow {
			w.Write(at, runlog.Plan{Plan: "ssgd", From: "ssgd", Why: "test", After: 1})
		}
	}
	w.Write(at, runlog.Checkpoint{ID: "c", Version: gapRounds})
	w.Write(0, runlog.Summary{Result: runlog.Result{Workers: gapWorkers, Updates: gapRounds, Samples: round * gapRounds,
		Wall: runlog.SecondsOf(at)}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if m := contents(t, path).Missing; m.From.Duration() < time.Second || m.Updates <= gapFast || m.Updates > gapRounds-100 {
		t.Fatalf("the log lacks %+v", m)
	}
	return path
}

// Every command that reads a run log says what a bounded one lacks, and what that means for its answer.
func TestCommandsSayWhatTheLogLacks(t *testing.T) {
	log := gapLog(t)
	dir := t.TempDir()
	missing := contents(t, log).Missing
	for _, c := range []struct {
		args  string // LOG: the log
		means string
		fails bool
	}{
		{"explain LOG", "samples and updates count, iterations and waits of that time do not", false},
		{"explain LOG --json", "samples and updates count, iterations and waits of that time do not", false},
		{"replay LOG", "no decision can be made again", true},
		{"replay LOG --json", "no decision can be made again", true},
		{"sim --from LOG", "the answer is of the updates after that", false},
		{"bench fidelity LOG", "only a whole run can be compared", true},
		{"plan --worth LOG", "the answer is of the last iterations", false},
		{"export LOG --csv " + filepath.Join(dir, "csv"), "the files do not have them either", false},
		{"report LOG", "the rate of that time is its mean", false},
		{"place --describe LOG", "the demands are those of the other iterations", false},
		{"predictor verdicts LOG", "the other records are used", false},
		{"predictor report LOG --epochs 1 --hidden 1", "the other records are used", false},
		{"predictor train LOG --epochs 1 --hidden 1 --out " + filepath.Join(dir, "model"), "the other records are used", false},
		{"decider train LOG --simulated 20 --out " + filepath.Join(dir, "decider"), "teach nothing", false},
		{"sched scaling LOG", "rates are those of the updates after that", false},
		{"sched estimate LOG --epochs 1000", "epochs that began before its end are left out", false},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "LOG", log))
		out, err := exec.Command(jobtest.Star(t), args...).CombinedOutput()
		if (err != nil) != c.fails {
			t.Errorf("star %s: %v\n%s", c.args, err, out)
		}
		lacks, _, _ := strings.Cut(missing.Means("|"), "|")
		_, rest, _ := strings.Cut(string(out), lacks)
		sentence, _, _ := strings.Cut(rest, ".")
		if !strings.Contains(sentence, c.means) || strings.Contains(rest, lacks) {
			t.Errorf("star %s does not say once %q:\n%s", c.args, lacks+"… "+c.means, out[:min(len(out), 4000)])
		}
	}
	for _, args := range []string{"sim --from LOG --json", "plan --worth LOG --json"} {
		out, err := exec.Command(jobtest.Star(t), strings.Fields(strings.ReplaceAll(args, "LOG", log))...).Output()
		var got struct{ Missing runlog.Missing }
		if err != nil || json.Unmarshal(out, &got) != nil || got.Missing != missing {
			t.Errorf("star %s: %v, missing %+v, want %+v\n%s", args, err, got.Missing, missing, out)
		}
	}
}

// contents reads a log, and passes its lines on.
func contents(t *testing.T, path string, each ...func(runlog.Line) error) runlog.Contents {
	t.Helper()
	f, err := cli.OpenRun(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := runlog.Read(f, path, func(l runlog.Line) error {
		for _, e := range each {
			if err := e(l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What commands compute of a log that lacks lines is true of what it has, and counts are those of the whole job.
func TestAnswersOfALogThatLacksLines(t *testing.T) {
	log := gapLog(t)
	told, run, page := explain.New(), whatif.New(log), web.NewState()
	read := contents(t, log, told.Add, run.Add, page.Line)
	lost := read.Missing.Updates

	if got := page.Totals().Updates; got != gapRounds {
		t.Errorf("metrics: %d updates", got)
	}

	s := told.Story(read)
	if s.Updates != gapRounds || s.Samples != gapRounds*gapWorkers*gapBatch {
		t.Errorf("explain: %d updates, %d samples", s.Updates, s.Samples)
	}
	if len(s.Episodes) != 1 {
		t.Fatalf("explain: %d episodes", len(s.Episodes))
	}
	since, until := (gapSlow+2)*time.Second, (gapFast+2)*time.Second
	if e := s.Episodes[0]; e.Since != since || e.Until != until || e.Action < 0 {
		t.Errorf("explain: slow from %v to %v, change %d; the job said %v to %v", e.Since, e.Until, e.Action, since, until)
	}

	var text strings.Builder
	if err := s.Text(&text, explain.View{}); err != nil {
		t.Fatal(err)
	}
	waited := time.Duration(0)
	for _, it := range s.Workers[0].Iterations {
		waited += it.Wait
	}
	known := s.Ended - read.Missing.To.Duration()
	if want := fmt.Sprintf(" %.0f %% ", 100*waited.Seconds()/known.Seconds()); !strings.Contains(text.String(), want) {
		t.Errorf("explain: w0 waited %s of the time that is known:\n%s", want, text.String())
	}

	r, err := run.Run(read)
	if err != nil {
		t.Fatal(err)
	}
	want := gapRounds - lost
	if r.Updates != want || r.Samples != want*gapWorkers*gapBatch || math.Abs(r.Took.Seconds()-float64(want)) > 1 {
		t.Errorf("what if: %d updates of %d samples in %v, want %d", r.Updates, r.Samples, r.Took, want)
	}
	again, err := r.Again()
	if off := again.Time.Seconds()/r.Took.Seconds() - 1; err != nil || math.Abs(off) > 0.01 {
		t.Errorf("what if: it took %v, simulated %v, %v", r.Took, again.Time, err)
	}

	b, err := exec.Command(jobtest.Star(t), "sched", "estimate", log, "--times").Output()
	if err != nil {
		t.Fatal(err)
	}
	epochs, err := estimate.ReadEpochTimes(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, took := range epochs[0].Epochs {
		if math.Abs(took-10) > 1e-6 {
			t.Fatalf("an epoch took %v s, want 10 (all: %v)", took, epochs[0].Epochs)
		}
	}
	var rows []struct {
		Workers int
		Rate    float64 `json:"samples_per_s"`
	}
	b, err = exec.Command(jobtest.Star(t), "sched", "scaling", log, "--json").Output()
	if err != nil || json.Unmarshal(b, &rows) != nil || len(rows) < gapWorkers {
		t.Fatalf("star sched scaling: %v\n%s", err, b)
	}
	if r := rows[gapWorkers-1]; r.Workers != gapWorkers || math.Abs(r.Rate/(gapWorkers*gapBatch)-1) > 0.01 {
		t.Errorf("scaling: %+v", r)
	}
}

// If lines are missing in the log of a job, its page counts its updates, draws the mean rate of the time without lines,
// and says so.
func TestPageOfALogThatLacksLines(t *testing.T) {
	log := gapLog(t)
	lost := contents(t, log).Missing
	view := exec.CommandContext(t.Context(), jobtest.Star(t), "view", log, "--listen", "127.0.0.1:0")
	out, err := view.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := view.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { view.Process.Kill(); view.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(line, "/ shows ")
	resp, err := http.Get(address + "/view.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Updates int64
		Lacks   string
		Series  struct {
			T, Rate     []float64
			From, Width float64
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	if v.Updates != gapRounds || !strings.HasPrefix(v.Lacks, "The log lacks ") {
		t.Errorf("%d updates; %q", v.Updates, v.Lacks)
	}
	for i, rate := range v.Series.Rate[:len(v.Series.Rate)-1] {
		if until := v.Series.From + float64(i+1)*v.Series.Width; i > 0 && math.Abs(rate/(gapWorkers*gapBatch)-1) > 0.3 {
			t.Errorf("until %v s %v samples/s, want %d; the log lacks %+v", until, rate, gapWorkers*gapBatch, lost)
		}
	}
}
