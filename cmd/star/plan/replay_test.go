package plan

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/cmd/internal/node"
	"star/coord"
	"star/internal/settings"
	"star/runlog"
)

// piloted is the log of a job that a controller pilots.
type piloted struct {
	*runlog.Writer
	t     *testing.T
	pilot coord.Pilot
	path  string
	told  int64
	plans []string
}

func pilotedLog(t *testing.T, pilot coord.Pilot, config string) *piloted {
	r := &piloted{t: t, pilot: pilot, path: filepath.Join(t.TempDir(), "run.jsonl")}
	f, err := os.Create(r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.Writer = runlog.NewWriter(f)
	r.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star test", Config: json.RawMessage(config)})
	return r
}

// tell writes a line and gives it to the controller; the controller's decisions follow the line.
func (r *piloted) tell(at time.Duration, e runlog.Entry) {
	r.Write(at, e)
	r.told++
	for _, say := range r.pilot.Tell(runlog.Line{T: at, Entry: e}) {
		if c := say.Change; c != nil {
			r.plans = append(r.plans, c.Plan.String())
			r.Write(at, runlog.Plan{Plan: c.Plan.String(), From: "ssgd", Why: c.Why, Predicted: runlog.Number(c.Predicted), After: r.told})
		}
	}
}

// ended is the file of the whole log.
func (r *piloted) ended() string {
	r.Write(time.Hour, runlog.Heard{After: r.told})
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
	return r.path
}

// Every setting of the job that its controller looks at is the replay's, too: whether workers may make steps of their
// own follows from six of them.
func TestReplayLocalSteps(t *testing.T) {
	job, err := settings.FromLog([]byte(`{"mode":"auto","workers":2}`))
	if err != nil {
		t.Fatal(err)
	}
	pilot, err := node.NewPilot(job)
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	w := pilotedLog(t, pilot, string(config))
	w.tell(0, runlog.Train{Workers: 2, Shards: 1, Model: "m", Params: 1000, Data: "d", Epoch: 1000, Limit: 1e6, Plan: "ssgd"})
	const ms = time.Millisecond
	for step := int64(0); step < 100 && len(w.plans) == 0; step++ { // nearly all of an iteration is the exchange
		at := time.Duration(step+1) * 100 * ms
		for rank := range star.Worker(2) {
			w.tell(at, runlog.Record{Record: star.Record{Worker: rank, Step: step, Basis: step, At: at, Compute: 2 * ms, Pull: 49 * ms, Push: 49 * ms, Samples: job.Batch}, Start: int64(job.Batch) * (2*step + int64(rank))})
		}
		w.tell(at, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: []star.Worker{0, 1}, Staleness: make([]int64, 2), Samples: int64(2*job.Batch) * (step + 1)})
		w.tell(at, runlog.Noise{Version: step + 1, Scale: 1e6})
	}
	if len(w.plans) == 0 || !strings.Contains(w.plans[0], "local=") {
		t.Fatalf("the plans are %q, want local steps", w.plans)
	}
	if r, err := replay(w.ended()); err != nil || len(r.Decisions) != 1 || !r.Decisions[0].Logged || !r.Decisions[0].Made {
		t.Errorf("%+v, %v", r, err)
	}
}

// A threshold that was changed while the job ran counts in the replay from the same line on.
func TestReplaySet(t *testing.T) {
	pilot, err := node.NewPilot(&settings.Job{Mode: "auto", Arch: "ps", Workers: 4, Batch: 32, Optimizer: "sgd"})
	if err != nil {
		t.Fatal(err)
	}
	w := pilotedLog(t, pilot, `{"mode":"auto","arch":"ps","workers":4,"batch":32,"optimizer":"sgd"}`)
	w.tell(0, runlog.Train{Workers: 4, Shards: 1, Model: "m", Params: 1000, Data: "d", Epoch: 1000, Limit: 1e6, Plan: "ssgd"})
	w.tell(0, runlog.Set{Name: "mode-gain", Value: 0.9, From: 0.07, Why: "star ctl"})
	const ms = time.Millisecond
	for step := range int64(40) { // worker 2 takes three times as long
		at := time.Duration(step+1) * 300 * ms
		if step == 20 {
			if len(w.plans) > 0 {
				t.Fatal("a mode was changed that saves less than the threshold")
			}
			w.tell(at-300*ms, runlog.Set{Name: "mode-gain", Value: 0.07, From: 0.9, Why: "star ctl"})
		}
		for rank := range star.Worker(4) {
			r := star.Record{Worker: rank, Step: step, Basis: step, At: at - 200*ms, Compute: 100 * ms, Wait: 200 * ms, Samples: 32}
			if rank == 2 {
				r.At, r.Compute, r.Wait = at, 300*ms, 0
			}
			w.tell(r.At, runlog.Record{Record: r, Start: 128*step + 32*int64(rank)})
		}
		w.tell(at, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: []star.Worker{0, 1, 2, 3}, Staleness: make([]int64, 4), Samples: 128 * (step + 1)})
		if len(w.plans) > 0 {
			break
		}
	}
	if len(w.plans) != 1 {
		t.Fatalf("%q are the changes of mode once the threshold is what it was, want one", w.plans)
	}
	path := w.ended()
	if r, err := replay(path); err != nil || len(r.Decisions) != 1 || !r.Decisions[0].Logged || !r.Decisions[0].Made {
		t.Errorf("%+v, %v", r, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(bytes.SplitAfter(text, []byte("\n")), func(l []byte) bool { return bytes.Contains(l, []byte(`"type":"set"`)) })
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := replay(path); err != nil || len(r.Decisions) < 2 {
		t.Errorf("without the changes of the threshold: %+v, %v", r, err)
	}
}
