package workload

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"star/sched"
)

// TestWriteSchedule: at no time two jobs have the same row, a job has as many rows as GPUs, and the picture is XML with
// a rectangle or more for each time.
func TestWriteSchedule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var jobs []*sched.Job
	for i := range 80 {
		jobs = append(jobs, &sched.Job{ID: "<" + string(rune('a'+i%26)) + "&" + strings.Repeat("x", i/26), Submit: float64(r.IntN(500)), GPUs: 1 + r.IntN(4), Duration: float64(1 + r.IntN(90)), Deadline: math.Inf(1)})
	}
	out := sched.Simulate(jobs, sched.Cluster{Nodes: 2, GPUs: 4}, sched.SRTF())
	all, each := Allocate(out, 0)
	if each != 1 {
		t.Fatalf("%d rows for a GPU, want 1", each)
	}
	var had, want float64
	for i, a := range all {
		had += float64(len(a.Rows)) * (a.To - a.From)
		if len(a.Rows) != int(a.GPUs) || a.Rows[len(a.Rows)-1] > 7 {
			t.Fatalf("job %s has %v GPUs and rows %v of 8", a.Job.ID, a.GPUs, a.Rows)
		}
		for _, b := range all[:i] {
			if a.From < b.To && b.From < a.To {
				for _, x := range a.Rows {
					for _, y := range b.Rows {
						if x == y {
							t.Fatalf("jobs %s and %s have row %d at a time", a.Job.ID, b.Job.ID, x)
						}
					}
				}
			}
		}
	}
	for _, o := range out {
		want += (o.JCT() - o.Queue) * float64(o.GPUs)
	}
	if math.Abs(had-want) > 1e-6 {
		t.Errorf("rows are had for %v GPU-seconds, want %v", had, want)
	}
	var b bytes.Buffer
	if err := WriteSchedule(&b, "a < b", 8, out); err != nil {
		t.Fatal(err)
	}
	rects, titles := 0, 0
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			rects++
		} else if ok && e.Name.Local == "title" {
			titles++
		}
	}
	if titles != len(all) || rects < titles {
		t.Errorf("%d rectangles and %d titles, want %d titles", rects, titles, len(all))
	}
	shared := []sched.Outcome{{Job: jobs[0], Steps: []sched.Step{{At: 0, GPUs: .5}, {At: 9, GPUs: 0}}}, {Job: jobs[1], Steps: []sched.Step{{At: 3, GPUs: .5}, {At: 9, GPUs: 0}}}}
	if all, each := Allocate(shared, 0); each != parts || all[0].Rows[0] != 0 || all[1].Rows[0] != parts/2 || len(all[1].Rows) != parts/2 {
		t.Errorf("two that share a GPU: %+v", all)
	}
}

// TestScheduleOfMany: what is left out are rectangles beyond what a picture has, not rows: a job with many GPUs, or
// parts of them, is one rectangle.
func TestScheduleOfMany(t *testing.T) {
	jobs := []*sched.Job{{ID: "a", GPUs: 512, Deadline: math.Inf(1)}}
	for _, c := range []struct {
		times int
		all   bool
	}{{MostBars, true}, {MostBars + 1, false}} {
		o := sched.Outcome{Job: jobs[0]}
		for i := range c.times {
			o.Steps = append(o.Steps, sched.Step{At: float64(2 * i), GPUs: 512}, sched.Step{At: float64(2*i + 1)})
		}
		var b bytes.Buffer
		if err := WriteSchedule(&b, "", 512, []sched.Outcome{o}); err != nil {
			t.Fatal(err)
		}
		if n, cut := strings.Count(b.String(), "<rect"), strings.Contains(b.String(), "until"); n != MostBars || cut == c.all {
			t.Errorf("%d times: %d rectangles, and it says that there are more: %v", c.times, n, cut)
		}
	}
}
