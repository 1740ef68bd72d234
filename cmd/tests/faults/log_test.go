package faults

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// No line of a job's log has a key twice: of its own, or one that says which process speaks.
func TestLogLines(t *testing.T) {
	dir := t.TempDir()
	addr := jobtest.FreeAddr(t)
	logs := map[string]*jobtest.Output{}
	process := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(jobtest.Star(t), append(args, "--coordinator", addr, "--log-level", "debug", "--workers", "2", "--dataset", "digits:n=400,test=100", "--model", "softmax")...)
		logs[name] = new(jobtest.Output)
		cmd.Stderr = logs[name]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	ps := process("ps", "ps", "--listen", addr, "--http", "off", "--out", dir, "--epochs", "0", "--steps", "1000000")
	a, b := process("worker a", "worker"), process("worker b", "worker")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if text, _ := os.ReadFile(filepath.Join(dir, "run.jsonl")); bytes.Contains(text, []byte(`"type":"fire"`)) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no update within 30 s\n%s", logs["ps"].Bytes())
		}
	}
	a.Process.Kill() // what is said of other members is where keys come twice
	a.Wait()
	b.Process.Kill()
	b.Wait()
	ps.Wait() // the last worker is gone
	count := 0
	for name, text := range logs {
		for line := range bytes.Lines(text.Bytes()) {
			count++
			if key := twice(json.NewDecoder(bytes.NewReader(line))); key != "" {
				t.Errorf("%s: %q is there twice: %s", name, key, line)
			}
		}
	}
	if count < 10 || !bytes.Contains(logs["ps"].Bytes(), []byte(`"msg":"a worker is gone"`)) {
		t.Errorf("%d lines\n%s", count, logs["ps"].Bytes())
	}
}

// twice is a key that an object of a JSON text has twice; empty: none has.
func twice(d *json.Decoder) string {
	type level struct {
		keys   map[string]bool // nil: an array
		isName bool
	}
	var stack []level
	for {
		token, err := d.Token()
		if err != nil {
			return ""
		}
		if n := len(stack) - 1; n >= 0 && stack[n].keys != nil {
			if name, ok := token.(string); ok && stack[n].isName {
				if stack[n].keys[name] {
					return name
				}
				stack[n].keys[name], stack[n].isName = true, false
				continue
			}
			stack[n].isName = true
		}
		switch token {
		case json.Delim('{'):
			stack = append(stack, level{map[string]bool{}, true})
		case json.Delim('['):
			stack = append(stack, level{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:len(stack)-1]
		}
	}
}
