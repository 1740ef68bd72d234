package chaos

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestMain is a clock where a test has started it as one.
func TestMain(m *testing.M) {
	if os.Getenv("STAR_TEST_CLOCK") == "" {
		os.Exit(m.Run())
	}
	for begun, n := time.Now(), 0; n < 5000; n++ {
		now := begun
		for range 1000 { // it looks at the clock all the time
			now = time.Now()
		}
		fmt.Println(now.UnixNano(), now.Sub(begun).Nanoseconds())
		time.Sleep(time.Millisecond)
	}
}

// The wall clock of another process jumps as requested, again and again, and back; the time that passes there is what
// it was.
func TestJump(t *testing.T) {
	if err := CanJump(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STAR_TEST_CLOCK=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	lines := bufio.NewScanner(out)
	read := func() (off, passed time.Duration) {
		var wall, since int64
		if !lines.Scan() {
			t.Fatalf("the clock has stopped: %v", cmd.Wait())
		}
		if _, err := fmt.Sscan(lines.Text(), &wall, &since); err != nil {
			t.Fatal(err)
		}
		return time.Duration(wall - time.Now().UnixNano()), time.Duration(since)
	}
	_, last := read()
	for _, off := range []time.Duration{time.Hour, -24 * time.Hour, 3 * time.Second, 0, -50 * 365 * 24 * time.Hour, 0} {
		begun := time.Now()
		if err := Jump(cmd.Process.Pid, off); err != nil {
			t.Fatal(err)
		}
		for got, passed := read(); ; got, passed = read() {
			if passed < last || passed > last+time.Minute {
				t.Fatalf("off by %v: %v have passed, %v before", off, passed, last)
			}
			if last = passed; (got - off).Abs() < time.Second {
				break
			} else if time.Since(begun) > 30*time.Second {
				t.Fatalf("off by %v, want %v", got, off)
			}
		}
	}
	if err := Jump(cmd.Process.Pid, 100*365*24*time.Hour); err == nil {
		t.Error("a jump of a hundred years")
	}
	if err := Jump(1<<22+1, time.Hour); err == nil {
		t.Error("the clock of nobody")
	}
}

// A process that another process has stopped is still stopped after the jump.
func TestJumpOfAStoppedProcess(t *testing.T) {
	if err := CanJump(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	for _, c := range []struct {
		first string
		still bool
	}{{"CONT", false}, {"STOP", true}} {
		exec.Command("kill", "-"+c.first, fmt.Sprint(cmd.Process.Pid)).Run()
		state := func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
			var pid int
			var name, s string
			fmt.Sscan(string(b), &pid, &name, &s)
			return s == "T"
		}
		await := func() {
			for end := time.Now().Add(5 * time.Second); state() != c.still && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		await()
		if err := Jump(cmd.Process.Pid, time.Hour); err != nil {
			t.Fatal(err)
		}
		await()
		if state() != c.still {
			t.Errorf("after SIG%s: stands still is %v, want %v", c.first, state(), c.still)
		}
	}
}
