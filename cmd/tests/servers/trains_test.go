package servers

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/coord"
	"star/runlog"
	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// What star-ps was told its workers are held to; what it was not told is what they train, in the result, the manifest
// and the run log. A worker that was there before them and has left changes nothing.
func TestSaysWhatWasTrained(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	out, addr := t.TempDir(), jobtest.FreeAddr(t)
	ps := exec.Command(jobtest.Star(t), "ps", "--listen", addr, "--http", "off", "--out", out, "--log-format", "text", "--json", "--workers", "2", "--steps", "5", "--dataset", "digits:n=400,test=100")
	var errs, result jobtest.Output
	ps.Stderr, ps.Stdout = &errs, &result
	if err := ps.Start(); err != nil {
		t.Fatal(err)
	}
	defer ps.Process.Kill()
	worker := func(args ...string) (*exec.Cmd, *jobtest.Output) {
		cmd, says := exec.Command(jobtest.Star(t), append([]string{"worker", "--coordinator", addr, "--log-format", "text"}, args...)...), new(jobtest.Output)
		cmd.Stderr = says
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd, says
	}
	misfit, says := worker("--dataset", "digits:n=401,test=100")
	misfit.Wait()
	if code := misfit.ProcessState.ExitCode(); code != 78 || !strings.Contains(says.String(), "digits:n=401,test=100") || !strings.Contains(says.String(), "digits:n=400,test=100") {
		t.Fatalf("a worker with other data: exit code %d, want 78 with both:\n%s", code, says)
	}
	stray, _ := worker("--dataset", "digits:n=400,test=100", "--model", "mlp")
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var s coord.Status
		b, err := exec.Command(jobtest.Star(t), "ctl", "status", "--coordinator", addr, "--json").Output()
		if err == nil && json.Unmarshal(b, &s) == nil && s.Workers[0].State == "joining" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the stray worker does not come: %v %s", err, b)
		}
	}
	stray.Process.Signal(os.Interrupt)
	stray.Wait()
	for range 2 {
		worker("--dataset", "digits:n=400,test=100", "--model", "softmax", "--seed", "5")
	}
	if err := ps.Wait(); err != nil {
		t.Fatalf("star ps: %v\n%s", err, &errs)
	}
	var r runlog.Result
	if err := json.Unmarshal(result.Bytes(), &r); err != nil || r.Model != "softmax" || r.Seed != 5 || r.Dataset != "digits:n=400,test=100" || r.Updates != 5 {
		t.Errorf("result %s, %v", &result, err)
	}
	type config struct {
		Model, Dataset string
		Seed           uint64
	}
	want := config{"softmax", "digits:n=400,test=100", 5}
	var line struct{ Config config }
	text, err := os.ReadFile(filepath.Join(out, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(first, &line); err != nil || line.Config != want || bytes.Contains(text, []byte("mlp")) {
		t.Errorf("the run log begins with %s (%v)", first, err)
	}
	ck, err := checkpoint.Open(r.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	var saved config
	if err := json.Unmarshal(ck.Manifest().Config, &saved); err != nil || saved != want {
		t.Errorf("the manifest says %+v, %v", saved, err)
	}
}
