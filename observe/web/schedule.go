package web

import (
	"io"
	"net/http"
	"time"

	"star/runlog"
)

// Schedules are the jobs in the places of a cluster over time, for a page: JSON. Times are seconds
// since Began, or of the trace's clock; unknown values are null.
type Schedules struct {
	Title     string     `json:"title"`
	Live      bool       `json:"live"`            // of a service: it continues
	Began     *time.Time `json:"began,omitempty"` // when its times begin; nil: they are of a trace
	Schedules []Schedule `json:"schedules"`       // under one policy each; never none
}

// Schedule is a Schedules under one policy.
type Schedule struct {
	Policy   string `json:"policy"`
	Headline string `json:"headline"`
	Bad      bool   `json:"bad"`
	Note     string `json:"note"`  // omitted content
	Place    string `json:"place"` // what a row is: a GPU, a worker's place

	From  float64  `json:"from"` // of the picture
	Now   float64  `json:"now"`
	Rows  int      `json:"rows"`  // of the picture
	Parts int      `json:"parts"` // rows of a place: more than one where jobs share
	Names []string `json:"names"` // of the jobs in Bars
	Bars  []Bar    `json:"bars"`

	Length  float64   `json:"length"`  // of a part of Used and Waiting, from From on
	Used    []float64 `json:"used"`    // places that jobs have
	Waiting []float64 `json:"waiting"` // jobs that have none

	Hosts   []ScheduleHost `json:"hosts"` // in order of their rows; none: places have no names
	Running ScheduleJobs   `json:"running"`
	Queue   ScheduleJobs   `json:"queue"`
	Refused ScheduleJobs   `json:"refused"` // declined, failed, cancelled, stopped
	Ended   ScheduleJobs   `json:"ended"`
	Met     int            `json:"met"`     // deadlines, of the jobs that have ended
	Due     int            `json:"due"`     // how many of those had one
	Decided []Decided      `json:"decided"` // lately, newest first
}

// Bar is a time in which a job has some rows: the job's index in Names, the first row, how many, from when and
// until when, s; until below 0: it has them still.
type Bar [5]float64

// ScheduleHost is a host.
type ScheduleHost struct {
	Host    string `json:"host"`
	Places  int    `json:"places"`
	Workers int    `json:"workers"`
	Slow    string `json:"slow"` // why it is avoided
}

// ScheduleJobs are as many jobs as a page shows.
type ScheduleJobs struct {
	Count int           `json:"count"`
	Jobs  []ScheduleJob `json:"jobs"`
}

// Add adds a job, unless there are most already.
func (s *ScheduleJobs) Add(j ScheduleJob, most int) {
	if s.Count++; len(s.Jobs) < most {
		s.Jobs = append(s.Jobs, j)
	}
}

// ScheduleJob is a job.
type ScheduleJob struct {
	Job       string        `json:"job"`
	State     string        `json:"state"`
	Has       float64       `json:"has"`  // places
	Want      float64       `json:"want"` // that the policy gives it
	Hosts     []string      `json:"hosts,omitempty"`
	Done      runlog.Number `json:"done"` // share of its work
	Submitted float64       `json:"submitted"`
	Begun     runlog.Number `json:"begun"`
	Ended     runlog.Number `json:"ended"`
	Deadline  runlog.Number `json:"deadline"`
	Waited    float64       `json:"waited"` // s without places since it was submitted
	Stops     int           `json:"preemptions"`
	Why       string        `json:"why"`
}

// Decided is something that was decided, or has happened.
type Decided struct {
	At   float64 `json:"at"`
	Job  string  `json:"job"`
	Says string  `json:"says"`
}

// encode writes schedules on one line. Lists of nothing are lists.
func (s Schedules) encode() []byte {
	s.Schedules = append([]Schedule{}, s.Schedules...)
	for i := range s.Schedules {
		x := &s.Schedules[i]
		x.Names, x.Bars, x.Hosts, x.Decided = list(x.Names), list(x.Bars), list(x.Hosts), list(x.Decided)
		x.Used, x.Waiting = list(x.Used), list(x.Waiting)
		for _, jobs := range []*ScheduleJobs{&x.Running, &x.Queue, &x.Refused, &x.Ended} {
			jobs.Jobs = list(jobs.Jobs)
		}
	}
	return numbered(struct {
		Page int `json:"page"`
		Schedules
	}{page, s})
}

func list[T any](of []T) []T {
	if of == nil {
		return []T{}
	}
	return of
}

// LiveSchedules are schedules that may change, for any number of readers.
type LiveSchedules struct {
	feed
	now Schedules
}

// NewSchedules begins with these.
func NewSchedules(s Schedules) *LiveSchedules {
	l := &LiveSchedules{now: s}
	l.feed = newFeed(func() ([]byte, bool) { return l.now.encode(), !l.now.Live })
	return l
}

// Show shows others from now on.
func (l *LiveSchedules) Show(s Schedules) {
	l.mu.Lock()
	l.now, l.dirty = s, true
	l.mu.Unlock()
	l.Wake()
}

// Handler serves the page at the paths below it: the page and its parts, events (the views), view.json, and files.
func (l *LiveSchedules) Handler(files Downloads) http.Handler {
	return l.handler("schedule.html", files)
}

// ReportSchedules writes the page of schedules as one file that needs no server and no network.
func ReportSchedules(w io.Writer, s Schedules) error {
	return report(w, "schedule.html", "schedule.js", s.encode())
}
