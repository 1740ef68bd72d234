package workload

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"

	"star/sched"
)

// HeliosTrace reads cluster_log.csv of SenseTime's Helios (Hu et al., SC 2021): job_id, user, vc, gpu_num, submit_time
// and duration (s). left is the number of skipped jobs, which had no GPUs. Submit is s of the clock of inOrder.
func HeliosTrace(r io.Reader) (jobs []*sched.Job, left int, err error) {
	t := newTable(r)
	t.need("job_id", "user", "vc", "gpu_num", "submit_time", "duration")
	for t.next() {
		j := &sched.Job{ID: t.id(), VC: t.text("vc"), User: t.text("user"), Deadline: never, GPUs: t.whole("gpu_num", 0), Duration: t.number("duration", 0)}
		if j.Submit = t.date("submit_time"); j.GPUs > 0 {
			jobs = append(jobs, j)
		} else {
			left++
		}
	}
	return inOrder(jobs), left, t.err
}

// inOrder sorts jobs by submission. If some were submitted before Epoch, the clock of all starts a whole number of
// weeks earlier, so that the hour and the weekday can still be derived from it.
func inOrder(jobs []*sched.Job) []*sched.Job {
	slices.SortStableFunc(jobs, func(a, b *sched.Job) int { return cmp.Compare(a.Submit, b.Submit) })
	if len(jobs) > 0 {
		const week = 7 * 86400
		earlier := week * math.Ceil(max(0, -jobs[0].Submit)/week)
		for _, j := range jobs {
			j.Submit += earlier
		}
	}
	return jobs
}

// phillyJob is a job of Philly's log. Times are null or "None" if they were not recorded.
type phillyJob struct {
	ID       string `json:"jobid"`
	VC       string `json:"vc"`
	User     string `json:"user"`
	Submit   string `json:"submitted_time"`
	Attempts []struct {
		Start string `json:"start_time"`
		End   string `json:"end_time"`
		Nodes []struct {
			GPUs []string `json:"gpus"`
		} `json:"detail"`
	} `json:"attempts"`
}

// jsonKinds are the JSON kinds of the fields of phillyJob.
var jsonKinds = map[reflect.Kind]string{reflect.String: "string", reflect.Slice: "array", reflect.Struct: "object"}

// PhillyTrace reads cluster_job_log of Microsoft's Philly (Jeon et al., ATC 2019), a JSON array. A job's duration is
// the sum over its attempts, and it requests the GPUs of its largest attempt. left is the number of skipped jobs: those
// without GPUs, without an end of the last attempt, or without times in any attempt. Submit is s of the clock of
// inOrder; the log's times are local, without daylight saving time.
func PhillyTrace(r io.Reader) (jobs []*sched.Job, left int, err error) {
	var ahead bytes.Buffer // read, but not decoded yet
	d := json.NewDecoder(io.TeeReader(r, &ahead))
	line, decoded := 1, int64(0)
	at := func(offset int64) int {
		line += bytes.Count(ahead.Next(int(offset-decoded)), []byte("\n"))
		decoded = offset
		return line
	}
	wrong := func(err error) error {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch errors.As(err, &syntax); {
		case errors.As(err, &kind):
			return Wrong(at(d.InputOffset()), "%s is of the JSON kind %s: want %s", cmp.Or(kind.Field, "a job"), kind.Value, jsonKinds[kind.Type.Kind()])
		case syntax != nil:
			return Wrong(at(max(decoded, syntax.Offset)), "%v: want a JSON array of jobs", err)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return Wrong(at(decoded+int64(ahead.Len())), "the file ends within the JSON array of jobs: want all of it")
		}
		return Wrong(at(d.InputOffset()), "%v: want a JSON array of jobs", err)
	}
	if begin, err := d.Token(); err != nil {
		return nil, 0, wrong(err)
	} else if begin != json.Delim('[') {
		return nil, 0, wrong(fmt.Errorf("it begins with %v", begin))
	}
	seen := map[string]int{}
	for d.More() {
		var of phillyJob
		if err := d.Decode(&of); err != nil {
			return nil, 0, wrong(err)
		}
		n := at(d.InputOffset())
		if first := seen[of.ID]; first > 0 {
			return nil, 0, Wrong(n, "jobid %q occurs twice, first in line %d: rename one", of.ID, first)
		}
		seen[of.ID] = n
		j, err := of.job()
		switch {
		case err != nil:
			return nil, 0, Wrong(n, "%v", err)
		case j == nil:
			left++
		default:
			jobs = append(jobs, j)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, 0, wrong(err)
	}
	if more, err := d.Token(); err != io.EOF {
		return nil, 0, wrong(cmp.Or(err, fmt.Errorf("%v after the end of the array", more)))
	}
	return inOrder(jobs), left, nil
}

// job converts a logged job, or returns nil if its duration or its GPUs are unknown.
func (of *phillyJob) job() (*sched.Job, error) {
	if of.ID == "" {
		return nil, errors.New("a job has no jobid: give each a name of its own")
	}
	j := &sched.Job{ID: of.ID, VC: of.VC, User: of.User, Deadline: never}
	var err error
	if j.Submit, err = date(of.Submit); err != nil {
		return nil, fmt.Errorf("submitted_time of job %s is %w", of.ID, err)
	}
	known, ended := false, false
	for _, a := range of.Attempts {
		gpus := 0
		for _, n := range a.Nodes {
			gpus += len(n.GPUs)
		}
		j.GPUs = max(j.GPUs, gpus)
		if ended = recorded(a.End); !ended || !recorded(a.Start) {
			continue
		}
		start, err := date(a.Start)
		if err != nil {
			return nil, fmt.Errorf("start_time of job %s is %w", of.ID, err)
		}
		end, err := date(a.End)
		if err != nil {
			return nil, fmt.Errorf("end_time of job %s is %w", of.ID, err)
		}
		if end >= start { // else the clock was set back
			known = true
			j.Duration += end - start
		}
	}
	if j.GPUs == 0 || !known || !ended {
		return nil, nil
	}
	return j, nil
}

func recorded(text string) bool { return text != "" && text != "None" }
