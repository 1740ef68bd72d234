package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// What is wrong with a file ends with 65, what is not there with 66, and what is wrong with the command with 2; the
// file, the line and what was expected are named.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	const (
		header = "step,worker,duration,slowdown,rel\n"
		start  = `{"type":"start","format":1,"program":"star","config":{"arch":"ps","batch":10}}` + "\n" +
			`{"type":"train","t":1,"workers":1,"shards":1,"version":0,"limit":1000,"plan":"ssgd"}` + "\n"
		record = `{"type":"record","t":2,"worker":0,"step":0,"basis":0,"samples":10,"compute":0.1}` + "\n"
	)
	for name, text := range map[string]string{
		"key.yaml":  "workers: 4\nlearner: {kind: tally, colour: red}\n",
		"neg.yaml":  "workers: 4\ntimes:\n  2: -300ms\n",
		"nan.yaml":  "workers: 4\njitter: .nan\n",
		"gap.yaml":  "trace: gap.csv\n",
		"dup.yaml":  "trace: dup.csv\n",
		"none.yaml": "trace: none.csv\n",
		"cut.yaml":  "trace: cut.csv\n",
		"nan2.yaml": "trace: nan.csv\n",
		"gone.yaml": "trace: nowhere.csv\n",
		"gap.csv":   header + "0,0,1,1,1\n0,1,1,1,1\n2,0,1,1,1\n2,1,1,1,1\n",
		"dup.csv":   header + "0,0,1,1,1\n0,1,1,1,1\n0,1,1,1,1\n",
		"none.csv":  header + "0,0,1,1,1\n0,2,1,1,1\n",
		"cut.csv":   header + "0,0,1,1,1\n0,1,1,1,1\n1,0,1,1,1\n1,1,1,1,1",
		"nan.csv":   header + "0,0,1,1,NaN\n0,1,1,1,1\n",
		"mid.jsonl": start + record[:30] + "\n" + record,
		"dup.jsonl": start + record + record,
		"neg.jsonl": start + strings.Replace(record, "0.1", "-1", 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"key.yaml", 65, "key.yaml: line 2: unknown key colour: want one of kind, dim"},
		{"neg.yaml", 65, `neg.yaml: line 3: "-300ms" is not a duration of at least 0, such as 600ms`},
		{"nan.yaml", 65, "nan.yaml: line 2: jitter is NaN: want a number from 0 to 3"},
		{"gap.yaml", 65, "gap.yaml: trace: gap.csv:4: step 2 after step 0: a step is missing"},
		{"dup.yaml", 65, "dup.csv:4: worker 1 twice in step 0: want each worker once in a step"},
		{"none.yaml", 65, "none.csv:3: the file ends, but step 0 has no worker 1"},
		{"cut.yaml", 65, "cut.csv:5: the last line has no end: it may have been cut; want a line break"},
		{"nan2.yaml", 65, `nan.csv:2: rel "NaN" is not a finite number of at least 0`},
		{"gone.yaml", 66, "nowhere.csv"},
		{"--from mid.jsonl", 65, "mid.jsonl:3: not a line of a run log"},
		{"--from dup.jsonl", 65, "dup.jsonl:4: record: step 0 of worker 0 after its step 0 in line 3: want each step once, in order"},
		{"--from neg.jsonl", 65, "neg.jsonl:3: record: compute is -1 s, want 0 to 1e+09"},
		{"--mode x=9 nan.yaml --seeds 0", 2, "--seeds"},
	} {
		cmd := exec.CommandContext(ctx, jobtest.Star(t), append([]string{"sim"}, strings.Fields(c.args)...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("star sim %s: %v\n%s\nwant %d, and %q", c.args, err, out, c.code, c.want)
		}
	}
}

// The exit codes of docs/recover.md for missing files and jobs, and a text that counts one thing as one.
func TestExitCodesOfTools(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	page := httptest.NewServer(http.NotFoundHandler())
	defer page.Close()
	dir := t.TempDir()
	log := `{"type":"start","format":1,"program":"star","config":{"arch":"ps","batch":10}}` + "\n"
	for _, name := range []string{"runs/a/run.jsonl", "runs/b/run.jsonl", "file"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777), os.WriteFile(filepath.Join(dir, name), []byte(log), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		exit int
		says string
	}{
		{[]string{"ctl", "--coordinator", "127.0.0.1:1", "status"}, 69, "no coordinator at 127.0.0.1:1"},
		{[]string{"ctl", "--coordinator", strings.TrimPrefix(page.URL, "http://"), "status", "--timeout", "2s"}, 69, "; is the job running? The address is that of its star-ps of rank 0 (--listen, not --http)"},
		{[]string{"view", "runs", "--listen", "127.0.0.1:0"}, 66, "it has folders of several jobs; give one: runs/a, runs/b"},
		{[]string{"report", "."}, 66, "open run.jsonl: no such file or directory: want a run log, or the folder that a job had as --out"},
		{[]string{"view", "runs/a", "--listen", taken.Addr().String()}, 2, "address already in use: choose another one, as 127.0.0.1:0"},
		{[]string{"export", "runs/a", "--csv", "file"}, 73, "file is a file, and record.csv is to be written in a folder of that name: give another folder"},
		{[]string{"export", "runs/a", "--perfetto", "runs"}, 73, "runs is a folder: give a file, such as runs/run.json.gz"},
		{[]string{"trace", "import", "runs"}, 2, "star trace import: runs is a folder: give the files in it, such as runs/*"},
		{[]string{"watch", "--out", "file", "--", "true"}, 2, "--out \"file\": it is a file: give a folder"},
		{[]string{"watch", "--", "sh", "-c", "exit 5"}, 5, "no rank has made a step"},
		{[]string{"run", "--config", "nowhere.yaml"}, 66, "--config: open nowhere.yaml"},
		{[]string{"doctor", "--listen", taken.Addr().String()}, 1, "star: 1 check failed"},
		{[]string{"doctor", "--sweep", "127.0.0.1:1"}, 2, "--sweep takes no addresses, but 127.0.0.1:1 was given: name hosts in a file (--hosts)"},
		{[]string{"doctor", "--sweep", "--hosts", "nowhere.yaml"}, 66, "open nowhere.yaml: no such file"},
		{[]string{"doctor", "--sweep", "--hosts", "file", "--to", "127.0.0.1:1"}, 2, "leave --to and --listen away"},
		{[]string{"doctor", "--sweep", "--to", "nowhere"}, 2, "want host:port"},
		{[]string{"doctor", "--sweep", "--listen", "127.0.0.1:0"}, 2, "for how many hosts shall it wait, with this one? give --members"},
		{[]string{"doctor", "--sweep", "--listen", taken.Addr().String(), "--members", "2"}, 2, "address already in use"},
		{[]string{"doctor", "--dir", "."}, 2, "it is for --sweep"},
	} {
		cmd := exec.CommandContext(t.Context(), jobtest.Star(t), c.args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if jobtest.ExitCode(err) != c.exit || !strings.Contains(string(out), c.says) {
			t.Errorf("star %s: exit %d, want %d and %q: %s", strings.Join(c.args, " "), jobtest.ExitCode(err), c.exit, c.says, out)
		}
	}
}
