package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"star"
	"star/cmd/internal/node"
	"star/internal/settings"
	"star/runlog"
)

// A threshold that was changed while the job ran counts in the replay from the same line on.
func TestReplaySet(t *testing.T) {
	pilot, err := node.NewPilot(&settings.Job{Mode: "auto", Arch: "ps", Workers: 4, Batch: 32, Optimizer: "sgd"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := runlog.NewWriter(f)
	told, plans := int64(0), 0
	tell := func(at time.Duration, e runlog.Entry) {
		w.Write(at, e)
		told++
		for _, r := range pilot.Tell(runlog.Line{T: at, Entry: e}) {
			if c := r.Change; c != nil {
				plans++
				w.Write(at, runlog.Plan{Plan: c.Plan.String(), From: "ssgd", Why: c.Why, Predicted: runlog.Number(c.Predicted), After: told})
			}
		}
	}
	w.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star test", Config: json.RawMessage(`{"mode":"auto","arch":"ps","workers":4,"batch":32,"optimizer":"sgd"}`)})
	tell(0, runlog.Train{Workers: 4, Shards: 1, Model: "m", Params: 1000, Data: "d", Epoch: 1000, Limit: 1e6, Plan: "ssgd"})
	tell(0, runlog.Set{Name: "mode-gain", Value: 0.9, From: 0.07, Why: "star ctl"})
	const ms = time.Millisecond
	for step := range int64(40) { // worker 2 takes three times as long
		at := time.Duration(step+1) * 300 * ms
		if step == 20 {
			if plans > 0 {
				t.Fatal("a mode was changed that saves less than the threshold")
			}
			tell(at-300*ms, runlog.Set{Name: "mode-gain", Value: 0.07, From: 0.9, Why: "star ctl"})
		}
		for rank := range star.Worker(4) {
			r := star.Record{Worker: rank, Step: step, Basis: step, At: at - 200*ms, Compute: 100 * ms, Wait: 200 * ms, Samples: 32}
			if rank == 2 {
				r.At, r.Compute, r.Wait = at, 300*ms, 0
			}
			tell(r.At, runlog.Record{Record: r, Start: 128*step + 32*int64(rank)})
		}
		tell(at, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: []star.Worker{0, 1, 2, 3}, Staleness: make([]int64, 4), Samples: 128 * (step + 1)})
		if plans > 0 {
			break
		}
	}
	if plans != 1 {
		t.Fatalf("%d changes of mode once the threshold is what it was", plans)
	}
	w.Write(time.Hour, runlog.Heard{After: told})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
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
