package advisor

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/advice"
	"star/runlog"
)

// echo is a Pilot that returns a remark after each line, and a study after the third.
type echo struct {
	lines []time.Duration
	slow  time.Duration
	study advice.Study
}

func (e *echo) Tell(l runlog.Line) []advice.Remark {
	time.Sleep(e.slow)
	e.lines = append(e.lines, l.T)
	if len(e.lines) == 3 && e.study != nil {
		return []advice.Remark{{Study: e.study}}
	}
	return []advice.Remark{{Text: fmt.Sprint("line ", len(e.lines))}}
}

// steps is a Study with a number of steps of ten milliseconds.
type steps struct{ left int }

func (s *steps) Step() bool {
	time.Sleep(10 * time.Millisecond)
	s.left--
	return s.left > 0
}

func (s *steps) Result() runlog.Predictor { return runlog.Predictor{Records: 9} }

// A pilot gets each line once and in order, however slow it is, and Tell does not wait for it; each remark comes with
// the number of lines before it.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		words := make(chan Word, 100)
		p := &echo{slow: time.Second}
		r := Start(p, done, func(w Word) bool { words <- w; return true })
		begun := time.Now()
		for i := range 5 {
			r.Tell(time.Duration(i), runlog.Record{})
		}
		if !r.Running() || time.Since(begun) > 0 || r.Heard() != 0 {
			t.Errorf("Tell took %v, %d lines were heard", time.Since(begun), r.Heard())
		}
		for i := 1; i <= 5; i++ {
			if w := <-words; w.After != int64(i) || w.Text != fmt.Sprint("line ", i) {
				t.Errorf("word %d: %+v", i, w)
			}
		}
		synctest.Wait()
		if r.Heard() != 5 || fmt.Sprint(p.lines) != fmt.Sprint([]time.Duration{0, 1, 2, 3, 4}) {
			t.Errorf("%d lines were heard: %v", r.Heard(), p.lines)
		}
		close(done)
		synctest.Wait()
		r.Tell(9, runlog.Record{}) // no goroutine takes it, and Tell does not block
	})
}

// A study uses a fiftieth of the time, while lines continue, and its result comes as a Word.
func TestStudy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		words := make(chan Word, 100)
		r := Start(&echo{study: &steps{left: 4}}, done, func(w Word) bool { words <- w; return true })
		for i := range 5 {
			r.Tell(time.Duration(i), runlog.Record{})
		}
		var learned *Word
		for range 5 {
			if w := <-words; w.Learned != nil {
				learned = &w
			}
		}
		if learned == nil || learned.After != 0 || learned.Learned.After != 3 || learned.Learned.Records != 9 {
			t.Fatalf("%+v", learned)
		}
		if took := learned.Learned.Took.Duration(); took != 3*500*time.Millisecond+10*time.Millisecond {
			t.Errorf("four steps of 10 ms took %v", took)
		}
		close(done)
	})
}

// When say returns false the pilot's goroutine ends; a running study ends with the coordinator.
func TestRunnerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		p := &echo{}
		r := Start(p, done, func(Word) bool { return false })
		r.Tell(1, runlog.Record{})
		synctest.Wait()
		r.Tell(2, runlog.Record{})
		synctest.Wait()
		if len(p.lines) != 1 || r.Heard() != 0 {
			t.Errorf("%d lines were told, %d heard", len(p.lines), r.Heard())
		}
		s := &steps{left: math.MaxInt}
		q := Start(&echo{study: s}, done, func(Word) bool { return true })
		for i := range 3 {
			q.Tell(time.Duration(i), runlog.Record{})
		}
		time.Sleep(time.Minute)
		close(done)
		time.Sleep(time.Second) // a step may be under way; synctest finds goroutines that go on after it
	})
}

// A job without a pilot accepts lines and does nothing.
func TestNoRunner(t *testing.T) {
	var r *Runner
	r.Tell(0, runlog.Record{})
	if r.Running() {
		t.Error("it runs")
	}
}

// The last verdict on a worker is valid until it has recovered; the factor is the median over the episode.
func TestVerdicts(t *testing.T) {
	var vs Verdicts
	says := func(worker int, event string, slowdown float64) {
		v := runlog.Verdict{Worker: star.Worker(worker), Event: event, Slowdown: runlog.Number(slowdown), Cause: "cpu"}
		vs.Take(v, fmt.Sprintf("w%d %s", worker, event))
	}
	says(2, "slow", 2)
	says(0, "slow", math.NaN())
	says(2, "slower", 4)
	says(2, "slower", 8)
	if got := fmt.Sprint(vs.Texts()); got != "[w0 slow w2 slower]" {
		t.Error(got)
	}
	if f, cause := vs.Of(2); f != 4 || cause != "cpu" {
		t.Errorf("w2 is %v times slower because of %q", f, cause)
	}
	if f, cause := vs.Of(0); f != 0 || cause != "" {
		t.Errorf("an unknown factor is %v, because of %q", f, cause)
	}
	says(2, "recovered", 1)
	if f, _ := vs.Of(2); f != 0 || fmt.Sprint(vs.Texts()) != "[w0 slow]" {
		t.Errorf("after it has recovered: %v, %v", f, vs.Texts())
	}
}
