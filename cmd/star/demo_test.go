package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only the demonstration has a straggler that nobody asked for: not a job whose model, data or hosts somebody has chosen, by flag, variable or file.
func TestOnlyTheDemonstrationIsSlowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("dataset: digits\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		env  string
		want string
	}{
		"nothing":                 {nil, "", "3:3x"},
		"more workers":            {[]string{"--workers", "6", "--mode", "asgd", "--epochs", "2", "--out", "x"}, "", "5:3x"},
		"one worker":              {[]string{"--workers", "1"}, "", ""},
		"model":                   {[]string{"--model", "softmax"}, "", ""},
		"the default model, said": {[]string{"--model", "lenet"}, "", ""},
		"data":                    {[]string{"--dataset", "digits"}, "", ""},
		"hosts":                   {[]string{"--hosts", "cluster.yaml"}, "", ""},
		"a variable":              {nil, "STAR_MODEL=softmax", ""},
		"a file":                  {[]string{"--config", file}, "", ""},
		"a checkpoint":            {[]string{"--resume", "star-out"}, "", ""},
		"slow none":               {[]string{"--slow", "none"}, "", ""},
		"slow, with model":        {[]string{"--slow", "1:2x", "--model", "softmax"}, "", "1:2x"},
	} {
		saved := environ
		environ = func() []string { return []string{c.env} }
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"run", "--print-config", "--json"}, c.args...))
		err := cmd.Execute()
		environ = saved
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var printed struct{ Slow struct{ Value []string } }
		if err := json.Unmarshal(out.Bytes(), &printed); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(printed.Slow.Value, ","); got != c.want {
			t.Errorf("%s: --slow is %q, want %q", name, got, c.want)
		}
	}
}
