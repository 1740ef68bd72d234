package live

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// saved is a queue and its history, as a replacement for the events that led to it. Times are s since the queue began.
type saved struct {
	Newest  float64              `json:"newest"`
	Hosts   []*Host              `json:"hosts"`
	Jobs    []savedJob           `json:"jobs"`
	Took    map[string][]float64 `json:"took,omitempty"`
	Stays   []savedStay          `json:"stays"`
	Decided []Event              `json:"decided"`
}

type savedJob struct {
	Spec      Spec            `json:"spec"`
	Submitted float64         `json:"submitted"`
	State     State           `json:"state"`
	Want      int             `json:"want,omitempty"`
	Why       string          `json:"why,omitempty"`
	Gone      string          `json:"gone,omitempty"`
	Life      int             `json:"life,omitempty"`
	Addr      string          `json:"addr,omitempty"`
	Members   []*Member       `json:"members,omitempty"` // current workers
	Had       int             `json:"had,omitempty"`     // number of workers so far
	Samples   int64           `json:"samples,omitempty"`
	From      int64           `json:"from,omitempty"`
	Begun     float64         `json:"begun,omitempty"`
	Ended     float64         `json:"ended,omitempty"`
	Stops     int             `json:"stops,omitempty"`
	Measured  map[int]float64 `json:"measured,omitempty"`
	Given     *float64        `json:"given,omitempty"` // nil: no workers are missing
	Started   float64         `json:"started,omitempty"`
	After     State           `json:"after,omitempty"`
	Fails     int             `json:"fails,omitempty"`
	Again     float64         `json:"again,omitempty"`
	Attained  float64         `json:"attained,omitempty"`
	Since     float64         `json:"since,omitempty"`
	Steps     []sched.Step    `json:"steps,omitempty"`
}

type savedStay struct {
	Job    string   `json:"job"`
	Host   string   `json:"host"`
	Place  int      `json:"place"`
	From   float64  `json:"from"`
	To     *float64 `json:"to,omitempty"` // nil: it is still there
	Member int      `json:"member"`
}

// known returns a number that JSON can represent, else nil.
func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func number(x *float64, none float64) float64 {
	if x == nil {
		return none
	}
	return *x
}

// Save encodes the state that events led to, for Load: all that is needed to continue without the events. What running
// jobs report again is not in it.
func Save(q *Queue, h *History) ([]byte, error) {
	s := saved{Newest: q.Newest, Hosts: q.Hosts, Took: q.took, Decided: h.Decided}
	for _, j := range q.Jobs {
		s.Jobs = append(s.Jobs, savedJob{Spec: j.Spec, Submitted: j.Submitted, State: j.State, Want: j.Want, Why: j.Why, Gone: j.gone, Life: j.Life, Addr: j.Addr, Had: j.members, Samples: j.Samples, From: j.from, Begun: j.Begun, Ended: j.Ended,
			Stops: j.Stops, Measured: j.Measured, Given: known(j.given), Started: j.started, After: j.after, Fails: j.fails, Again: j.again, Attained: j.attained, Since: j.since, Steps: h.steps[j.Name], Members: j.Members})
	}
	for _, y := range h.Stays {
		s.Stays = append(s.Stays, savedStay{y.Job, y.Host, y.Place, y.From, known(y.To), y.member})
	}
	return json.Marshal(s)
}

// Load decodes a queue and its history, with these hosts: what was known of other hosts is dropped. It returns an error
// if Save did not write the text.
func Load(text []byte, hosts []*Host) (*Queue, *History, error) {
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, nil, fmt.Errorf("a saved queue: %w", err)
	}
	q, h := New(hosts), NewHistory()
	q.Newest, h.Decided = s.Newest, s.Decided
	if s.Took != nil {
		q.took = s.Took
	}
	for _, x := range s.Hosts {
		if x == nil {
			continue
		}
		if host := q.host(x.Name); host != nil {
			x.Slots, x.Closed = host.Slots, host.Closed
			*host = *x
		}
	}
	for _, x := range s.Jobs {
		if x.Spec.Name == "" || q.byName[x.Spec.Name] != nil || slices.Contains(x.Members, nil) {
			return nil, nil, fmt.Errorf("a saved queue: job %q is repeated, has no name, or has an invalid worker", x.Spec.Name)
		}
		j := newJob(x.Spec, x.Submitted)
		j.State, j.Want, j.Why, j.gone, j.Life, j.Addr, j.members, j.Samples, j.from, j.Members = x.State, x.Want, x.Why, x.Gone, x.Life, x.Addr, x.Had, x.Samples, x.From, x.Members
		j.Begun, j.Ended, j.Stops, j.Measured, j.given, j.started = x.Begun, x.Ended, x.Stops, x.Measured, number(x.Given, math.NaN()), x.Started
		j.after, j.fails, j.again, j.attained, j.since = x.After, x.Fails, x.Again, x.Attained, x.Since
		q.Jobs, q.byName[j.Name] = append(q.Jobs, j), j
		if len(x.Steps) > 0 {
			h.steps[j.Name] = x.Steps
		}
	}
	q.staff()
	for _, y := range s.Stays {
		if y.Place < 0 || y.Place >= mostPlaces {
			return nil, nil, fmt.Errorf("a saved queue: worker %d of job %q on place %d of %s: want 0 to %d", y.Member, y.Job, y.Place, y.Host, mostPlaces-1)
		}
		h.Stays = append(h.Stays, Stay{y.Job, y.Host, y.Place, y.From, number(y.To, never), y.Member})
		for y.To == nil && len(h.taken[y.Host]) <= y.Place {
			h.taken[y.Host] = append(h.taken[y.Host], false)
		}
		if y.To == nil {
			h.taken[y.Host][y.Place] = true
		}
	}
	return q, h, nil
}

// Fold applies events to a saved state (nil: the empty one) and saves the result. The error names an event that cannot
// have happened.
func Fold(text []byte, hosts []*Host, since []Event) ([]byte, error) {
	q, h := New(hosts), NewHistory()
	if text != nil {
		var err error
		if q, h, err = Load(text, hosts); err != nil {
			return nil, err
		}
	}
	for i, e := range since {
		if err := q.Apply(e); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
		h.Add(e)
	}
	return Save(q, h)
}
