package optim

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

// Schedule is the learning rate as a function of the samples that the job has
// used. The zero value is a learning rate of 0; [ParseSchedule] makes others.
type Schedule struct {
	lr float64

	warmup int64   // samples of linear warm-up
	start  float64 // factor at sample 0, with warmup

	shape shape
	end   int64   // samples at which cosine and linear reach min
	min   float64 // factor from there on
	steps []drop  // of a table: factors of lr, not of the step before
}

type shape uint8

const (
	constant shape = iota
	stepwise
	cosine
	linear
	table
)

type drop struct {
	at     int64
	factor float64
}

// ScheduleGrammar is what [ParseSchedule] reads, for help texts and errors.
const ScheduleGrammar = "constant | step=SAMPLES:FACTOR,SAMPLES:FACTOR… | table=SAMPLES:FACTOR,SAMPLES:FACTOR… | cosine=SAMPLES | linear=SAMPLES, with warmup=SAMPLES[:FACTOR] and min=FACTOR before or after, separated by commas"

// ParseSchedule reads the schedule of a learning rate that is lr at its height:
//
//	constant                       lr for ever; so does the empty string
//	step=20000:0.1,40000:0.1       times 0.1 from sample 20 000 on, and again from 40 000
//	table=20000:0.1,40000:0.05     0.1·lr from sample 20 000 on, 0.05·lr from 40 000 on
//	cosine=60000                   half a cosine from lr down to min·lr at sample 60 000
//	linear=60000                   a straight line to the same place
//	warmup=1000,cosine=60000       before: a straight line from 0.01·lr at sample 0 to lr at 1000
//	warmup=1000:0.2                the same from 0.2·lr
//	cosine=60000,min=0.05          min is 0 if it is not given
//
// With a warm-up, cosine and line begin at its end.
func ParseSchedule(spec string, lr float64) (Schedule, error) {
	fail := func(format string, args ...any) (Schedule, error) {
		return Schedule{}, fmt.Errorf("optim: schedule %q: %s; want %s", clip(spec), fmt.Sprintf(format, args...), ScheduleGrammar)
	}
	if !(lr > 0) || math.IsInf(lr, 1) {
		return Schedule{}, fmt.Errorf("optim: learning rate %g: want a positive number", lr)
	}
	s := Schedule{lr: lr}
	spec = strings.TrimSpace(spec)
	if spec == "" || spec == "constant" {
		return s, nil
	}
	seen := map[string]bool{}
	key := ""
	for part := range strings.SplitSeq(spec, ",") {
		part = strings.TrimSpace(part)
		name, value, has := strings.Cut(part, "=")
		switch {
		case has && seen[name]:
			return fail("%s is given twice", clip(name))
		case has:
			key, seen[name] = name, true
		case key == "step" || key == "table": // a further step
			value = part
		default:
			return fail("%q is not understood", clip(part))
		}
		number, second, two := strings.Cut(value, ":")
		if key == "min" {
			f, err := factor(value)
			if err != nil {
				return fail("min: %v", err)
			}
			s.min = f
			continue
		}
		at, err := strconv.ParseInt(number, 10, 64)
		if err != nil || at < 0 || at == 0 && key != "table" {
			return fail("%s: %q is not a positive number of samples", clip(key), clip(number))
		}
		f := 0.01
		if two {
			if f, err = factor(second); err != nil {
				return fail("%s: %v", clip(key), err)
			}
		}
		switch key {
		case "warmup":
			s.warmup, s.start = at, f
			continue
		case "step", "table":
			if !two {
				return fail("%s %d has no factor", key, at)
			}
			if n := len(s.steps); n > 0 && s.steps[n-1].at >= at {
				return fail("%s %d comes after %s %d: put them in order", key, at, key, s.steps[n-1].at)
			}
			kind := stepwise
			if key == "table" {
				kind = table
			}
			if s.shape != constant && s.shape != kind {
				return fail("it has two shapes: choose one of step, table, cosine and linear")
			}
			s.shape = kind
			s.steps = append(s.steps, drop{at, f})
			continue
		case "cosine", "linear":
			if two {
				return fail("%s takes one number, the samples at its end", key)
			}
			if s.shape != constant {
				return fail("it has two shapes: choose one of step, table, cosine and linear")
			}
			s.shape, s.end = cosine, at
			if key == "linear" {
				s.shape = linear
			}
		default:
			return fail("%q is not understood", clip(key))
		}
	}
	if seen["min"] && s.shape != cosine && s.shape != linear {
		return fail("min needs cosine or linear")
	}
	if s.end > 0 && s.end <= s.warmup {
		return fail("it ends at sample %d, within the warm-up of %d", s.end, s.warmup)
	}
	return s, nil
}

func factor(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1e6) {
		return 0, fmt.Errorf("%q is not a factor", clip(s))
	}
	return f, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// At is the learning rate of an update before which the job has used the given
// number of samples, over all workers.
func (s Schedule) At(samples int64) float64 {
	samples = max(samples, 0)
	if samples < s.warmup {
		return s.lr * (s.start + (1-s.start)*float64(samples)/float64(s.warmup))
	}
	f := 1.0
	switch s.shape {
	case stepwise:
		for _, d := range s.steps {
			if samples >= d.at {
				f *= d.factor
			}
		}
	case table:
		if i := sort.Search(len(s.steps), func(i int) bool { return s.steps[i].at > samples }); i > 0 {
			f = s.steps[i-1].factor
		}
	case cosine, linear:
		// t goes from 0 at the end of the warm-up to 1 at the end.
		t := math.Min(float64(samples-s.warmup)/float64(s.end-s.warmup), 1)
		fall := 1 - t
		if s.shape == cosine {
			fall = (1 + math.Cos(math.Pi*t)) / 2
		}
		f = s.min + (1-s.min)*fall
	}
	return s.lr * f
}
