package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"star"
	"star/internal/exitcode"
)

func TestApart(t *testing.T) {
	seen := func(rank int, cpu float64, set ...any) Seen {
		s := Seen{Rank: rank, PID: 100 + rank, CPU: cpu}
		for i := 0; i < len(set); i += 2 {
			s.Set(set[i].(star.Metric), set[i+1].(float64))
		}
		return s
	}
	still := seen(1, 0.9)
	still.Stopped = 0.4
	disk := seen(1, 0.9)
	disk.Disk = 0.3
	for _, c := range []struct {
		all  []Seen
		want []string
	}{
		{nil, nil},
		{[]Seen{seen(-1, 1)}, nil},
		{[]Seen{seen(0, 0.9), seen(1, 0.8), seen(2, 1)}, nil},
		{[]Seen{seen(0, 0.9), still, seen(2, 0.9)}, []string{"rank 1 was stopped by a signal or a debugger 40 % of the time, the others at most 0 %"}},
		{[]Seen{seen(0, 0.9), disk, seen(2, 0.9)}, []string{"rank 1 waits for a disk 30 %"}},
		{[]Seen{seen(0, 0.9), seen(1, 0.4, star.Throttled, 0.5, star.RunDelay, 0.2), seen(2, 0.9)}, []string{"rank 1 is held back by the quota of its control group 50 %"}},
		{[]Seen{seen(0, 0.9, star.RunDelay, 0.02), seen(1, 0.4, star.RunDelay, 0.5)}, []string{"rank 1 waits for a processor that others have 50 % of the time, the others at most 2 %"}},
		{[]Seen{seen(0, 0.9, star.RunDelay, 0.3), seen(1, 0.9, star.RunDelay, 0.4)}, []string{"every process waits for a processor, at least 30 %"}},
		{[]Seen{seen(0, 0.9, star.GPUClock, 1900.0), seen(1, 0.9, star.GPUClock, 900.0), seen(2, 0.9, star.GPUClock, 1800.0)}, []string{"rank 1 has a slower GPU now: 900 MHz, the others at least 1800 MHz"}},
		{[]Seen{seen(0, 0.2), seen(1, 0.9), seen(2, 0.3)}, []string{"rank 1 uses more of a processor (90 %) than the others (at most 30 %): they may be waiting for it"}},
		{[]Seen{seen(0, 0.9), seen(1, 0.3), seen(2, 0.8)}, []string{"rank 1 uses less of a processor (30 %) than the others (at least 80 %): it sleeps"}},
		{[]Seen{seen(0, 0.9), seen(1, 0.3)}, []string{"rank 0 uses more"}}, // of two one thing is said once
		{[]Seen{seen(0, 0.01), seen(1, 0.1), seen(2, 0.01)}, nil},
	} {
		got := Apart(c.all)
		ok := len(got) == len(c.want)
		for i := range got {
			ok = ok && strings.HasPrefix(got[i].Text, c.want[i]) && strings.HasPrefix(got[i].Text, got[i].Key)
		}
		if !ok {
			t.Errorf("%v: %q, want %q", c.all, got, c.want)
		}
	}
}

// Ranks are found below a process, and followed until they are over.
func TestAttach(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what other processes do is read from /proc")
	}
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip(err)
	}
	ranks := make([]*exec.Cmd, 3)
	for i := range ranks {
		ranks[i] = exec.Command(python, "-c", "import time; time.sleep(600)")
		ranks[i].Env = append(os.Environ(), fmt.Sprintf("RANK=%d", i), "WORLD_SIZE=3")
		if err := ranks[i].Start(); err != nil {
			t.Fatal(err)
		}
		defer ranks[i].Process.Kill()
	}
	ranks[1].Process.Signal(syscall.SIGSTOP)
	o, err := Attach(os.Getpid(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said []string
	o.Run(ctx, func(text string) {
		said = append(said, text)
		if len(said) == 1 {
			time.AfterFunc(10*look, func() {
				for _, r := range ranks {
					r.Process.Kill()
					r.Wait()
				}
			})
		}
	})
	if ctx.Err() != nil {
		t.Error("the ranks are over, and it goes on")
	}
	all := strings.Join(said, "\n")
	for _, want := range []string{"from outside: rank 0, rank 1, rank 2.", "rank 2 (process ", "rank 1 was stopped by a signal or a debugger"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

func TestAttachRefuses(t *testing.T) {
	for pid, code := range map[int]int{-1: exitcode.Usage, 1 << 30: exitcode.Missing} {
		_, err := Attach(pid, nil)
		if e := (*attachError)(nil); !errors.As(err, &e) || e.ExitCode() != code {
			t.Errorf("process %d: %v, want exit code %d", pid, err, code)
		}
	}
}
