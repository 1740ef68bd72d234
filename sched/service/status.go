package service

import (
	"cmp"
	"math"
	"os"
	"time"

	"star/sched/live"
)

// Status is what star sched status --json prints.
type Status struct {
	Dir    string             `json:"dir"`
	Policy string             `json:"policy"`
	Since  time.Time          `json:"since"`
	Error  string             `json:"error,omitempty"`
	Peers  []PeerStatus       `json:"peers,omitempty"`  // services that share this queue
	Took   map[string]float64 `json:"took_s,omitempty"` // median durations: start, resume, resize, end
	Hosts  []HostStatus       `json:"hosts"`
	Jobs   []JobStatus        `json:"jobs"`
	// Archive is the file of jobs that have left the queue; empty if none has.
	Archive string `json:"archive,omitempty"`
}

// HostStatus is a host in a Status.
type HostStatus struct {
	Host    string `json:"host"`
	Places  int    `json:"places"`
	Workers int    `json:"workers"`
	Slow    string `json:"slow,omitempty"`   // why it is avoided
	Closed  string `json:"closed,omitempty"` // why nothing is started there
}

// JobStatus is a job in a Status. Times are seconds since the queue began.
type JobStatus struct {
	Job         string          `json:"job"`
	State       live.State      `json:"state"`
	Workers     int             `json:"workers"` // current workers
	Want        int             `json:"want"`    // workers that the policy gives it
	Hosts       []string        `json:"hosts,omitempty"`
	Samples     int64           `json:"samples"`
	Of          int64           `json:"of"`
	Rates       map[int]float64 `json:"measured,omitempty"` // samples/s by number of workers
	Submitted   float64         `json:"submitted_s"`
	Deadline    *float64        `json:"deadline_s,omitempty"`
	Begun       *float64        `json:"begun_s,omitempty"`
	Ended       *float64        `json:"ended_s,omitempty"`
	Met         *bool           `json:"met_deadline,omitempty"`
	Preemptions int             `json:"preemptions"`
	Lives       int             `json:"lives"`
	Addr        string          `json:"addr,omitempty"` // of its coordinator
	Why         string          `json:"why,omitempty"`
}

// status returns the service's status.
func (s *Service) status() Status {
	now := s.now()
	st := Status{Dir: s.o.Dir, Policy: s.o.Policy, Since: s.began, Error: cmp.Or(s.stuck, s.full), Hosts: []HostStatus{}, Jobs: []JobStatus{}}
	for _, what := range []string{"start", "resume", "resize", "end"} {
		if took := s.q.Took(what); took > 0 {
			if st.Took == nil {
				st.Took = map[string]float64{}
			}
			st.Took[what] = math.Round(took*100) / 100
		}
	}
	if s.peers != nil {
		st.Peers = s.peers()
	}
	for _, j := range s.q.Jobs {
		st.Jobs = append(st.Jobs, s.jobStatus(j, now))
	}
	used := s.q.Used()
	for _, h := range s.q.Hosts {
		st.Hosts = append(st.Hosts, HostStatus{h.Name, h.Slots, used[h.Name], h.Slow, h.Closed})
	}
	if _, err := os.Stat(s.archiveFile()); err == nil {
		st.Archive = s.archiveFile()
	}
	return st
}

// jobStatus returns a job's status.
func (s *Service) jobStatus(j *live.Job, now float64) JobStatus {
	js := JobStatus{Job: j.Name, State: j.State, Workers: len(j.Members), Want: j.Want, Samples: j.Samples, Of: j.Spec.Samples, Rates: j.Measured, Submitted: j.Submitted, Preemptions: j.Stops, Lives: j.Life, Hosts: j.Hosts(), Why: s.why(j, now)}
	if !math.IsInf(j.Due, 1) {
		js.Deadline = &j.Due
	}
	if j.Life > 0 {
		js.Begun = &j.Begun
	}
	if !j.Active() {
		met := j.Met()
		js.Ended, js.Met = &j.Ended, &met
	} else if j.State != live.Waiting {
		js.Addr = j.Addr
	}
	return js
}
