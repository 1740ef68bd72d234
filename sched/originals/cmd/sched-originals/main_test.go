package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/job"
	"star/sched/originals"
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
	"lucid.csv": `job_id,user,vc,gpu_num,submit_time,duration,model,dataset,batchsize,amp,gmem,sharescore,ebm_priority,lgb_priority
0,u,,1,0,300,m,d,8,0,100,0,300,300
1,v,,1,10,90,m,d,8,0,100,0,80,120
`,
	"est/colocate_info.csv":       "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\nm,d,8,0,.8,m,d,8,0,.9\n",
	"est/all_throughput_pred.csv": "time,pred_gpu_job,pred_gpu_num\n1970-01-01 00:00:00,9,9\n",
	"allox.txt":                   "# 0\n1 0 1 0 u\nstage -1 32 16 200 1 2 50 1 0 0\n0\n# 1\n1 1 1 0 v\nstage -1 32 16 90 1 2 80 1 0 0\n0\n",
	"queues.txt":                  "# 0\nu 0.0\n1.0\n-1.0\n# 1\nv 0.0\n1.0\n-1.0\n",
	"star.csv":                    "job_id,submit,gpus,duration\na,0,1,100\nb,5,1,50\n",
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
}

// TestPrograms runs every policy of every program with the settings that it has in star sched sim. The trace's format
// says which program is meant, or --compat.
func TestPrograms(t *testing.T) {
	for program, args := range map[string]string{
		"elasticflow": "trace.csv --format elasticflow --cluster n2g2 --throughputs tables --slot 60s",
		"muri":        "muri.csv --format muri --cluster n1g2",
		"lucid":       "lucid.csv --format lucid --cluster n1g2 --estimates est",
		"allox":       "allox.txt --format allox --cluster 1gpu+1cpu --queues queues.txt --alpha 0.3 --profiling off",
	} {
		policies := originals.Policies(program)
		args := append(strings.Fields(args), "--policy", strings.Join(policies, ","), "--jobs", "out.csv", "--json")
		got, err := simulated(t, small, args...)
		if err != nil || strings.Count(got, `"policy":`) != len(policies) {
			t.Errorf("%s: %s, %v", program, got, err)
		}
	}
	got, err := simulated(t, small, strings.Fields("star.csv --cluster n1g1 --compat lucid --policy srtf --jobs -")...)
	const want = `job_id,submit,start,end,jct,queue,preemptions,declined,met_deadline,gpus,vc,policy,why
a,0,0,192,192,51,1,false,true,1,,srtf,
b,5,5,56,51,0,0,false,true,1,,srtf,
`
	if err != nil || got != want {
		t.Errorf("%s, %v\nwant\n%s", got, err, want)
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
		{"star.csv --cluster n1g2 --policy fifo", "the format star names no program with a policy fifo: give --compat elasticflow, muri, lucid, allox", exitcode.Usage},
		{"lucid.csv --format lucid --cluster n1g2 --policy lucid", "give --estimates", exitcode.Usage},
		{"star.csv --cluster n1g2 --compat allox --policy sjf", "job a: sjf needs to know how long it takes with a GPU and without", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s,muri-s", "muri-s occurs twice", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s --jobs - --json", "leave out --json", exitcode.Usage},
		{"muri.csv --format muri --cluster n1g2 --policy muri-s --jobs muri.csv", "would be lost", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables --cluster n2g2 --slot 1500ms", "want whole seconds", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables --cluster n2g3", "nodes of 3 GPUs", exitcode.Usage},
		{"trace.csv --format elasticflow --throughputs tables", "is required: give nodes and GPUs", exitcode.Usage},
		{"none.csv --format muri --cluster n1g2 --policy muri-s", "none.csv", exitcode.Missing},
		{"trace.csv --format muri --cluster n1g2 --policy muri-s", "line 1", exitcode.Corrupt},
	} {
		if _, err := simulated(t, small, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.says) || job.ExitCode(err) != c.code {
			t.Errorf("%s: %v (%d), want %q (%d)", c.args, err, job.ExitCode(err), c.says, c.code)
		}
	}
}
