// Package fleet looks at several jobs at once: which hosts were slow in how many of them. A host that is slow more
// often than the others are is chronic; one that was slow where others are as often was unlucky.
//
// A [Job] takes the lines of one run log, which may grow; [Of] puts jobs together. Slow workers are those of the
// page of a job ([web.State]). As in star sched serve, a worker that is slow for an unknown cause does not count
// against its host.
//
// The statistic: a host took part in n jobs and was slow in k of them, whatever the number and length of its slow
// times. The others' rate is p = (Σk + ½)/(Σn + 1), over all other hosts. A host is chronic if k ≥ 2 and the
// probability of k or more of n at that rate (binomial) is below 5 % divided by the number of hosts (Bonferroni):
// of 20 fleets with hosts that are alike, at most about one has a chronic host by chance. With one host there is
// nothing to compare it with.
package fleet

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"star"
	"star/observe/web"
	"star/runlog"
	"star/straggler"
)

// Job is a log of a job. Logs with the same name are lives of one job.
type Job struct {
	name  string
	state *web.State
	hosts map[star.Worker][]stay
	began time.Time
	quiet bool
}

// stay is a worker's host from a time on.
type stay struct {
	from time.Duration
	host string
}

// NewJob begins with the first line.
func NewJob(name string) *Job {
	return &Job{name: name, state: web.NewState(), hosts: map[star.Worker][]stay{}}
}

// Line takes the next line.
func (j *Job) Line(l runlog.Line) error {
	switch e := l.Entry.(type) {
	case runlog.Start:
		j.began = e.Time
	case runlog.Join:
		j.hosts[e.Worker] = append(j.hosts[e.Worker], stay{l.T, e.Host()})
	}
	return j.state.Line(l)
}

// Quiet says whether a log without its last line has not grown for long: the job was killed, or is stuck.
func (j *Job) Quiet(quiet bool) { j.quiet = quiet }

// Wrong records that the log cannot be read any further.
func (j *Job) Wrong(err error) { j.state.Wrong(err) }

// Ended reports whether the log has its last line.
func (j *Job) Ended() bool { return j.state.Ended() }

// at is the host of a worker at a time of the log.
func (j *Job) at(w star.Worker, t time.Duration) string {
	host := ""
	for i, s := range j.hosts[w] {
		if i == 0 || s.from <= t {
			host = s.host
		}
	}
	return host
}

// Fleet is several jobs.
type Fleet struct {
	Jobs  []JobStatus `json:"jobs"`  // running ones first, then the newest
	Hosts []Host      `json:"hosts"` // chronic ones first, then those that were slow in most jobs
}

// JobStatus is a job as its last life is. Times are in seconds.
type JobStatus struct {
	Job     string        `json:"job"`
	Status  string        `json:"status"` // waiting, running, silent (see Quiet), ended, failed or unreadable
	Began   time.Time     `json:"began"`
	Mode    string        `json:"mode"`
	Workers int           `json:"workers"`
	Done    runlog.Number `json:"done"` // share of its samples; null: it has no known end
	Rate    runlog.Number `json:"samples_per_s"`
	Left    runlog.Number `json:"left_s"`
	Says    string        `json:"says"` // which worker is slow, as the headline of its page
	Bad     bool          `json:"bad"`
}

// Host is a host in all jobs.
type Host struct {
	Host   string         `json:"host"`
	Jobs   int            `json:"jobs"`   // that it took part in
	Slow   int            `json:"slow"`   // jobs in which one of its workers was slow
	Chance float64        `json:"chance"` // probability of that, or more, at the rate of the other hosts
	Kind   string         `json:"kind"`   // chronic, unlucky, or empty: it was not slow
	Causes map[string]int `json:"causes"` // jobs by cause
	Now    []string       `json:"now"`    // jobs in which it is slow now
}

// level is the probability that one of several hosts that are alike is called chronic.
const level = 0.05

// Of puts jobs together. self is the name of this host, for workers with addresses of the loopback interface.
func Of(jobs []*Job, self string) Fleet {
	f := Fleet{Jobs: []JobStatus{}, Hosts: []Host{}}
	type count struct {
		jobs, slow map[string]bool
		causes     map[string]map[string]bool // jobs, by cause
		now        map[string]bool
	}
	hosts := map[string]*count{}
	of := func(name string) *count {
		if name == "" {
			return nil
		}
		if name == "localhost" || name == "::1" || strings.HasPrefix(name, "127.") {
			name = self
		}
		if hosts[name] == nil {
			hosts[name] = &count{map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
		}
		return hosts[name]
	}
	last := map[string]*Job{}
	for _, j := range jobs {
		if o := last[j.name]; o == nil || o.began.Before(j.began) {
			last[j.name] = j
		}
	}
	for _, j := range jobs {
		v := j.state.View()
		if j.quiet && (v.Status == "running" || v.Status == "waiting") {
			v.Status = "silent"
		}
		for _, stays := range j.hosts {
			for _, s := range stays {
				if c := of(s.host); c != nil {
					c.jobs[j.name] = true
				}
			}
		}
		for _, e := range v.Episodes {
			c := of(j.at(e.Worker, time.Duration(e.Since*float64(time.Second))))
			if c == nil || e.Cause == straggler.Unknown.String() {
				continue
			}
			c.slow[j.name] = true
			if c.causes[e.Cause] == nil {
				c.causes[e.Cause] = map[string]bool{}
			}
			c.causes[e.Cause][j.name] = true
			if math.IsNaN(float64(e.Until)) && v.Status == "running" {
				c.now[j.name] = true
			}
		}
		if last[j.name] == j {
			f.Jobs = append(f.Jobs, j.status(v))
		}
	}
	slices.SortStableFunc(f.Jobs, func(a, b JobStatus) int {
		return cmp.Or(cmp.Compare(over(a.Status), over(b.Status)), b.Began.Compare(a.Began), cmp.Compare(a.Job, b.Job))
	})
	for name, c := range hosts {
		h := Host{Host: name, Jobs: len(c.jobs), Slow: len(c.slow), Causes: map[string]int{}, Now: []string{}}
		for cause, jobs := range c.causes {
			h.Causes[cause] = len(jobs)
		}
		for job := range c.now {
			h.Now = append(h.Now, job)
		}
		slices.Sort(h.Now)
		f.Hosts = append(f.Hosts, h)
	}
	f.judge()
	slices.SortFunc(f.Hosts, func(a, b Host) int {
		rank := func(h Host) int { return slices.Index([]string{"chronic", "unlucky", ""}, h.Kind) }
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Slow, a.Slow), cmp.Compare(a.Chance, b.Chance), cmp.Compare(a.Host, b.Host))
	})
	return f
}

func over(status string) int {
	if status == "running" || status == "waiting" {
		return 0
	}
	return 1
}

func (j *Job) status(v web.View) JobStatus {
	s := JobStatus{Job: j.name, Status: v.Status, Began: j.began, Mode: v.Mode, Workers: len(v.Workers) + v.Hidden, Done: runlog.Number(math.NaN()), Rate: v.Rate, Left: v.Left, Says: v.Headline, Bad: v.Bad}
	if v.Limit > 0 {
		s.Done = runlog.Number(math.Round(1e3*float64(v.Samples)/float64(v.Limit)) / 1e3)
	}
	return s
}

// judge tells chronic hosts from unlucky ones.
func (f *Fleet) judge() {
	jobs, slow := 0, 0
	for _, h := range f.Hosts {
		jobs, slow = jobs+h.Jobs, slow+h.Slow
	}
	for i := range f.Hosts {
		h := &f.Hosts[i]
		p := (float64(slow-h.Slow) + 0.5) / (float64(jobs-h.Jobs) + 1)
		h.Chance = 1
		if h.Slow == 0 {
			continue
		}
		h.Kind = "unlucky"
		if p < 1 {
			h.Chance = 1 - distuv.Binomial{N: float64(h.Jobs), P: p}.CDF(float64(h.Slow)-1)
		}
		if len(f.Hosts) > 1 && h.Slow >= 2 && h.Chance < level/float64(len(f.Hosts)) {
			h.Kind = "chronic"
		}
	}
}

// Headline says which hosts are chronic, and how many jobs run.
func (f *Fleet) Headline() (text string, bad bool) {
	running, slow := 0, 0
	for _, j := range f.Jobs {
		running += 1 - over(j.Status)
	}
	var chronic []string
	for _, h := range f.Hosts {
		switch h.Kind {
		case "chronic":
			chronic = append(chronic, fmt.Sprintf("%s (slow in %d of %d jobs)", h.Host, h.Slow, h.Jobs))
		case "unlucky":
			slow++
		}
	}
	text = fmt.Sprintf("%s, %d running, on %s. ", count(len(f.Jobs), "job"), running, count(len(f.Hosts), "host"))
	switch {
	case len(chronic) > 0:
		return text + "Slow more often than the others: " + strings.Join(chronic, ", ") + ".", true
	case slow > 0:
		return text + fmt.Sprintf("No host is slow more often than the others; slow at times: %d.", slow), false
	}
	return text + "No host was slow.", false
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// HostRows and JobRows are the tables as text, below Heads.
func (f *Fleet) HostRows() (rows [][]string) {
	for _, h := range f.Hosts {
		var causes []string
		for c, n := range h.Causes {
			causes = append(causes, fmt.Sprintf("%s %d", c, n))
		}
		slices.Sort(causes)
		chance := "–"
		if h.Slow > 0 {
			chance = fmt.Sprintf("%.2g", h.Chance)
		}
		rows = append(rows, []string{h.Host, fmt.Sprint(h.Jobs), fmt.Sprint(h.Slow), chance, cmp.Or(h.Kind, "–"), cmp.Or(strings.Join(causes, ", "), "–"), cmp.Or(strings.Join(h.Now, ", "), "–")})
	}
	return rows
}

// Heads are those of the tables of hosts and of jobs.
var Heads = [2][]string{
	{"host", "jobs", "slow in", "chance", "", "causes", "slow now in"},
	{"job", "status", "done", "samples/s", "workers", "mode", ""},
}

// JobRows: see HostRows.
func (f *Fleet) JobRows() (rows [][]string) {
	for _, j := range f.Jobs {
		done, rate := "–", "–"
		if d := float64(j.Done); d == d {
			done = fmt.Sprintf("%.0f %%", 100*d)
		}
		if r := float64(j.Rate); r == r {
			rate = fmt.Sprintf("%.0f", r)
		}
		rows = append(rows, []string{j.Job, j.Status, done, rate, fmt.Sprint(j.Workers), cmp.Or(j.Mode, "–"), j.Says})
	}
	return rows
}

// Text writes the fleet for people, with at most that many jobs.
func (f *Fleet) Text(out io.Writer, jobs int) error {
	var b strings.Builder
	text, _ := f.Headline()
	fmt.Fprintf(&b, "%s\n\n", text)
	for i, rows := range [2][][]string{f.HostRows(), f.JobRows()} {
		more := 0
		if i == 1 && len(rows) > jobs {
			rows, more = rows[:jobs], len(rows)-jobs
		}
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{Heads[i]}, rows...) {
			fmt.Fprintln(tw, strings.Join(row, "\t"))
		}
		tw.Flush()
		if more > 0 {
			fmt.Fprintf(&b, "and %d jobs more\n", more)
		}
		if i == 0 {
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
