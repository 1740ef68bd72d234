package sched

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"star/sched/live"
	"star/sched/service"
)

// What star sched status says of deadlines, 100 s after the queue began: met, missed, still to come, and over.
func TestPrintSchedDeadlines(t *testing.T) {
	at := func(s float64) *float64 { return &s }
	is := func(b bool) *bool { return &b }
	since := time.Unix(1e9, 0)
	var out bytes.Buffer
	err := printSched(&out, service.Status{Since: since, Jobs: []service.JobStatus{
		{Job: "met", State: live.Done, Samples: 7, Of: 7, Deadline: at(90), Ended: at(60), Met: is(true)},
		{Job: "missed", State: live.Done, Samples: 7, Of: 7, Deadline: at(50), Ended: at(60), Met: is(false)},
		{Job: "declined", State: live.Declined, Of: 7, Deadline: at(50), Met: is(false)},
		{Job: "comes", State: live.Running, Workers: 1, Want: 2, Samples: 1, Of: 4, Deadline: at(160)},
		{Job: "over", State: live.Running, Of: 4, Deadline: at(95)},
		{Job: "none", State: live.Running, Of: 4},
	}}, since.Add(100*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	says := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) > 0 {
			says[f[0]] = strings.Join(f[1:], " ")
		}
	}
	for job, want := range map[string]string{
		"met": "done 0 100 % met, 30s before – –", "missed": "done 0 100 % missed by 10s – –", "declined": "declined 0 0 % – – –",
		"comes": "running 1 → 2 25 % in 1m0s – –", "over": "running 0 0 % 5s ago – –", "none": "running 0 0 % – – –",
	} {
		if says[job] != want {
			t.Errorf("%s: %q, want %q", job, says[job], want)
		}
	}
}

// Words of a job's program do not reach the terminal of a caller of star sched status with their control characters,
// and keep to their line.
func TestPrintSchedControlCharacters(t *testing.T) {
	var out bytes.Buffer
	err := printSched(&out, service.Status{Error: "\x1b[2J", Hosts: []service.HostStatus{{Host: "h", Slow: "\x1b]0;pwn\a"}}, Jobs: []service.JobStatus{{Job: "a", Of: 1, Why: "\x1b[2Jone\ntwo\tthree\u009b"}}}, time.Now())
	if err != nil || strings.ContainsAny(out.String(), "\x1b\a\u009b") || !strings.Contains(out.String(), "?[2Jone two three?") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
