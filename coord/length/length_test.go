package length

import (
	"cmp"
	"math"
	"strings"
	"testing"

	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// The job ends at the first of its limits, rounded to a whole batch for a program that drops incomplete ones.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		job  Job
		data session.Enrolment
		want int64
	}{
		{Job{Steps: 3}, session.Enrolment{}, 24},
		{Job{Steps: 3, Samples: 7}, session.Enrolment{}, 7},
		{Job{Epochs: 0.51}, session.Enrolment{}, 21},
		{Job{Epochs: 0.51}, session.Enrolment{DropLast: true}, 20},
		{Job{Steps: 1 << 62}, session.Enrolment{DropLast: true}, math.MaxInt64},
		{Job{Steps: 3}, session.Enrolment{Exchange: true}, math.MaxInt64},
	} {
		c.job.Batch, c.job.MaxWorkers, c.job.Workers, c.job.Plan = 4, 2, 2, modes.SSGD(2)
		c.data.Samples = 40
		c.job.Enrolled = &c.data
		if got := c.job.Limit(c.job.Plan); got != c.want {
			t.Errorf("%+v, %+v: %d, want %d", c.job, c.data, got, c.want)
		}
	}
	j := Job{Steps: 3, Batch: 4, MaxWorkers: 2, Workers: 2, Plan: modes.SSGD(2), Enrolled: &session.Enrolment{Samples: 40}}
	if j.Expected(math.MaxInt64) != 24 || j.Expected(9) != 9 {
		t.Errorf("expected: %d and %d", j.Expected(math.MaxInt64), j.Expected(9))
	}
}

// Warnings report what the result does not show; a job of programs logs its length once.
func TestNotes(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(*Job)
		used, limit int64
		want        []string
		set         bool
	}{
		{"an ordinary job", func(*Job) {}, 0, 4000, nil, false},
		{"nothing is left", func(*Job) {}, 4000, 4000, []string{"nothing is left to train"}, false},
		{"a large batch", func(j *Job) { j.Enrolled.Samples = 3 }, 0, 4000, []string{"larger than the data set of 3"}, false},
		{"few rounds", func(*Job) {}, 0, 72, []string{"over after 9 rounds"}, false},
		{"few, as asked for", func(j *Job) { j.Steps = 9 }, 0, 72, nil, false},
		{"local steps", func(j *Job) { j.Plan.Local = 5 }, 0, 360, []string{"5 local steps of each worker"}, false},
		{"a program", func(j *Job) { j.Programs, j.Enrolled.Batch, j.By = true, 4, "--epochs" }, 0, 4000, nil, true},
		{"that agrees", func(j *Job) { j.Programs, j.Enrolled.Batch, j.By, j.Enrolled.Epochs = true, 4, "--epochs", 100.1 }, 0, 4000, nil, true},
		{"that says otherwise", func(j *Job) { j.Programs, j.Enrolled.Batch, j.By, j.Enrolled.Epochs = true, 4, "--epochs", 101 }, 0, 4000,
			[]string{"100 epochs (--epochs), but the program has 101"}, false},
		{"a default", func(j *Job) { j.Programs, j.Enrolled.Batch = true, 4 }, 0, 4000, []string{"100 epochs, a default"}, false},
		{"a program that ends the job", func(j *Job) { j.Programs, j.Enrolled.Batch = true, 4 }, 0, math.MaxInt64, nil, false},
		{"a built-in model", func(j *Job) { j.Programs = true }, 0, 4000, nil, false},
	} {
		j := Job{Batch: 4, MaxWorkers: 2, Workers: 2, Plan: modes.SSGD(2), Enrolled: &session.Enrolment{Samples: 40}}
		c.change(&j)
		notes := j.Notes(c.used, c.limit, j.Plan)
		ok := len(notes) == len(c.want)
		for i := range c.want {
			ok = ok && strings.Contains(notes[i], c.want[i])
		}
		if _, set := j.Set(c.used, c.limit); !ok || set != c.set {
			t.Errorf("%s: %q, want %q; set %v", c.name, notes, c.want, set)
		}
	}
}

// A worker may train on an epoch between two outer steps, and on no more; the mean of local steps has no such bound.
func TestOutward(t *testing.T) {
	for mode, says := range map[string]string{
		"ssgd local=24 outer=nesterov":                 "",
		"ssgd local=25 outer=nesterov":                 "more than the epoch of 96: use local=24 or less",
		"ssgd local=12 outer=nesterov shares=4,10":     "needs 120 samples of each worker between two outer steps, more than the epoch of 96: use local=9 or less",
		"ssgd local=100":                               "",
		"ssgd local=97samples outer=nesterov":          "",
		"ssgd local=100samples outer=nesterov":         "use local=96samples or less",
		"ssgd local=1 outer=nesterov shares=200,2":     "use local=1 or less",
		"asgd local=1000 steps=speed outer=delayed":    "use local=24 or less",
		"ssgd local=1000000 outer=lookahead(0.5,0.25)": "local=1000000 needs 4000000 samples",
	} {
		p, err := modes.Parse(mode, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := Outward(p, 4, 96); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", mode, err, says)
		}
		if err := Outward(p, 4, 0); err != nil {
			t.Errorf("%s of an unknown epoch: %v", mode, err)
		}
	}
}

func TestFragments(t *testing.T) {
	p, err := modes.Parse("ssgd local=8 outer=nesterov fragments=4", 2)
	if err != nil {
		t.Fatal(err)
	}
	shards := []wire.ShardInfo{{From: 0, To: 4}, {Shard: 1, From: 4, To: 7}}
	if err := Fragments(p, 7, shards[:1]); err != nil {
		t.Error(err)
	}
	if err := Fragments(p, 7, shards); err == nil || !strings.Contains(err.Error(), "shard 1 has 3 parameters, which cannot be cut into 4 fragments") {
		t.Error(err)
	}
	if err := Fragments(p, 3, nil); err == nil || !strings.Contains(err.Error(), "the model has 3 parameters, which cannot be cut into 4 fragments") {
		t.Error(err)
	}
	for _, shards := range [][]wire.ShardInfo{shards, nil} {
		if err := cmp.Or(Fragments(modes.SSGD(2), 7, shards), Fragments(p, 4, nil)); err != nil {
			t.Error(err)
		}
	}
}
