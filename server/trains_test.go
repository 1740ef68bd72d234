package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"star/coord/session"
	"star/internal/settings"
	"star/job/options"
	"star/transport/wire"
)

// serverTold is a star-ps that was given these flags.
func serverTold(t *testing.T, flags ...string) *server {
	t.Helper()
	job := new(settings.Job)
	cmd := &cobra.Command{Use: "star-ps", RunE: func(*cobra.Command, []string) error { return nil }}
	job.Bind(cmd, settings.ForServer)
	cmd.SetArgs(flags)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Load(nil); err != nil {
		t.Fatal(err)
	}
	c := Config{Job: options.JobOf(job), Training: Training{Model: job.Model, Dataset: job.Dataset}, Policy: Policy{Shares: job.Shares}}
	c.Settings = func(_ *Config, t session.Told) (json.RawMessage, error) {
		j := *job
		j.Model, j.Dataset, j.Seed = t.Model, t.Dataset, t.Seed
		return json.Marshal(j)
	}
	return &server{job: &c}
}

// What star-ps was told workers are held to; what it was not told they say, and that is what was trained.
func TestFits(t *testing.T) {
	say := func(model, dataset string, seed uint64, batch int) session.Enrolment {
		return session.Enrolment{Data: "digits/train", Told: &session.Told{Model: model, Dataset: dataset, Seed: seed, Batch: batch}}
	}
	ours := wire.Hello{Model: "softmax, 7850 parameters in 2 tensors, features [1 28 28], 10 classes"}
	for _, c := range []struct {
		flags   string
		hello   wire.Hello
		worker  session.Enrolment
		refused string // both values; empty: let in
		vouched bool
		trains  session.Told
	}{
		{"", ours, say("softmax", "digits:n=400", 5, 0), "", false, session.Told{Model: "softmax", Dataset: "digits:n=400", Seed: 5, Batch: 32}},
		{"--model=lenet", ours, say("softmax", "digits", 1, 0), "has --model softmax, the job lenet (--model of star-ps)", false, session.Told{}},
		{"--model=lenet", ours, say("lenet:width=1", "digits", 1, 0), "", true, session.Told{Model: "lenet", Dataset: "digits", Seed: 1, Batch: 32}},
		{"--model=lenet", ours, say("lenet:width=2", "digits", 1, 0), "has --model lenet:width=2, the job lenet", false, session.Told{}},
		{"--model=softmax --seed=1", ours, say("softmax", "digits", 5, 0), "has --seed 5, the job 1", false, session.Told{}},
		{"--seed=5", ours, say("softmax", "digits", 5, 0), "", true, session.Told{Model: "softmax", Dataset: "digits", Seed: 5, Batch: 32}},
		{"--dataset=digits", ours, say("softmax", "digits:n=400", 1, 0), "has --dataset digits:n=400, the job digits", false, session.Told{}},
		{"--dataset=digits", ours, say("softmax", "digits:seed=1,n=12000", 1, 0), "", true, session.Told{Model: "softmax", Dataset: "digits", Seed: 1, Batch: 32}},
		{"--dataset=mnist:/here", ours, say("softmax", "mnist:/there", 1, 0), "", true, session.Told{Model: "softmax", Dataset: "mnist:/here", Seed: 1, Batch: 32}},
		{"--dataset=mnist:/here", ours, say("softmax", "digits", 1, 0), "has --dataset digits, the job mnist:/here", false, session.Told{}},
		{"--batch=64", ours, say("lenet", "digits", 1, 0), "", false, session.Told{Model: "lenet", Dataset: "digits", Seed: 1, Batch: 64}},
		{"--batch=64", ours, say("lenet", "digits", 1, 32), "has --batch 32, the job 64 (--batch of star-ps)", false, session.Told{}},
		{"", ours, say("lenet", "digits", 1, 64), "has --batch 64, the job 32 (default of star-ps)", false, session.Told{}},

		// Of members that do not say which settings they have, as much as can be seen is checked.
		{"--model=lenet", ours, session.Enrolment{Data: "digits/train"}, "softmax", false, session.Told{}},
		{"--model=softmax", ours, session.Enrolment{Data: "digits/train"}, "", false, session.Told{Model: "softmax", Dataset: "digits", Seed: 1, Batch: 32}},
		{"--dataset=digits:n=400", ours, session.Enrolment{Data: "mnist/train"}, "has --dataset mnist/train, the job digits:n=400", false, session.Told{}},
		{"--model=lenet --seed=3", wire.Hello{Model: "python"}, session.Enrolment{Data: "none"}, "", false, session.Told{Model: "python", Dataset: "none", Seed: 3, Batch: 32}},
	} {
		s := serverTold(t, strings.Fields(c.flags)...)
		vouched, err := s.fits(c.hello, c.worker)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%q, worker %+v: %v; want %q", c.flags, c.worker, err, c.refused)
			}
			continue
		}
		if err != nil || vouched != c.vouched {
			t.Errorf("%q, worker %+v: vouched %v, %v", c.flags, c.worker, vouched, err)
		}
		got := s.trains(c.hello, c.worker)
		if got != c.trains {
			t.Errorf("%q, worker %+v: trains %+v, want %+v", c.flags, c.worker, got, c.trains)
		}
		text, err := s.trained(got, session.Enrolment{})
		var config struct {
			Model, Dataset string
			Seed           uint64
			Batch          int
		}
		if err == nil {
			err = json.Unmarshal(text, &config)
		}
		if err != nil || config.Model != got.Model || config.Dataset != got.Dataset || config.Seed != got.Seed || config.Batch != got.Batch {
			t.Errorf("%+v is written as %+v, %v", got, config, err)
		}
	}
}
