package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"star/cluster/inventory"
	"star/cmd/internal/launch"
	"star/cmd/tests/jobtest"
)

// The words of a command of the user's own reach a host behind a shell, as ssh has one, as they are: no shell parts
// them, or runs what is in them.
func TestFarShellParsesNoWords(t *testing.T) {
	dir := t.TempDir()
	shell := filepath.Join(dir, "ssh") // what ssh HOST WORD… does
	if err := os.WriteFile(shell, []byte("#!/bin/sh\nshift; exec /bin/sh -c \"$*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	pwn, got := filepath.Join(dir, "pwn"), filepath.Join(dir, "got")
	own := []string{"/bin/sh", "-c", `for w; do printf '%s\0' "$w"; done > "$0"`, got, "two  words", "$(touch " + pwn + ")", "*", `"'\`, "", "$HOME", "a\nb"}
	cmd, orders := launch.Site{Host: inventory.Host{Launch: []string{shell, "far"}}, GPU: -1}.Command(jobtest.Star(t), "worker", []string{"STAR_TOKEN=t"}, own)
	line, err := json.Marshal(orders.Env)
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(append(line, '\n')); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	text, err := os.ReadFile(got)
	if words := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"); err != nil || !slices.Equal(words, own[4:]) {
		t.Errorf("got %q, %v; want %q", words, err, own[4:])
	}
	if _, err := os.Stat(pwn); err == nil {
		t.Error("the far shell ran a word of the command")
	}
	if i := slices.IndexFunc(cmd.Args, func(w string) bool { return strings.Contains(w, pwn) }); i >= 0 {
		t.Errorf("the command is among the arguments: %q", cmd.Args)
	}

	out, err := exec.Command(jobtest.Star(t), "member", launch.CommandRole).CombinedOutput()
	if jobtest.ExitCode(err) != 2 || !strings.Contains(string(out), "no settings") {
		t.Errorf("without its input: %v\n%s", err, out)
	}
}
