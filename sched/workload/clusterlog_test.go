package workload

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"star/sched"
)

const helios = `job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
12,ub,vcB,16,32,2,FAILED,2020-04-08 00:00:10,2020-04-08 00:00:10,2020-04-08 00:01:10,60,0
11,ua,vcA,1,4,1,COMPLETED,2020-04-01 00:00:05,2020-04-01 00:00:06,2020-04-01 00:00:09,3,1
13,ua,vcA,0,4,1,COMPLETED,2020-04-01 00:00:05,2020-04-01 00:00:05,2020-04-01 00:00:09,4,0
`

// philly has a job of two attempts, one that runs still, one that was never started, one with a clock that was put
// back, one without times in its first attempt, and one without GPUs.
const philly = `[{"status": "Pass", "vc": "v", "jobid": "a", "attempts": [
  {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:01:00", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu7"]}]},
  {"start_time": "2017-10-07 01:02:00", "end_time": "2017-10-07 01:04:00", "detail": [{"ip": "m3", "gpus": ["gpu0", "gpu1"]}]}],
  "submitted_time": "2017-10-07 00:59:59", "user": "u"},
 {"jobid": "running", "vc": "v", "user": "u", "submitted_time": "2017-10-07 00:00:00", "attempts": [{"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:01:00",
  "detail": [{"gpus": ["gpu0"]}]}, {"start_time": "2017-10-07 01:00:00", "end_time": null, "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]},
 {"jobid": "never", "submitted_time": "2017-10-07 00:00:00", "attempts": []},
 {"jobid": "back", "submitted_time": "2017-10-07 00:00:00", "attempts": [{"start_time": "2017-11-05 01:59:00", "end_time": "2017-11-05 01:01:00", "detail": [{"gpus": ["gpu0"]}]}]},
 {"jobid": "bare", "submitted_time": "2017-10-07 00:00:00", "attempts": [{"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:01:00", "detail": []}]},
 {"jobid": "b", "vc": "w", "user": "t", "submitted_time": "2017-10-04 00:00:01", "attempts": [{"start_time": "None", "end_time": "None", "detail": [{"gpus": ["gpu0"]}]},
  {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00", "detail": [{"gpus": ["gpu0"]}]}]}
]`

// TestClusterLogs reads both logs: the first Wednesday is that before the first submission, or Epoch.
func TestClusterLogs(t *testing.T) {
	got, left, err := HeliosTrace(strings.NewReader(helios))
	if want := []*sched.Job{
		{ID: "11", VC: "vcA", User: "ua", Submit: 5, Deadline: never, GPUs: 1, Duration: 3},
		{ID: "12", VC: "vcB", User: "ub", Submit: 7*86400 + 10, Deadline: never, GPUs: 16, Duration: 60},
	}; err != nil || left != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("helios: %v, %d left out, %v", got, left, err)
	}
	sameAfterwards(t, got)
	got, left, err = PhillyTrace(strings.NewReader(philly))
	if want := []*sched.Job{
		{ID: "b", VC: "w", User: "t", Submit: 1, Deadline: never, GPUs: 1, Duration: 3600},
		{ID: "a", VC: "v", User: "u", Submit: 3*86400 + 3599, Deadline: never, GPUs: 3, Duration: 180},
	}; err != nil || left != 4 || !reflect.DeepEqual(got, want) {
		t.Errorf("philly: %v, %d left out, %v", got, left, err)
	}
	sameAfterwards(t, got)
}

// TestPhillyNoTime has an attempt of no time, which is known.
func TestPhillyNoTime(t *testing.T) {
	jobs, left, err := PhillyTrace(strings.NewReader(`[{"jobid": "a", "submitted_time": "2020-04-01 00:00:00", "attempts": [{"start_time": "2020-04-01 00:00:09", "end_time": "2020-04-01 00:00:09", "detail": [{"gpus": ["gpu0"]}]}]}]`))
	if err != nil || left != 0 || len(jobs) != 1 || jobs[0].Duration != 0 {
		t.Errorf("%v, %d left out, %v", jobs, left, err)
	}
}

// TestClusterLogsSayWhatIsWrong has an error of each kind.
func TestClusterLogsSayWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"2020-04-08 00:00:10,", "08.04.2020,", `line 2: submit_time is "08.04.2020": want such as 2020-09-01 00:10:00`},
		{"11,ua", "12,ua", `line 3: job_id "12" occurs twice, first in line 2`},
		{"vcA,1,", "vcA,-1,", `line 3: gpu_num is "-1": want a number of at least 0`},
		{",60,0", ",,0", `line 2: duration is "": want a number`},
		{"user,vc", "owner,vc", `line 1: column "user" is missing`},
	} {
		if _, _, err := HeliosTrace(strings.NewReader(strings.Replace(helios, c.old, c.new, 1))); !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("helios with %q: %v, want %s", c.new, err, c.want)
		}
	}
	for _, c := range []struct{ old, new, want string }{
		{`"a"`, `""`, "line 4: a job has no jobid"},
		{`"running"`, `"a"`, `line 6: jobid "a" occurs twice, first in line 4`},
		{"2017-10-07 00:59:59", "", `line 4: submitted_time of job a is "": want such as`},
		{"2017-10-07 01:02:00", "x", `line 4: start_time of job a is "x"`},
		{"2017-10-07 01:04:00", "x", `line 4: end_time of job a is "x"`},
		{`["gpu0"]`, `"gpu0"`, "line 6: attempts.detail.gpus is of the JSON kind string: want array"},
		{`"a"`, "5", "line 4: jobid is of the JSON kind number: want string"},
		{philly, "[7]", "line 1: a job is of the JSON kind number: want object"},
		{`"user": "u"},`, `"user": "u"}}`, "line 4: invalid character '}'"},
		{philly[100:], "", "line 2: the file ends within"},
		{philly, "", "line 1: the file ends within"},
		{philly, "{}", "line 1: it begins with {: want a JSON array"},
		{"]}]}\n]", "]}]}\n]\n3", "line 13: 3 after the end of the array"},
	} {
		if _, _, err := PhillyTrace(strings.NewReader(strings.Replace(philly, c.old, c.new, 1))); !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("philly with %q: %v, want %s", c.new, err, c.want)
		}
	}
}
