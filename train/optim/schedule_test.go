package optim

import (
	"math"
	"strings"
	"testing"
)

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		spec string
		at   []int64
		want []float64 // of a learning rate of 1
	}{
		{"", []int64{0, 1 << 40}, []float64{1, 1}},
		{"constant", []int64{0, 1 << 40}, []float64{1, 1}},
		{"step=20:0.1,40:0.5", []int64{0, 19, 20, 39, 40, 1000}, []float64{1, 1, 0.1, 0.1, 0.05, 0.05}},
		{"linear=100", []int64{0, 25, 100, 200}, []float64{1, 0.75, 0, 0}},
		{"linear=100,min=0.5", []int64{0, 50, 100, 200}, []float64{1, 0.75, 0.5, 0.5}},
		{"cosine=100", []int64{0, 50, 100, 200}, []float64{1, 0.5, 0, 0}},
		// cos 60° = 1/2: three quarters of the way up.
		{"cosine=90", []int64{30}, []float64{0.75}},
		{"warmup=10:0.2,step=20:0.1", []int64{0, 5, 10, 19, 20}, []float64{0.2, 0.6, 1, 1, 0.1}},
		{"warmup=10:0,step=10:0.1", []int64{5, 10}, []float64{0.5, 0.1}},
		{"warmup=10", []int64{0, 10, 99}, []float64{0.01, 1, 1}},
		// The line begins at the end of the warm-up.
		{"linear=110,warmup=10:0,min=0.2", []int64{0, 5, 10, 60, 110}, []float64{0, 0.5, 1, 0.6, 0.2}},
		{" warmup=10:0 , linear=20 ", []int64{15}, []float64{0.5}},
		{"constant", []int64{-5}, []float64{1}},
		{"warmup=10:0.5", []int64{-5}, []float64{0.5}},
	} {
		for _, lr := range []float64{1, 0.03} {
			s, err := ParseSchedule(c.spec, lr)
			if err != nil {
				t.Errorf("%q: %v", c.spec, err)
				continue
			}
			for i, at := range c.at {
				if got := s.At(at); math.Abs(got-lr*c.want[i]) > 1e-12 {
					t.Errorf("%q at %d samples: %v, want %v", c.spec, at, got, lr*c.want[i])
				}
			}
		}
	}
}

func TestScheduleRefuses(t *testing.T) {
	for _, c := range []struct{ spec, says string }{
		{"cosin=5", `"cosin"`},
		{"cosine", `"cosine"`},
		{"cosine=", "positive number of samples"},
		{"cosine=-5", "positive number of samples"},
		{"cosine=5:0.1", "takes one number"},
		{"cosine=10,linear=20", "two shapes"},
		{"cosine=10,step=5:0.1", "two shapes"},
		{"step=5:0.1,linear=10", "two shapes"},
		{"cosine=10,cosine=20", "twice"},
		{"step=5", "no factor"},
		{"step=5:x", `"x" is not a factor`},
		{"step=5:-1", "not a factor"},
		{"step=5:NaN", "not a factor"},
		{"step=5:0.1,5:0.1", "in order"},
		{"step=5:0.1,4:0.1", "in order"},
		{"min=0.1", "min needs"},
		{"step=5:0.1,min=0.1", "min needs"},
		{"cosine=10,min=-1", "not a factor"},
		{"warmup=10,cosine=10", "within the warm-up"},
		{"cosine=10,", `"" is not understood`},
		{"=5", "not understood"},
		{"warmup=9999999999999999999999", "positive number of samples"},
		{strings.Repeat("x", 1<<16), "…"},
	} {
		_, err := ParseSchedule(c.spec, 1)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), ScheduleGrammar) || len(err.Error()) > 1000 {
			t.Errorf("%.99q: %v\n\twant %q and the grammar", c.spec, err, c.says)
		}
	}
	for _, lr := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := ParseSchedule("", lr); err == nil {
			t.Errorf("learning rate %v: no error", lr)
		}
	}
}

// No schedule that parses has a rate that is negative or not a number.
func FuzzParseSchedule(f *testing.F) {
	for _, s := range []string{"", "constant", "step=20:0.1,40:0.1", "cosine=60,warmup=10:0.1,min=0.01", "linear=5"} {
		f.Add(s, int64(7))
	}
	f.Fuzz(func(t *testing.T, spec string, at int64) {
		s, err := ParseSchedule(spec, 0.1)
		if err != nil {
			return
		}
		for _, x := range []int64{at, 0, math.MaxInt64, math.MinInt64} {
			if lr := s.At(x); !(lr >= 0) || math.IsInf(lr, 1) && len(s.steps) < 50 {
				t.Fatalf("%q at %d: %v", spec, x, lr)
			}
		}
	})
}
