package coord

import (
	"math"
	"star/coord/advice"
	"star/runlog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lesson is a Study with a number of steps, each takes its pace.
type lesson struct {
	steps int // left
	pace  time.Duration
	fails bool

	mu    sync.Mutex
	made  int
	spoke bool // runlog.Result was asked for
}

func (s *lesson) Step() bool {
	time.Sleep(s.pace)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	s.steps--
	return s.steps != 0
}

func (s *lesson) Result() runlog.Predictor {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoke = true
	r := runlog.Predictor{Records: 7, Rows: 5, Epochs: 3, Error: 0.25}
	if s.fails {
		r.Error = runlog.Number(math.NaN())
	}
	return r
}

func (s *lesson) progress() (made int, spoke bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made, s.spoke
}

// A study runs while the job and the pilot continue, uses its small part of the time, and its result is passed on where
// the log has it.
func TestStudy(t *testing.T) {
	for _, test := range []struct {
		name  string
		study *lesson
		steps int
		took  time.Duration
	}{
		{"short steps", &lesson{pace: 20 * time.Millisecond}, 10, 10*20*time.Millisecond + 9*980*time.Millisecond},
		{"long ones", &lesson{pace: 3 * time.Second}, 2, 2*3*time.Second + 5*time.Second},
		{"none at all, and a failure", &lesson{fails: true}, 3, 2 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			study := test.study
			study.steps = test.steps
			pilot := &script{says: map[int]advice.Remark{6: {Study: study}}}
			play(t, Config{MaxWorkers: 2, Steps: 40, Pilot: pilot}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0)
				w.worker(1)
				for study.pace > 0 {
					if made, _ := study.progress(); made >= test.steps/2 {
						break
					}
					time.Sleep(100 * time.Millisecond)
				}
				if n := pilot.count(); study.pace > 0 && n < 8 {
					t.Errorf("%d lines were told before half of it was done", n)
				}
				w.finished(10 * time.Minute)
				if w.err != nil {
					t.Fatal(w.err)
				}
				made, _ := study.progress()
				if made != test.steps {
					t.Errorf("%d steps, want %d", made, test.steps)
				}
				said := w.lines("predictor")
				if len(said) != 1 || said[0]["after"] != 6.0 || said[0]["trained_on"] != 7.0 || said[0]["rows"] != 5.0 || said[0]["epochs"] != 3.0 ||
					said[0]["took"] != test.took.Seconds() || (said[0]["error"] == nil) != study.fails {
					t.Fatalf("%v, want it to take %v", said, test.took)
				}
				var read []runlog.Line
				if _, err := runlog.Read(strings.NewReader(w.run.String()), "run.jsonl", func(l runlog.Line) error {
					switch l.Entry.(type) {
					case runlog.Train, runlog.Record, runlog.Fire, runlog.Noise, runlog.Plan, runlog.Predictor, runlog.Leave:
						read = append(read, l)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				pilot.count()
				between := 0
				for i, l := range pilot.told {
					read[i].Number = 0
					if a, b := show(read[i]), show(l); a != b {
						t.Fatalf("line %d of the log is\n%s, told was\n%s", i, a, b)
					}
					if _, learned := l.Entry.(runlog.Predictor); learned {
						between = i - 6
					}
				}
				if study.pace > 0 && between < 8 {
					t.Errorf("%d lines were told while it was done", between)
				}
			})
		})
	}
}

// A job that ends does not wait for a study, and stops it.
func TestStudyUnfinished(t *testing.T) {
	study := &lesson{pace: time.Second}
	pilot := &script{says: map[int]advice.Remark{6: {Study: study}}}
	play(t, Config{MaxWorkers: 1, Steps: 30, Pilot: pilot}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.finished(10 * time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		made, _ := study.progress()
		time.Sleep(time.Hour)
		synctest.Wait()
		after, spoke := study.progress()
		if made == 0 || after > made+1 || spoke {
			t.Errorf("%d steps while the job ran, %d after it; it was asked for a result: %v", made, after-made, spoke)
		}
		if said := w.lines("predictor"); len(said) != 0 {
			t.Error(said)
		}
	})
}
