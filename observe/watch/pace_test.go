package watch

import (
	"bytes"
	"testing"

	"star/runlog"
)

// Ranks that all load slowly have no slow one among them: the job is slower than it was. The log has it, too.
func TestSlowTogether(t *testing.T) {
	j := newJob(t, 3)
	for n := range int64(3000) {
		load := map[int]float64{}
		if n >= 600 && n < 1400 {
			load = map[int]float64{0: 0.05, 1: 0.05, 2: 0.05}
		}
		j.step(n, 3, load)
	}
	j.says("the job is 2.", "x slow since 2", "3 workers together on node-a: slow data: load 50 ms, before 0 ms")
	j.says("the job is as fast as before again")
	j.saysNot("rank 0 on node-a is")
	if err := j.head.log.Flush(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	if _, err := runlog.Read(bytes.NewReader(j.log.Bytes()), "log", func(l runlog.Line) error {
		if s, ok := l.Entry.(runlog.Slowdown); ok {
			if lines++; s.Part != "load" || s.Cause != "data" {
				t.Errorf("%+v", s)
			}
		}
		return nil
	}); err != nil || lines != 2 {
		t.Errorf("%d lines, %v", lines, err)
	}
}
