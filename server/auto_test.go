package server

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star"
	"star/job"
	"star/straggler"
)

// trained is a small model, as star predictor train writes it.
func trained(t *testing.T) []byte {
	t.Helper()
	h := straggler.NewHistory(star.Record.Busy, straggler.Times, 0)
	h.Begin(2)
	for step := range int64(80) {
		for w := range star.Worker(2) {
			h.Observe(star.Record{Worker: w, Step: step, Compute: time.Duration(100+step%3) * time.Millisecond, Samples: 8})
		}
	}
	tr, err := straggler.NewTrainer(h, straggler.TrainConfig{Hidden: 4, Epochs: 1, Random: rand.New(rand.NewPCG(1, 0))})
	if err != nil {
		t.Fatal(err)
	}
	for tr.Step() {
	}
	b, err := tr.Best().AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A model or a decider that cannot be used is named with the reason, and the job does without; one that is not there is
// an error.
func TestPilotGoesOnWithoutDamagedFiles(t *testing.T) {
	model := trained(t)
	flipped := append([]byte(nil), model...)
	flipped[len(flipped)/2] ^= 4
	older := append([]byte(nil), model...)
	older[8]++
	at := filepath.Join(t.TempDir(), "file")
	for _, c := range []struct {
		name  string
		bytes []byte
		job   Policy
		says  string // "": it can be used
	}{
		{"a model", model, Policy{Predictor: at}, ""},
		{"a model of which the end is missing", model[:len(model)-100], Policy{Predictor: at}, "the file is damaged"},
		{"a model with a bit flipped", flipped, Policy{Predictor: at}, "the file is damaged"},
		{"a model of a later version", older, Policy{Predictor: at}, "train it again"},
		{"an empty model", nil, Policy{Predictor: at}, "0 bytes are too few"},
		{"a decider as a model", []byte(`{"format":"star decider","version":1}`), Policy{Predictor: at}, "not a model of star predictor train"},
		{"a model as a decider", model, Policy{Decider: at}, "its first line is not that of a star decider"},
		{"a decider of another checksum", []byte(`{"format":"star decider","version":1,"sha256":"00"}` + "\n{}\n"), Policy{Decider: at}, "its checksum is wrong"},
	} {
		if err := os.WriteFile(at, c.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := NewPilot(&Config{Job: job.Job{Workers: 2, Batch: 8}, Policy: c.job})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		says := strings.Join(p.Notices(), "\n")
		if (says == "") != (c.says == "") || !strings.Contains(says, c.says) || says != "" && !strings.Contains(says, at+": ") {
			t.Errorf("%s: says %q, want %q", c.name, says, c.says)
		}
	}
	for _, policy := range []Policy{{Predictor: at + "x"}, {Decider: at + "x"}} {
		if _, err := NewPilot(&Config{Job: job.Job{Workers: 2, Batch: 8}, Policy: policy}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file that is not there: %v", err)
		}
	}
}
