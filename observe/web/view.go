package web

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"star"
	"star/runlog"
)

// View is a State as the page reads it: JSON. Times are seconds since the coordinator began; an unknown value is null.
type View struct {
	Program  string         `json:"program"`
	Job      string         `json:"job"`
	Began    time.Time      `json:"began"` // the coordinator
	Arch     string         `json:"arch"`
	Model    string         `json:"model"`
	Data     string         `json:"data"`
	Notes    []string       `json:"notes"`
	Headline string         `json:"headline"`
	Bad      bool           `json:"bad"`    // a worker is slow, or the job has failed
	Status   string         `json:"status"` // waiting, running, ended, failed, or unreadable
	Now      float64        `json:"now"`
	From     float64        `json:"from"` // the training
	Samples  int64          `json:"samples"`
	Limit    int64          `json:"limit"`             // samples at the end of the job
	Watched  bool           `json:"watched,omitempty"` // the job is not STAR's: it has no known end and no checkpoints
	Updates  int64          `json:"updates"`
	Mode     string         `json:"mode"`
	Rate     runlog.Number  `json:"rate"` // samples per second, lately
	Accuracy runlog.Number  `json:"accuracy"`
	Loss     runlog.Number  `json:"loss"` // in training, lately
	Left     runlog.Number  `json:"left"` // seconds to the end at that rate
	Modes    []ViewMode     `json:"modes"`
	Episodes []ViewEpisode  `json:"episodes"` // times of slow workers
	Together []ViewTogether `json:"together"` // times in which all workers were slower than before
	Workers  []ViewWorker   `json:"workers"`
	Hidden   int            `json:"hidden"` // workers that have no row
	Series   ViewSeries     `json:"series"`
	Evals    []ViewEval     `json:"evals"`
	Shards   []ViewShard    `json:"shards"` // that have copies
	Servers  int            `json:"shards_of"`
	Term     int64          `json:"term"` // of the coordinator; 0: only one process may coordinate
	Saves    []ViewSave     `json:"checkpoints"`
	Happened []ViewEvent    `json:"events"`
	Lacks    string         `json:"lacks,omitempty"` // what the log has no room for, and what that means for the page
	Result   *runlog.Result `json:"result"`
}

// ViewMode is a mode, from At to the next one.
type ViewMode struct {
	At        float64       `json:"at"`
	Plan      string        `json:"plan"`
	Why       string        `json:"why"`
	Predicted runlog.Number `json:"predicted_gain"`
	Seen      runlog.Number `json:"seen_gain"`
	Reverted  bool          `json:"reverted"`
}

// ViewEpisode is a time that a worker was slow.
type ViewEpisode struct {
	Worker   star.Worker   `json:"worker"`
	Since    float64       `json:"since"`
	Until    runlog.Number `json:"until"` // null: it is slow now
	Step     int64         `json:"step"`
	Slowdown runlog.Number `json:"slowdown"`
	Cause    string        `json:"cause"`
	Says     string        `json:"says"`
	Cost     runlog.Number `json:"cost"` // share of the others' time that they waited meanwhile
}

// ViewTogether is a time in which all workers together were slower than in the job's own past.
type ViewTogether struct {
	Since    float64       `json:"since"`
	Until    runlog.Number `json:"until"` // null: they are now
	Slowdown runlog.Number `json:"slowdown"`
	Hosts    []string      `json:"hosts"`
	Part     string        `json:"part"`
	Cause    string        `json:"cause"`
	Says     string        `json:"says"`
}

// ViewWorker is a worker: its recent iteration times, in seconds, and its activity in each stretch of the series.
type ViewWorker struct {
	Rank    star.Worker   `json:"rank"`
	Peer    string        `json:"peer"`
	Left    bool          `json:"left"`
	Step    int64         `json:"step"`
	Load    runlog.Number `json:"load"`
	Compute runlog.Number `json:"compute"`
	Net     runlog.Number `json:"net"`
	Wait    runlog.Number `json:"wait"`
	Slow    runlog.Number `json:"slow"` // how many times; null: it is not
	Cause   string        `json:"cause"`
	// a character for each stretch: = works, # works and is slow, . waits, space: neither
	Line string `json:"line"`
}

// ViewSeries are means over stretches of time; a value for each, at its middle.
type ViewSeries struct {
	T     []float64       `json:"t"`
	Rate  []runlog.Number `json:"rate"`
	Loss  []runlog.Number `json:"loss"`
	Noise []runlog.Number `json:"noise"`
	From  float64         `json:"from"`
	Width float64         `json:"width"` // of a stretch
}

// ViewEval is an evaluation.
type ViewEval struct {
	At       float64       `json:"at"`
	Loss     runlog.Number `json:"loss"`
	Accuracy runlog.Number `json:"accuracy"`
}

// ViewShard is a shard that has copies.
type ViewShard struct {
	Shard     int   `json:"shard"`
	Primary   int   `json:"primary"`
	Followers []int `json:"followers"`
	Of        int   `json:"of"`
}

// ViewSave is a checkpoint, or an attempt at one.
type ViewSave struct {
	At      float64 `json:"at"`
	ID      string  `json:"id"`
	Version int64   `json:"version"`
	Err     string  `json:"error"`
}

// ViewEvent is something else that has happened.
type ViewEvent struct {
	At   float64 `json:"at"`
	Says string  `json:"says"`
}

func unknown() runlog.Number { return runlog.Number(math.NaN()) }

func (a average) number() runlog.Number {
	if !a.known {
		return unknown()
	}
	return runlog.Number(a.value)
}

// View is the state now.
func (s *State) View() View {
	v := View{
		Program: s.start.Program, Job: s.start.Job, Began: s.start.Time, Arch: "parameter servers", Notes: append([]string{}, s.start.Notes...),
		Now: s.now.Seconds(), Samples: s.samples, Updates: s.updates, Term: s.term, Result: s.end,
		Rate: unknown(), Accuracy: unknown(), Loss: unknown(), Left: unknown(),
		Modes: []ViewMode{}, Episodes: []ViewEpisode{}, Together: []ViewTogether{}, Workers: []ViewWorker{}, Evals: []ViewEval{}, Shards: []ViewShard{}, Saves: []ViewSave{}, Happened: []ViewEvent{},
	}
	if s.ring {
		v.Arch = "all-reduce"
	}
	v.Watched = s.watched
	v.Headline, v.Bad = s.headline()
	v.Lacks = s.missing.Means("samples and updates are counted, the rate of that time is its mean, and the rest leaves it out")
	v.Status = s.status()
	if s.train != nil {
		v.Model, v.Data, v.Limit, v.From, v.Servers = s.train.Model, s.train.Data, s.train.Limit, s.began.Seconds(), s.train.Shards
		s.series(&v)
	}
	for _, m := range s.modes {
		v.Modes = append(v.Modes, ViewMode{m.at.Seconds(), m.plan, m.why, runlog.Number(m.predicted), runlog.Number(m.seen), m.reverted})
		v.Mode = m.plan
	}
	for i := range s.episodes {
		e := &s.episodes[i]
		x := ViewEpisode{Worker: e.worker, Since: e.since.Seconds(), Until: unknown(), Step: e.step, Slowdown: runlog.Number(e.slowdown), Cause: e.cause, Says: e.says, Cost: unknown()}
		if e.until >= 0 {
			x.Until = runlog.Number(e.until.Seconds())
		}
		if e.whole > 0 {
			x.Cost = runlog.Number(float64(e.waited) / float64(e.whole))
		}
		v.Episodes = append(v.Episodes, x)
	}
	for i := range s.slowdowns {
		t := &s.slowdowns[i]
		x := ViewTogether{Since: t.since.Seconds(), Until: unknown(), Slowdown: runlog.Number(t.factor.Value()), Hosts: list(t.hosts), Part: t.part, Cause: t.cause, Says: t.says}
		if t.until >= 0 {
			x.Until = runlog.Number(t.until.Seconds())
		}
		v.Together = append(v.Together, x)
	}
	s.rows(&v)
	for _, e := range s.evals {
		v.Evals = append(v.Evals, ViewEval{e.at.Seconds(), runlog.Number(e.loss), runlog.Number(e.accuracy)})
		v.Accuracy = runlog.Number(e.accuracy)
	}
	for shard, c := range s.copies {
		v.Shards = append(v.Shards, ViewShard{shard, c.Primary, append([]int{}, c.Followers...), c.Of})
	}
	slices.SortFunc(v.Shards, func(a, b ViewShard) int { return a.Shard - b.Shard })
	for _, c := range s.saves {
		v.Saves = append(v.Saves, ViewSave{c.at.Seconds(), c.id, c.version, c.err})
	}
	for _, e := range s.happened {
		v.Happened = append(v.Happened, ViewEvent{e.at.Seconds(), e.says})
	}
	return v
}

func (s *State) status() string {
	switch {
	case s.wrong != "":
		return "unreadable"
	case s.end != nil && s.end.Error != "":
		return "failed"
	case s.end != nil:
		return "ended"
	case s.train == nil:
		return "waiting"
	}
	return "running"
}

// series fills in the curves over time.
func (s *State) series(v *View) {
	s.rate.at(s.now)
	for _, other := range []*series{&s.loss, &s.noise, &s.spent} { // all have the same stretches
		other.at(s.now)
	}
	n, width := s.rate.n, s.rate.width.Seconds()
	v.Series = ViewSeries{From: s.began.Seconds(), Width: width}
	mean := func(of *series, i int) runlog.Number {
		if of.sums[1][i] == 0 {
			return unknown()
		}
		return short(of.sums[0][i] / of.sums[1][i])
	}
	for i := range n {
		t := s.began.Seconds() + (float64(i)+0.5)*width
		w := width
		if i == n-1 { // it is not over
			w = max(s.now.Seconds()-(t-0.5*width), 0.2*width)
		}
		v.Series.T = append(v.Series.T, math.Round(1e3*t)/1e3)
		v.Series.Rate = append(v.Series.Rate, short(s.rate.sums[0][i]/w))
		v.Series.Loss = append(v.Series.Loss, mean(&s.loss, i))
		v.Series.Noise = append(v.Series.Noise, mean(&s.noise, i))
	}
	// What it does lately: over the last tenth of the stretches, five at least.
	from := max(n-max(n/10, 5), 0)
	var samples, loss, of float64
	for i := from; i < n; i++ {
		samples += s.rate.sums[0][i]
		loss += s.loss.sums[0][i]
		of += s.loss.sums[1][i]
	}
	for i := from - 1; i >= 0 && of == 0; i-- { // no worker has reported a loss since
		loss, of = s.loss.sums[0][i], s.loss.sums[1][i]
	}
	if took := s.now.Seconds() - s.began.Seconds() - float64(from)*width; took > 0 && samples > 0 {
		v.Rate = short(samples / took)
		if s.end == nil && s.train.Limit > s.samples {
			v.Left = short(float64(s.train.Limit-s.samples) * took / samples)
		}
	}
	if of > 0 {
		v.Loss = short(loss / of)
	}
	if s.end != nil {
		v.Rate = runlog.Number(s.end.SamplesPerS)
	}
}

// short has four digits: more are not visible.
func short(x float64) runlog.Number {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	if err != nil {
		return unknown()
	}
	return runlog.Number(y)
}

// rows fills in the workers.
func (s *State) rows(v *View) {
	rows := s.shown()
	for i := range s.workers {
		if !s.workers[i].never {
			v.Hidden++
		}
	}
	v.Hidden -= len(rows)
	for _, i := range rows {
		w := &s.workers[i]
		x := ViewWorker{Rank: star.Worker(i), Peer: w.peer, Left: w.left, Step: w.step, Load: w.load.number(), Compute: w.compute.number(), Net: w.net.number(), Wait: w.waits.number(), Slow: unknown()}
		if k, ok := s.open[star.Worker(i)]; ok {
			x.Slow, x.Cause = runlog.Number(s.episodes[k].slowdown), s.episodes[k].cause
		}
		if s.train != nil {
			x.Line = s.line(i)
		}
		v.Workers = append(v.Workers, x)
	}
}

// line is what a worker did in each stretch.
func (s *State) line(i int) string {
	n, width := s.rate.n, s.spent.width
	line := make([]byte, n)
	for k := range line {
		busy, wait := s.spent.sums[2*i][k], s.spent.sums[2*i+1][k]
		switch {
		case busy+wait < 0.1*width.Seconds():
			line[k] = ' '
		case busy >= wait:
			line[k] = '='
		default:
			line[k] = '.'
		}
	}
	for _, e := range s.episodes {
		if int(e.worker) != i {
			continue
		}
		until := e.until
		if until < 0 {
			until = s.now
		}
		for k := max(int((e.since-s.began)/width), 0); k < n && s.began+time.Duration(k)*width < until; k++ {
			line[k] = '#'
		}
	}
	return strings.TrimRight(string(line), " ")
}
