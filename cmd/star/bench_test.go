package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"star/internal/exitcode"

	"star/cmd/tests/jobtest"
)

// A file that is missing or of another shape has its own exit code, in each command that reads it.
func TestFilesOfBenchmarks(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "other.json"), []byte(`{"alpha_s":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "--arch", "allreduce", "--listen", "127.0.0.1:0", "--allreduce-model"},
		{"worker", "--arch", "allreduce", "--join-timeout", "1s", "--allreduce-model"},
		{"bench", "allreduce", "--allreduce-model"},
		{"bench", "allreduce", "--compare"},
		{"bench", "ps", "--compare"},
		{"match"},
	} {
		for file, want := range map[string]int{"other.json": exitcode.Corrupt, "nowhere.json": exitcode.Missing} {
			cmd := exec.Command(jobtest.Star(t), append(args, file)...)
			cmd.Dir = dir
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Errorf("star %v %s: exit code %d, want %d\n%s", args, file, got, want, out)
			}
		}
	}
}
