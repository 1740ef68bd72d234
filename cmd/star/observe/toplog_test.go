package observe

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star"
	"star/coord"
	"star/internal/exitcode"
	"star/runlog"
)

// star top shows a job of star watch from its run log: ranks, rates, and the slow one until it recovers.
func TestTopOfALog(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	log, now := runlog.NewWriter(f), ms(0)
	log.Write(0, runlog.Start{Format: 1, Program: "star test", Job: "watch", Config: json.RawMessage(`{"arch":"allreduce","mode":"ssgd","watched":"DDP over gloo"}`)})
	log.Write(ms(1), runlog.Join{Worker: 1, Peer: "node-b"})
	log.Write(ms(2), runlog.Train{Workers: 2, Model: "train.py", Plan: "ssgd", Params: 10})
	for step := range int64(4) {
		for w := range star.Worker(2) {
			now += ms(50)
			r := star.Record{Worker: w, Step: step, Basis: step, At: now, Load: ms(10), Compute: ms(30), Push: ms(60), Samples: 8, Loss: 1, Norm2: 1}
			log.Record(now, &runlog.Record{Record: r, Start: -1})
		}
		now += ms(1)
		log.Write(now, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: []star.Worker{0, 1}, Staleness: []int64{0, 0}, Samples: 16 * (step + 1)})
	}
	log.Write(now, runlog.Verdict{Worker: 1, Event: "slow", Slowdown: 2.5, Cause: "data"})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}

	var text bytes.Buffer
	status := new(logStatus)
	raw, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := runlog.NewTail(raw, "log").Next(status.line); err != nil {
		t.Fatal(err)
	}
	w := status.Workers[1]
	if status.Phase != "training" || status.Version != 4 || len(status.Workers) != 2 || w.Peer != "node-b" || w.Step != 3 || w.Slowdown != 2.5 || w.Cause != "data" || w.Rate != 80 ||
		status.Rate < 157 || status.Rate > 160 {
		t.Errorf("%+v", status.Status)
	}
	if err := status.line(runlog.Line{T: now, Entry: runlog.Verdict{Worker: 1, Event: "recovered", Slowdown: 2.5}}); err != nil || status.Workers[1].Slowdown != 0 {
		t.Errorf("%v, %+v", err, status.Workers[1])
	}

	for event, want := range map[string][3]string{"begun": {"hang: 1 of 2 ranks waits", "waiting", "missing"}, "over": {"", "computing", "computing"}} {
		err := status.line(runlog.Line{T: now, Entry: runlog.Hang{Event: event, Missing: []star.Worker{1}, Text: "1 of 2 ranks waits"}})
		if got := [3]string{status.Slowdown, status.Workers[0].State, status.Workers[1].State}; err != nil || got != want {
			t.Errorf("%s: %v, %q", event, err, got)
		}
	}

	end, err := os.OpenFile(f.Name(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tail := runlog.NewWriter(end)
	tail.Write(0, runlog.Summary{})
	if err := tail.Close(); err != nil {
		t.Fatal(err)
	}
	if err := topLog(t.Context(), dir, time.Millisecond, &text, true); err != nil {
		t.Fatal(err)
	}
	var st coord.Status
	if err := json.Unmarshal(text.Bytes(), &st); err != nil || st.Phase != "over" || st.Workers[1].Slowdown != 2.5 {
		t.Errorf("%v: %s", err, text.String())
	}
	err = topLog(t.Context(), filepath.Join(dir, "other"), time.Millisecond, &text, false)
	if code, ok := err.(interface{ ExitCode() int }); !ok || code.ExitCode() != exitcode.Missing || !strings.Contains(err.Error(), "the folder of star watch") {
		t.Errorf("%v", err)
	}
}
