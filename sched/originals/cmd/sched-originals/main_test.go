package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/job"
)

// simulated runs the command on files, in a folder of their own.
func simulated(t *testing.T, files map[string]string, args ...string) (stdout string, err error) {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	cmd := command(nil)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return out.String(), err
}

var small = map[string]string{
	"trace.csv": `job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort
A,0,400,small,500,4,1,400,0
B,10,300,small,400,4,1,300,0
C,10,90,small,0,4,1,90,1
D,70,500,small,200,4,1,500,0
E,200,200,small,420,4,1,200,0
`,
	"tables/small.csv": "global_batch_size,1,2,4\n4,1,1.8,3\n",
	"muri.csv": `job_id,num_gpu,submit_time,iterations,model_name,duration,iteration_time,resource_time_0,resource_time_1,resource_time_2
0,1,0,1000,vgg16,100000,100,60,20,10
1,1,0,900,resnet18,90000,100,20,60,10
`,
}

// The table of jobs is that of star sched sim, and the summary says how many jobs met their deadlines.
func TestCommand(t *testing.T) {
	args := []string{"trace.csv", "--format", "elasticflow", "--cluster", "n2g2", "--throughputs", "tables", "--policy", "ef-admission", "--slot", "60s"}
	got, err := simulated(t, small, append(args, "--jobs", "-")...)
	if err != nil {
		t.Fatal(err)
	}
	const want = `job_id,submit,start,end,jct,queue,preemptions,declined,met_deadline,gpus,vc,policy,why
A,0,0,304,304,0,0,false,true,1,,ef-admission,
B,10,60,304,294,50,0,false,true,1,,ef-admission,
C,10,60,182,172,50,0,false,true,1,,ef-admission,
D,70,,,,,0,true,false,1,,ef-admission,"job D would end after its deadline, and the program declines all jobs that have come then"
E,200,242,366,166,42,0,false,true,1,,ef-admission,
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got, err := simulated(t, small, append(args, "--json")...); err != nil || !strings.Contains(got, `"ended":4,"declined":1,"met_deadline":4,`) {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := simulated(t, small, append(args[:len(args)-3:len(args)-3], "tiresias,gandiva,themis,chronus", "--slot", "60s")...); err != nil || strings.Count(got, "\n") != 5 {
		t.Errorf("%s, %v", got, err)
	}
	for _, policies := range []string{"muri-s,muri-l", "srtf", "tiresias"} {
		if got, err := simulated(t, small, "muri.csv", "--format", "muri", "--cluster", "n1g2", "--policy", policies); err != nil || strings.Count(got, "\n") != 2+strings.Count(policies, ",") {
			t.Errorf("%s: %s, %v", policies, got, err)
		}
	}
}

// What is wrong is said, with the exit code that star sched sim has for it.
func TestWrong(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
		code int
	}{
		{"", "want one trace of jobs, got 0 arguments", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy ef", "job 0: ef plans with iterations and throughputs", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy fifo", "the program of muri has no policy fifo: it has muri-l, muri-s, srsf, srtf, tiresias", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s,muri-s", "muri-s is there twice", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s --jobs - --json", "leave out --json", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s --jobs muri.csv", "would be lost", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables --cluster n2g2 --slot 1500ms", "want whole seconds", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables --cluster n2g3", "nodes of 3 GPUs", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables", "which cluster?", exitcode.Usage},
		{"none.csv --format muri --cluster n1g2 --policy muri-s", "none.csv", exitcode.Missing},
		{"trace.csv --format muri --cluster n1g2 --policy muri-s", "line 1", exitcode.Corrupt},
	} {
		if _, err := simulated(t, small, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.says) || job.ExitCode(err) != c.code {
			t.Errorf("%s: %v (%d), want %q (%d)", c.args, err, job.ExitCode(err), c.says, c.code)
		}
	}
}
