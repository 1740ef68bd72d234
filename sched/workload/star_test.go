package workload

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// sameAfterwards writes jobs and reads them again.
func sameAfterwards(t *testing.T, jobs []*sched.Job) {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, jobs); err != nil {
		t.Fatal(err)
	}
	again, err := StarTrace(&b)
	if err != nil {
		t.Fatal(err)
	}
	if len(again) != len(jobs) {
		t.Fatalf("%d jobs, were %d", len(again), len(jobs))
	}
	for i, j := range jobs {
		if !reflect.DeepEqual(again[i], j) {
			t.Fatalf("job %s is\n%+v, was\n%+v", j.ID, *again[i], *j)
		}
	}
}

// small is a trace of each format.
var small = map[string]struct {
	text string
	read func(io.Reader) ([]*sched.Job, error)
}{
	"elasticflow": {"job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort,noise_scale\na,1,100.5,net,70,64,1,100,0,33.5\nb,2,7,net,70,128,2,3,1,0\n",
		func(r io.Reader) ([]*sched.Job, error) {
			ths := Throughputs{}
			if err := ths.Read("net.csv", strings.NewReader("global_batch_size,1,2,4\n64,1.1,,3.5\n128,0,2,nan\n")); err != nil {
				return nil, err
			}
			return ElasticFlowTrace(r, ths)
		}},
	"lucid": {"job_id,user,vc,gpu_num,submit_time,duration,model,dataset,batchsize,amp,gmem,sharescore,ebm_priority,lgb_priority\n1,u,a,2,10,50,m,d,8,1,100.25,2,50.125,-7\n2,,b,2,10,50,m,d,8,0,0,0,-1,0\n", LucidTrace},
	"muri":  {"job_id,num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,resource_time_2\n1,1,7,100,dqn,333,150,50,0\n", MuriTrace},
	"allox": {"# 3\n1 3 1 10 bursty0\nstage -1 0.1 0.2 33.25 1 0.3 4.5 1 -0.05 0\n0\n", AlloXTrace},
	"helios": {helios, func(r io.Reader) ([]*sched.Job, error) {
		jobs, _, err := HeliosTrace(r)
		return jobs, err
	}},
	"philly": {philly, func(r io.Reader) ([]*sched.Job, error) {
		jobs, _, err := PhillyTrace(r)
		return jobs, err
	}},
	"star": {"job_id,vc,submit,gpus,duration,deadline,estimate,history,model,dataset,batch,amp,memory,score,best_effort,noise_scale,iterations,rates,batches,stages,restart,user,plain_duration,error,plain_error\n" +
		"a,v,1,2,3,40,5,-6,m,d,8,1,9,2,1,10,11,1/0/3,8:1/2;16:3,.1/.2/.3/.4,12,u,13,-.5,.5\n", StarTrace},
}

// TestImportKeepsAll writes a job of each format in our own one, and reads it again.
func TestImportKeepsAll(t *testing.T) {
	for name, c := range small {
		t.Run(name, func(t *testing.T) {
			jobs, err := c.read(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			sameAfterwards(t, jobs)
		})
	}
}

// FuzzTrace has what is read of any format, without an error, be the same when it was written in our own and read
// again.
func FuzzTrace(f *testing.F) {
	names := slices.Sorted(maps.Keys(small))
	for i, name := range names {
		f.Add(byte(i), []byte(small[name].text))
	}
	f.Fuzz(func(t *testing.T, format byte, b []byte) {
		c := small[names[int(format)%len(names)]]
		jobs, err := c.read(bytes.NewReader(b))
		if err != nil && !errors.Is(err, ErrInput) {
			t.Fatal(err)
		}
		if err == nil {
			sameAfterwards(t, jobs)
		}
	})
}

// TestImportedTraces does so with all traces that originals were run on.
func TestImportedTraces(t *testing.T) {
	dir := reference(t)
	for trace, gpu := range map[string]string{"elasticVpollux_e.csv": "T4", "195job.csv": "A100", "cluster01.csv.gz": "A100", "200jobs_900lam_0.5.csv": "A100"} {
		jobs, _ := elasticFlow(t, filepath.Join(dir, "elasticflow"), trace, "n16g8", gpu)
		sameAfterwards(t, jobs)
	}
	for path, read := range map[string]func(io.Reader) ([]*sched.Job, error){"lucid/trace_ordered.csv.gz": LucidTrace, "muri/trace3_first200.csv": MuriTrace, "allox/jobs_input_10_Google_own.txt": AlloXTrace} {
		jobs, err := read(open(t, dir, path))
		if err != nil {
			t.Fatal(path, err)
		}
		sameAfterwards(t, jobs)
	}
}

// TestStarTraceSaysWhatIsWrong has an error of each column.
func TestStarTraceSaysWhatIsWrong(t *testing.T) {
	for cells, want := range map[string]string{
		"rates=1/x":                        `rates is "1/x": want numbers of at least 0 with / between them`,
		"rates=1/2":                        `rates is "1/2", without batch`,
		"rates=1/2,batch=2":                `rates is "1/2", and iterations "": want a number above 0`,
		"rates=1/2,batch=2,iterations=0":   `rates is "1/2", and iterations "0": want a number above 0`,
		"rates=1/NaN":                      `rates is "1/NaN"`,
		"batches=64":                       `batches is "": want numbers`,
		"batches=a:1/2":                    `batches is "a:1/2": want such as 64:1.5/2.9`,
		"stages=1/2":                       `stages is "1/2": want 4 times`,
		"user=u,plain_duration=-1":         `plain_duration is "-1"`,
		"history=NaN":                      `history is "NaN": want a number`,
		"deadline=-5":                      `deadline is "-5": want a number of at least 0`,
		"best_effort=2":                    `best_effort is 2: want 1 at most`,
		"amp=-1":                           `amp is "-1": want a number of at least 0`,
		"score=3":                          `score is 3: want 2 at most`,
		"model=\"a\"\"b":                   `extraneous or missing " in quoted-field, in byte 15 of it: put a cell with quotes in it in quotes, and double those`,
		"batch=1.5":                        `batch is 1.5: want a whole number`,
		"user=u,plain_duration=1,error=-2": `error is "-2"`,
	} {
		header, row := "job_id,submit,gpus,duration", "a,0,1,5"
		for cell := range strings.SplitSeq(cells, ",") {
			name, v, _ := strings.Cut(cell, "=")
			header, row = header+","+name, row+","+v
		}
		_, err := StarTrace(strings.NewReader(header + "\n" + row + "\n"))
		if err == nil || !strings.Contains(err.Error(), "line 2: "+want) {
			t.Errorf("%s: %v, want %s", cells, err, want)
		}
	}
}

// TestUserAlone has a trace with users that is not of two kinds of machines: policies for one kind run it.
func TestUserAlone(t *testing.T) {
	jobs, err := StarTrace(strings.NewReader("job_id,submit,gpus,duration,user\na,0,1,5,ann\n"))
	if err != nil || jobs[0].Either != nil {
		t.Errorf("%+v, %v", jobs, err)
	}
}

// TestFormatOf has the beginning of each format, and of none. Helios and Lucid may have the same columns, and have
// other times.
func TestFormatOf(t *testing.T) {
	for line, want := range map[string]string{
		"job_id,submit,gpus,duration": "star",
		"job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration":                                      "elasticflow",
		"job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration":                         "elasticflow",
		"order, job_id,user,vc,jobname,gpu_num,submit_time,duration":                                                   "lucid",
		"job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0": "muri",
		"# 17": "allox",
		"job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue": "helios",
		"job_id,vc,gpu_num,submit_time\n1,a,2,2020-09-01 00:10:00\n2,a,2,x\n":                          "helios",
		"job_id,vc,gpu_num,submit_time\r\n1,a,2,13219200\r\n":                                          "lucid",
		"job_id,vc,gpu_num,submit_time\n1,a,2,2020-13-01 00:10:00\n":                                   "",
		"job_id,vc,gpu_num,submit_time\n1,a,2":                                                         "",
		"[":                                                                                            "philly",
		"job_id,submit":                                                                                "",
		"{\"jobs\": []}":                                                                               "",
		"":                                                                                             "",
	} {
		if got := FormatOf(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
