package sched

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"star/runlog"
	"star/sched/estimate"
)

// Epochs of a run log are those that were seen from their beginning to their end, an update may end several, and what
// comes before and after them is counted apart.
func TestRunEpochs(t *testing.T) {
	begin := []runlog.Entry{runlog.Start{Format: runlog.MaxFormat, Program: "star"}}
	for i, c := range []struct {
		from    int64   // version
		updates []int64 // samples after the update of each second, from second 3 on; training begins at 2
		done    bool
		want    estimate.EpochTimes
		wrong   string
	}{
		{updates: []int64{60, 100, 180, 200, 230}, want: estimate.EpochTimes{Before: 2, Epochs: []float64{2, 2}}},
		{updates: []int64{60, 100, 180, 200}, done: true, want: estimate.EpochTimes{Before: 2, Epochs: []float64{2, 2}, After: .5}},
		{updates: []int64{250}, want: estimate.EpochTimes{Before: 2, Epochs: []float64{1, 0}}},
		// 150 to 200 is the rest of one
		{from: 7, updates: []int64{150, 190, 210, 250, 310}, want: estimate.EpochTimes{Before: 2, Epochs: []float64{2}}},
		{from: 7, updates: []int64{150, 190, 210}, wrong: "no epoch is over in it"},
		{updates: []int64{60, 99}, wrong: "no epoch is over in it"},
	} {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "run.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		log := runlog.NewWriter(f)
		for _, e := range begin {
			log.Write(0, e)
		}
		log.Write(time.Second, runlog.Join{})
		log.Write(2*time.Second, runlog.Train{Workers: 1, Plan: "ssgd", Epoch: 100, Version: c.from})
		for k, samples := range c.updates {
			log.Write(time.Duration(3+k)*time.Second, runlog.Fire{Seq: int64(k + 1), Version: c.from + int64(k+1), Samples: samples})
		}
		if c.done {
			log.Write(time.Duration(len(c.updates)+2)*time.Second+time.Second/2, runlog.Checkpoint{ID: "c"})
			log.Write(0, runlog.Summary{})
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := epochTimes(dir)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%d: %v, want %s", i, err, c.wrong)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, []estimate.EpochTimes{c.want}) {
			t.Errorf("%d: %v, %v; want %v", i, got, err, c.want)
		}
	}
}
