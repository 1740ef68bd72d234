package doctor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestEngine(t *testing.T) {
	bin, out := t.TempDir(), t.TempDir()
	file := filepath.Join(out, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Chdir(t.TempDir())
	scontrol := func(text string) {
		if err := os.WriteFile(filepath.Join(bin, "scontrol"), []byte("#!/bin/sh\necho '"+text+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	slurm := "SLURM_JOB_ID=7 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_JOB_NODELIST=127.0.0.[2-3] STAR_TOKEN=t STAR_OUT=" + out
	pod := "KUBERNETES_SERVICE_HOST=10.0.0.1 JOB_COMPLETION_INDEX=2 STAR_WORKERS=4 STAR_COORDINATOR=127.0.0.1:7070 STAR_TOKEN=t STAR_OUT=" + out
	for _, c := range []struct{ name, env, scontrol, want string }{
		{"a task", slurm, "KillWait                = 30 sec", "ok engine: Slurm: rank 1 of 4|ok coordinator: 127.0.0.2:7070|ok secret|ok folder|ok KillWait: 30 s"},
		{"a short wait", slurm, "KillWait                = 10 sec", "ok engine|ok coordinator|ok secret|ok folder|warn KillWait: 10 s between SIGTERM and SIGKILL → give --grace 5s"},
		{"another answer", slurm, "Reason", "ok engine|ok coordinator|ok secret|ok folder|warn KillWait: scontrol does not say it"},
		{"no task", strings.Replace(slurm, "SLURM_PROCID=1 ", "", 1), "KillWait = 30 sec", "warn engine: an allocation|fail coordinator: its address is not set|ok secret|ok folder|ok KillWait"},
		{"a broken list", strings.Replace(slurm, "[2-3]", "[", 1), "KillWait = 30 sec", "ok engine|fail coordinator: node list|ok secret|ok folder|ok KillWait"},
		{"a broken rank", strings.Replace(slurm, "PROCID=1", "PROCID=x", 1), "KillWait = 30 sec", "fail engine: SLURM_PROCID|ok coordinator|ok secret|ok folder|ok KillWait"},
		{"a pod", pod, "", "ok engine: Kubernetes: rank 2 of an unknown number|ok coordinator: 127.0.0.1:7070 (STAR_COORDINATOR)|ok secret|ok folder"},
		{"a pod, no number", strings.Replace(pod, "STAR_WORKERS=4 ", "", 1), "", "warn engine: Kubernetes: rank 2 of an unknown number → set STAR_WORKERS|ok coordinator|ok secret|ok folder"},
		{"a pod, no index", strings.Replace(pod, "JOB_COMPLETION_INDEX=2 ", "", 1), "", "warn engine: a pod|ok coordinator|ok secret|ok folder"},
		{"no port", strings.Replace(pod, "127.0.0.1:7070", "head", 1), "", "ok engine|fail coordinator: head (STAR_COORDINATOR)|ok secret|ok folder"},
		{"an unknown name", strings.Replace(pod, "127.0.0.1:7070", "star-ps-0.invalid:7070", 1), "", "ok engine|fail coordinator: star-ps-0.invalid:7070|ok secret|ok folder"},
		{"no secret", strings.Replace(pod, "STAR_TOKEN=t ", "", 1), "", "ok engine|ok coordinator|fail secret: neither|ok folder"},
		{"insecure", strings.Replace(pod, "STAR_TOKEN=t ", "STAR_INSECURE=true ", 1), "", "ok engine|ok coordinator|warn secret: none|ok folder"},
		{"no folder", strings.Replace(pod, "STAR_OUT="+out, "STAR_OUT="+file, 1), "", "ok engine|ok coordinator|ok secret|fail folder: mkdir"},
		{"a folder that ends with the pod", strings.Replace(pod, " STAR_OUT="+out, "", 1), "", "ok engine|ok coordinator|ok secret|warn folder: star-out is inside"},
		{"nothing", "STAR_OUT=" + out, "", "fail engine: no variables|fail coordinator|fail secret|ok folder"},
		{"a folder that takes no files", strings.Replace(pod, "STAR_OUT="+out, "STAR_OUT=/proc", 1), "", "ok engine|ok coordinator|ok secret|fail folder: open /proc/"},
	} {
		if strings.Contains(c.env, "/proc") && runtime.GOOS != "linux" {
			continue
		}
		scontrol(c.scontrol)
		var got []string
		for _, r := range engine(t.Context(), strings.Fields(c.env)) {
			if (r.Fix == "") != (r.Status == OK) {
				t.Errorf("%s: %s is %s with the fix %q", c.name, r.Check, r.Status, r.Fix)
			}
			got = append(got, string(r.Status)+" "+r.Check+": "+r.Detail+" → "+r.Fix)
		}
		want := strings.Split(c.want, "|")
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %s\nwant %s", c.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
				break
			}
		}
	}
}
