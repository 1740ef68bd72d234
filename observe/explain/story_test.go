package explain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/job"
	"star/runlog"
)

// log writes run logs.
type log struct {
	strings.Builder
	t       float64 // now
	seq     int
	samples int
	steps   [4]int
}

func newLog(arch string) *log {
	l := &log{t: 1}
	l.say(`{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{"arch":%q}}`, arch)
	l.say(`{"type":"train","t":1,"workers":4,"shards":1,"model":"m","data":"d","limit":1000,"version":0,"plan":"ssgd"}`)
	return l
}

func (l *log) say(format string, a ...any) { fmt.Fprintf(l, format+"\n", a...) }

// round is one update of SSGD: each worker computes for so long and waits for the slowest.
func (l *log) round(seconds ...float64) {
	longest := 0.0
	for _, s := range seconds {
		longest = max(longest, s)
	}
	for w, s := range seconds {
		wait := 0.0 // real records tell it one later
		if l.steps[w] > 0 {
			wait = longest - s
		}
		l.say(`{"type":"record","t":%g,"worker":%d,"step":%d,"basis":%d,"at":%g,"compute":%g,"wait":%g,"samples":10}`,
			l.t+s, w, l.steps[w], l.seq, l.t+s, s, wait)
		l.steps[w]++
	}
	l.t += longest
	l.seq++
	l.samples += 10 * len(seconds)
	l.say(`{"type":"fire","t":%g,"seq":%d,"version":%d,"workers":[0,1,2,3],"staleness":[0,0,0,0],"samples":%d}`, l.t, l.seq, l.seq, l.samples)
}

func (l *log) rounds(n int, seconds ...float64) {
	for range n {
		l.round(seconds...)
	}
}

func (l *log) story(t testing.TB) *Story {
	t.Helper()
	teller := New()
	read, err := runlog.Read(strings.NewReader(l.String()), "log", teller.Add)
	if err != nil {
		t.Fatal(err)
	}
	return teller.Story(read)
}

// about compares times in the sixth digit: they are sums of what was printed.
func about(got time.Duration, want float64) bool { return math.Abs(got.Seconds()-want) < 1e-6 }

// Worker 2 is slow from its iteration 30 to 69, and at 50 the mode changes.
func slowForAWhile() *log {
	l := newLog("ps")
	l.rounds(30, 1, 1, 1, 1)
	l.rounds(20, 1, 1, 3, 1)
	l.say(`{"type":"plan","t":%g,"plan":"x=3","from":"ssgd","why":"star ctl"}`, l.t)
	l.rounds(20, 1, 1, 2, 1) // as if less of it were waited for
	l.rounds(30, 1, 1, 1, 1)
	return l
}

func TestEpisode(t *testing.T) {
	s := slowForAWhile().story(t)
	if len(s.Episodes) != 1 {
		t.Fatalf("%d episodes: %+v", len(s.Episodes), s.Episodes)
	}
	e := s.Episodes[0]
	if e.Worker != 2 || e.From != 30 || e.To < 68 || e.To > 70 || e.Open {
		t.Errorf("worker %d, steps %d to %d, open %v; want 2, 30 to 69, closed", e.Worker, e.From, e.To, e.Open)
	}
	if !about(e.Since, 31) || e.Until < 130*time.Second || e.Until > 132*time.Second {
		t.Errorf("from %v to %v, want 31 s to 131 s", e.Since, e.Until)
	}
	if e.Slowdown < 2 || e.Slowdown > 3 || e.Cause != "compute" || len(e.Evidence) == 0 || e.Action != 0 {
		t.Errorf("%+v", e)
	}
	if !about(e.Waited, 180) { // three workers, 20 times 2 s and 20 times 1 s
		t.Errorf("others waited %v, want 3 min", e.Waited)
	}
	c := s.Changes[0]
	// 40 samples in 3 s, then in 2 s.
	if math.Abs(c.Before-40.0/3) > 1e-9 || math.Abs(c.After-20) > 1e-9 || math.Abs(c.Seen-1.0/3) > 1e-9 || !math.IsNaN(c.Predicted) {
		t.Errorf("change: %+v, want 13.3 and 20 samples/s: a third saved", c)
	}
	if s.Samples != 4000 || s.Updates != 100 || !about(s.Began, 1) {
		t.Errorf("%d samples, %d updates, began %v", s.Samples, s.Updates, s.Began)
	}
}

// A pause during an evaluation does not count as slowness of the mode.
func TestGainsLeaveOutEvaluations(t *testing.T) {
	l := newLog("ps")
	l.rounds(10, 1, 1, 1, 1)
	l.say(`{"type":"plan","t":%g,"plan":"asgd","from":"ssgd","why":"w"}`, l.t)
	l.rounds(4, 1, 1, 1, 1)
	l.t += 100
	l.say(`{"type":"eval","t":%g,"samples":1,"loss":1,"accuracy":0.5}`, l.t)
	l.rounds(4, 1, 1, 1, 1)
	if c := l.story(t).Changes[0]; math.Abs(c.Seen) > 1e-9 {
		t.Errorf("%+v, want no gain", c)
	}
}

// Two firings are too few to say what a change brought.
func TestGainNeedsTime(t *testing.T) {
	l := newLog("ps")
	l.rounds(10, 1, 1, 1, 1)
	l.say(`{"type":"plan","t":%g,"plan":"asgd","from":"ssgd","why":"w"}`, l.t)
	l.rounds(2, 1, 1, 1, 1)
	if c := l.story(t).Changes[0]; !math.IsNaN(c.Seen) || math.IsNaN(c.Before) {
		t.Errorf("%+v", c)
	}
}

// Nor from three gradients of one worker.
func TestGainNeedsEverybody(t *testing.T) {
	l := newLog("ps")
	l.rounds(10, 1, 1, 1, 1)
	l.say(`{"type":"plan","t":%g,"plan":"asgd","from":"ssgd","why":"w"}`, l.t)
	for i := range 6 {
		l.say(`{"type":"fire","t":%g,"seq":%d,"version":%d,"workers":[0],"staleness":[0],"samples":%d}`, l.t+float64(i+1), 11+i, 11+i, 410+10*i)
	}
	if c := l.story(t).Changes[0]; !math.IsNaN(c.Seen) {
		t.Errorf("%+v", c)
	}
}

// A change of mode that was made before any worker became slow is not the action of the episode, and waits before it,
// or of the slow worker itself, do not count for it.
func TestWhatIsNotOfAnEpisode(t *testing.T) {
	l := newLog("ps")
	l.rounds(20, 1, 1, 1, 1.1)
	l.say(`{"type":"plan","t":%g,"plan":"backup=1","from":"ssgd","why":"w"}`, l.t)
	l.rounds(10, 1, 1, 1, 1.1)
	l.rounds(20, 1, 1, 3, 1)
	l.round(5, 1, 3, 1) // workers 1 and 3 wait 4 s, and worker 2 waits 2 s itself
	l.rounds(20, 1, 1, 3, 1)
	s := l.story(t)
	if len(s.Episodes) != 1 || s.Episodes[0].Action != -1 {
		t.Fatalf("%+v", s.Episodes)
	}
	// Of three workers: 40 rounds of 2 s; and 4 s of workers 1 and 3.
	if e := s.Episodes[0]; !about(e.Waited, 3*40*2+2*4) {
		t.Errorf("others waited %v", e.Waited)
	}
}

// While shards store a gradient, its worker waits for no other worker.
func TestTransitIsNoWait(t *testing.T) {
	l := newLog("ps")
	l.say(`{"type":"record","t":9,"worker":0,"step":0,"at":9,"compute":1,"wait":3,"transit":1,"samples":1}`)
	if it := l.story(t).Workers[0].Iterations[0]; it.Wait != 2*time.Second || it.Busy != 2*time.Second {
		t.Errorf("%+v", it)
	}
}

// The cause of an episode is the one that held for longest.
func TestCauses(t *testing.T) {
	l := newLog("ps")
	l.rounds(9, 1, 1, 1, 1)
	for i, cause := range []string{"data", "steal", "steal"} {
		l.say(`{"type":"verdict","t":%g,"worker":1,"event":%q,"step":%d,"since":2,"slowdown":2,"cause":%q}`, l.t, []string{"slow", "changed", "changed"}[i], 5+i, cause)
	}
	if e := l.story(t).Episodes[0]; e.Cause != "steal" || len(e.Others) != 1 || e.Others[0] != "data" {
		t.Errorf("%+v", e)
	}
}

// What was said first, before anybody could know, is not it.
func TestCauseFoundLater(t *testing.T) {
	l := newLog("ps")
	l.rounds(40, 1, 1, 1, 1)
	for i, cause := range []string{"unknown", "compute"} {
		l.say(`{"type":"verdict","t":%g,"worker":1,"event":%q,"step":%d,"since":2,"slowdown":2,"cause":%q}`, l.t, []string{"slow", "changed"}[i], 5+3*i, cause)
	}
	if e := l.story(t).Episodes[0]; e.Cause != "compute" || len(e.Others) != 1 || e.Others[0] != "unknown" {
		t.Errorf("%+v", e)
	}
}

// A worker that stood still now and then did so until its last long iteration.
func TestPausesEnd(t *testing.T) {
	l := newLog("ps")
	l.rounds(40, 1, 1, 1, 1)
	for range 15 {
		l.rounds(5, 1, 1, 1, 1)
		l.round(1, 4, 1, 1)
	}
	last := l.steps[1] - 1
	l.rounds(80, 1, 1, 1, 1)
	s := l.story(t)
	if len(s.Episodes) != 1 || s.Episodes[0].Cause != "pauses" || s.Episodes[0].Open || s.Episodes[0].To != int64(last) {
		t.Errorf("want pauses to step %d: %+v", last, s.Episodes)
	}
}

// What a rider of a ring needs to send its gradient is not what the ring needs for an exchange.
func TestRiders(t *testing.T) {
	l := newLog("allreduce")
	l.say(`{"type":"plan","t":1,"plan":"ring-minus=3","from":"ssgd","why":"w"}`)
	for w, push := range []float64{2, 3, 4, 0.5} {
		l.say(`{"type":"record","t":9,"worker":%d,"step":0,"basis":0,"compute":1,"push":%g,"wait":0.25,"samples":10}`, w, push)
	}
	s := l.story(t)
	for w, want := range []float64{0.25, 1.25, 2.25, 0.25} {
		if it := s.Workers[w].Iterations[0]; !about(it.Wait, want) {
			t.Errorf("worker %d waits %v, want %g s", w, it.Wait, want)
		}
	}
}

// Where the job itself logged what it found and saw, the story shows that.
func TestTheJobsOwnWords(t *testing.T) {
	l := newLog("ps")
	l.rounds(30, 1, 1, 1, 1)
	l.say(`{"type":"verdict","t":%g,"worker":1,"event":"slow","step":29,"since":20,"slowdown":2.5,"cause":"steal","evidence":[{"what":"steal","value":0.61,"other":0,"text":"CPU steal 61 %%"}]}`, l.t)
	l.say(`{"type":"plan","t":%g,"plan":"x=3","from":"ssgd","why":"w1 is slow","predicted_gain":0.38}`, l.t)
	l.rounds(10, 1, 1, 1, 1)
	l.say(`{"type":"gain","t":%g,"plan":"x=3","predicted_gain":0.38,"seen_gain":0.35,"reverted":true}`, l.t)
	l.rounds(20, 1, 1, 1, 1)
	l.say(`{"type":"verdict","t":%g,"worker":1,"event":"recovered","step":59,"since":20,"slowdown":2,"cause":"steal"}`, l.t)
	l.rounds(3, 1, 1, 1, 1)
	s := l.story(t)
	if len(s.Episodes) != 1 || !s.Own {
		t.Fatalf("%+v", s.Episodes)
	}
	want := "w1 2.5x slow, it 20–49 (30 s): CPU steal 61 % → mode x=3 (gain 38 % predicted, 35 % seen; reverted); others waited 0 s"
	if got := s.line(s.Episodes[0]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	x := s.Entries()[0]
	if x.Worker != 1 || x.FromStep != 20 || x.ToStep != 49 || x.Action != "x=3" || x.Predicted != 0.38 || x.Seen != 0.35 || !x.Reverted || x.Cause != "steal" || x.Open {
		t.Errorf("%+v", x)
	}
}

// Times in which all workers were slow together are in the story; the last one lasts to the end of the log.
func TestTogether(t *testing.T) {
	l := newLog("ps")
	l.rounds(30, 1, 1, 1, 1)
	l.say(`{"type":"slowdown","t":%g,"event":"slow","since":10,"workers":4,"hosts":["a","b"],"slowdown":2,"part":"load","cause":"data","evidence":[{"what":"load","value":2,"other":1,"text":"slow data: load 2 s, before 1 s"}]}`, l.t)
	l.say(`{"type":"slowdown","t":%g,"event":"changed","since":10,"workers":4,"hosts":["a","b"],"slowdown":2,"part":"compute","cause":"steal","evidence":[{"what":"steal","value":0.5,"other":0,"text":"CPU steal 50 %%"}]}`, l.t)
	l.say(`{"type":"slowdown","t":%g,"event":"recovered","since":10,"until":25,"workers":4,"hosts":[],"slowdown":2,"part":"compute","cause":"steal"}`, l.t)
	l.say(`{"type":"slowdown","t":%g,"event":"slow","since":26,"workers":4,"hosts":[],"slowdown":1.5,"part":"push","cause":"unknown","evidence":[{"what":"push","value":2,"other":1,"text":"computing or network out"}]}`, l.t)
	s := l.story(t)
	var b strings.Builder
	if err := s.Text(&b, View{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"all workers on a, b 2.0x slow together, against the job's own past, from 10 s (15 s): CPU steal 50 % (in turn: load: data, compute: steal)\n",
		"all workers 1.5x slow together, against the job's own past, from 26 s (5.0 s, to the end): unknown: computing or network out\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// In an all-reduce the exchanges of all ranks end together: what is longer than the shortest is a wait.
func TestRingWaits(t *testing.T) {
	l := newLog("allreduce")
	for i := range 30 {
		for w, s := range []float64{1, 1, 1, 4} {
			l.say(`{"type":"record","t":%d,"worker":%d,"step":%d,"basis":%d,"compute":%g,"push":%g,"samples":10}`, 1+5*(i+1), w, i, i, s, 5-s)
		}
		l.say(`{"type":"fire","t":%d,"seq":%d,"version":%d,"workers":[0,1,2,3],"staleness":[0,0,0,0],"samples":%d}`, 1+5*(i+1), i+1, i+1, 40*(i+1))
	}
	s := l.story(t)
	if len(s.Episodes) != 1 || s.Episodes[0].Worker != 3 || s.Episodes[0].From != 3 || !s.Episodes[0].Open {
		t.Fatalf("%+v", s.Episodes)
	}
	for w, want := range []float64{3, 3, 3, 0} {
		if it := s.Workers[w].Iterations[7]; !about(it.Wait, want) || !about(it.Busy, 5-want) {
			t.Errorf("worker %d: busy %v, waits %v; want %g s of 5 s", w, it.Busy, it.Wait, want)
		}
	}
}

// A slow worker's episode ends when it is gone; records with impossible times are reported, and not used.
func TestGoneAndOdd(t *testing.T) {
	l := newLog("ps")
	l.rounds(20, 1, 1, 3, 1)
	l.say(`{"type":"record","t":61,"worker":0,"step":20,"basis":20,"at":61,"compute":500,"samples":10}`)
	l.say(`{"type":"leave","t":62,"worker":2,"peer":"p","why":"connection reset"}`)
	l.say(`{"type":"aside","t":62,"start":40,"count":10,"workers":[1,2],"why":"one sample"}`)
	l.say(`{"type":"fire","t":70,"seq":21,"version":21,"workers":[0],"staleness":[0],"samples":810}`)
	s := l.story(t)
	if e := s.Episodes[0]; e.Worker != 2 || e.Open || !about(e.Until, 62) || e.To != 19 {
		t.Errorf("%+v", e)
	}
	if len(s.Odd) != 1 || len(s.Workers[0].Iterations) != 20 {
		t.Errorf("%v, %d iterations", s.Odd, len(s.Workers[0].Iterations))
	}
	var b strings.Builder
	s.Text(&b, View{})
	for _, want := range []string{"w2 gone after it 19, at 62 s: connection reset", "put aside samples 40 to 49 of the stream, which killed w1, then w2: one sample", "impossible measurements\n  w0 it 20: ", "no summary", "114 s         43 %"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// A job that was resumed is not said to have made what it had made before.
func TestResumed(t *testing.T) {
	s := slowForAWhile().story(t)
	for _, c := range []struct {
		version int64
		end     bool
		want    string
	}{
		{0, false, "4000 samples in 100 updates"},
		{0, true, "4000 samples in 100 updates"},
		{50, false, "4000 samples in all, 100 updates after version 50"},
		{50, true, "3000 samples in 100 updates after version 50"},
	} {
		s.Train.Version, s.End = c.version, nil
		if c.end {
			s.End = &runlog.Result{Samples: 3000}
		}
		if got := s.done(); got != c.want {
			t.Errorf("version %d, summary %v: %q", c.version, c.end, got)
		}
	}
}

// A job that was ended by a signal has not failed.
func TestEnds(t *testing.T) {
	for why, want := range map[string]string{"": "", "worker 1 is gone": "The job failed: worker 1 is gone\n", (&job.SignalError{Signal: syscall.SIGTERM}).Error(): "The job was ended by a signal: terminated\n"} {
		s := slowForAWhile().story(t)
		s.End = &runlog.Result{Samples: 3000, Error: why}
		var b strings.Builder
		if err := s.Text(&b, View{Width: 64}); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); want != "" && !strings.Contains(got, "\n"+want) || want == "" && strings.Contains(got, "The job ") {
			t.Errorf("%q: %s", why, got)
		}
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	s := slowForAWhile().story(t)
	s.Episodes[0].To, s.Episodes[0].Until = 69, 131*time.Second // give or take one
	if err := s.Text(&b, View{Width: 64}); err != nil {
		t.Fatal(err)
	}
	const want = `star 0.1.0  ps, m on d, 4 workers: 4000 samples in 100 updates, 2.7 min (25 samples/s)
The log has no summary: the coordinator was killed, or still writes.

mode ssgd                             |x=3
w0   ===========.....................=.=..=.==.==.=.============
w1   ===========.....................=.=..=.==.==.=.============
w2   ===========#####################################===========
w3   ===========.....................=.=..=.==.==.=.============
     ------------------+-----------------+-----------------+----
t                      50 s              100 s             150 s
     = works  # slow  . waits for others  blank: neither (evaluates, has not begun, is gone)

w2 2.7x slow, it 30–69 (100 s): compute 2.4 s, others 1 s → mode x=3 (gain 33 % seen); others waited 3.0 min

changes of mode
      91 s  ssgd → x=3 (gain 33 % seen), 13 → 20 samples/s: star ctl

  worker  iterations  own time   waited  of its time  slow for
      w0         100     1.0 s     60 s         38 %       0 s
      w1         100     1.0 s     60 s         38 %       0 s
      w2         100     1.0 s      0 s          0 %     100 s
      w3         100     1.0 s     60 s         38 %       0 s
     all         400            3.0 min         28 %     100 s
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Colours are there when wanted, and change nothing else.
func TestColour(t *testing.T) {
	s := slowForAWhile().story(t)
	var plain, coloured strings.Builder
	s.Text(&plain, View{})
	s.Text(&coloured, View{Colour: true})
	if !strings.Contains(coloured.String(), "\x1b[31m####") {
		t.Error("slowness is not red")
	}
	if got := strings.NewReplacer("\x1b[31m", "", "\x1b[2m", "", "\x1b[0m", "").Replace(coloured.String()); got != plain.String() || strings.Contains(plain.String(), "\x1b") {
		t.Errorf("without its colours:\n%s\nwant:\n%s", got, plain.String())
	}
}

// The pictures are valid; the SVG has all names.
func TestPicture(t *testing.T) {
	l := slowForAWhile()
	l.say(`{"type":"noise","t":%g,"version":1,"scale":100}`, l.t)
	l.say(`{"type":"noise","t":%g,"version":2,"scale":200}`, l.t+1)
	s := l.story(t)
	var b bytes.Buffer
	p, err := s.Picture("svg")
	if err != nil {
		t.Fatal(err)
	}
	p.WriteTo(&b)
	text := b.String()
	for d := xml.NewDecoder(&b); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v", err)
		}
	}
	for _, want := range []string{"<svg", ">w0<", ">w3<", "x=3<", "own time of an iteration", "samples/s", "noise scale, samples", "fill-opacity"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	if p, err = s.Picture("png"); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	p.WriteTo(&b)
	if _, err := png.Decode(&b); err != nil {
		t.Error(err)
	}
	none := &log{}
	none.say(`{"type":"start","format":1}`)
	if _, err := none.story(t).Picture("svg"); err == nil || !strings.Contains(err.Error(), "did not begin") {
		t.Errorf("a run that did not begin: %v", err)
	}
}

// Many workers do not make a long page: those that were slow are shown.
func TestManyWorkers(t *testing.T) {
	l := &log{}
	l.say(`{"type":"start","format":1}`)
	l.say(`{"type":"train","t":0,"workers":100,"version":0,"limit":1}`)
	for step := range 20 {
		for w := range 100 {
			compute := 1
			if w == 77 {
				compute = 3
			}
			l.say(`{"type":"record","t":%d,"worker":%d,"step":%d,"compute":%d,"samples":1}`, 3*step+compute, w, step, compute)
		}
	}
	s := l.story(t)
	var b strings.Builder
	s.Text(&b, View{})
	if n := strings.Count(b.String(), "\n"); n > 90 || !strings.Contains(b.String(), "\nw77 ") || !strings.Contains(b.String(), "and 68 workers more") {
		t.Errorf("%d lines:\n%s", n, b.String())
	}
	if _, err := s.Picture("svg"); err != nil {
		t.Error(err)
	}
}

// Whatever a log says that can be read, its story can be told and drawn.
func FuzzStory(f *testing.F) {
	f.Add(slowForAWhile().String())
	f.Add(newLog("allreduce").String() + `{"type":"record","t":1e9,"worker":1,"step":0,"compute":-1e9,"pull":1e9,"at":-5}` + "\n" + `{"type":"leave","t":0,"worker":1}`)
	f.Add(newLog("ps").String() + `{"type":"verdict","t":5,"worker":1,"event":"slow","step":3,"since":9}` + "\n" + `{"type":"plan","t":2,"plan":"?","from":"x"}` + "\n" + `{"type":"noise","t":2,"version":1,"scale":1e-300}`)
	f.Fuzz(func(t *testing.T, text string) {
		teller := New()
		read, err := runlog.Read(strings.NewReader(text), "f", teller.Add)
		var re *runlog.Error
		if err != nil && !errors.As(err, &re) {
			t.Fatal(err)
		}
		s := teller.Story(read) // of what could be read
		if err := s.Text(io.Discard, View{Width: 30}); err != nil {
			t.Fatal(err)
		}
		for _, e := range s.Entries() {
			if e.From > e.To || e.FromStep > e.ToStep {
				t.Fatalf("%+v", e)
			}
		}
		if len(text) < 2000 {
			s.Picture("svg")
		}
	})
}

// The story shows a shard that moved by itself with its gain, one that went back with its gain, one that was moved by
// hand without a gain, and one that stayed with the reason.
func TestShifts(t *testing.T) {
	l := slowForAWhile()
	l.say(`{"type":"shift","t":160,"event":"wanted","shard":1,"from":0,"to":2,"predicted_gain":0.4,"seen_gain":null,"why":"a link is full"}`)
	l.say(`{"type":"move","t":161,"shard":1,"from":0,"to":2,"version":9,"bytes":4,"prepare":0.1,"copy":0.1,"delay":0}`)
	l.say(`{"type":"shift","t":170,"event":"kept","shard":1,"from":0,"to":2,"predicted_gain":0.4,"seen_gain":0.35,"why":"enough"}`)
	l.say(`{"type":"move","t":171,"shard":0,"from":0,"to":1,"version":9,"bytes":4,"prepare":0.1,"copy":0.1,"delay":0}`)
	l.say(`{"type":"shift","t":172,"event":"wanted","shard":0,"from":1,"to":2,"predicted_gain":0.2,"seen_gain":null,"why":"a host is full"}`)
	l.say(`{"type":"move","t":173,"shard":0,"from":1,"to":2,"version":9,"bytes":4,"prepare":0.1,"copy":0.1,"delay":0}`)
	l.say(`{"type":"shift","t":180,"event":"back","shard":0,"from":2,"to":1,"predicted_gain":0.2,"seen_gain":-0.1,"why":"no"}`)
	l.say(`{"type":"move","t":181,"shard":0,"from":2,"to":1,"version":9,"bytes":4,"prepare":0.1,"copy":0.1,"delay":0}`)
	l.say(`{"type":"shift","t":190,"event":"wanted","shard":1,"from":2,"to":0,"predicted_gain":0.5,"seen_gain":null,"why":"again"}`)
	l.say(`{"type":"move","t":191,"shard":1,"from":2,"to":0,"version":9,"bytes":4,"prepare":0,"copy":0,"delay":0,"error":"server 0 is lost"}`)
	var b strings.Builder
	if err := l.story(t).Text(&b, View{Width: 64}); err != nil {
		t.Fatal(err)
	}
	const want = `moves of shards
   2.7 min  shard 1, server 0 → 2 (gain 40 % predicted, 35 % seen): a link is full
   2.9 min  shard 0, server 0 → 1
   2.9 min  shard 0, server 1 → 2 (gain 20 % predicted, -10 % seen; reverted): a host is full
   3.0 min  shard 0, server 2 → 1
   3.2 min  shard 1, server 2 → 0 (gain 50 % predicted), stayed: server 0 is lost
`
	if got := b.String(); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A rank that no process has had is not one of the job's workers.
func TestRanksThatNobodyHad(t *testing.T) {
	l := newLog("ps")
	text := strings.Replace(l.String(), `"plan":"ssgd"}`, `"plan":"ssgd","absent":[2,3]}`, 1)
	l.Reset()
	l.WriteString(text)
	l.rounds(10, 1, 1)
	story := l.story(t)
	var b strings.Builder
	if err := story.Text(&b, View{Width: 100}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "m on d, 2 workers:") || strings.Contains(b.String(), "w3") || strings.Contains(b.String(), "more") {
		t.Error(b.String())
	}
}
