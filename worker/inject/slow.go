package inject

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"star"
)

// Kind is a kind of slowness.
type Kind int

const (
	Factor Kind = iota // compute Times as long
	Add                // compute Pause longer
	Burst              // pause for Pause of every Period, while computing
	Stop               // stop the process for Pause of every Period
	Rate               // send at most Bits per second
	Data               // wait for data Pause longer
)

// Slow is one injection into one worker.
type Slow struct {
	Worker        star.Worker
	Kind          Kind
	Times         float64 // Factor: at least 1
	Pause, Period time.Duration
	Bits          int64 // Rate: per second
}

// Limits of valid values: larger ones are more likely a typing error than an intention.
const (
	maxTimes  = 1000
	maxPause  = time.Hour
	maxBits   = 1 << 40 // 1 Tbit/s
	minBits   = 8000    // 1 kB/s
	maxWorker = 1 << 16
)

// String writes s so that Parse reads it.
func (s Slow) String() string {
	w := strconv.Itoa(int(s.Worker)) + ":"
	switch s.Kind {
	case Factor:
		return w + strconv.FormatFloat(s.Times, 'g', -1, 64) + "x"
	case Add:
		return w + "+" + s.Pause.String()
	case Burst:
		return w + "burst=" + s.Pause.String() + "/" + s.Period.String()
	case Stop:
		return w + "stop=" + s.Pause.String() + "/" + s.Period.String()
	case Data:
		return w + "data=" + s.Pause.String()
	case Rate:
		return w + strconv.FormatInt(s.Bits, 10) + "bit"
	}
	panic("inject: unknown kind")
}

// Parse reads an injection, such as 2:3x.
func Parse(text string) (Slow, error) {
	s, err := parse(text)
	if err != nil {
		return Slow{}, fmt.Errorf("slow %q: %w; write RANK:3x, RANK:+50ms, RANK:burst=40ms/1s, RANK:stop=800ms/1s, RANK:data=40ms or RANK:100mbit", text, err)
	}
	return s, nil
}

func parse(text string) (Slow, error) {
	rank, how, ok := strings.Cut(text, ":")
	if !ok {
		return Slow{}, fmt.Errorf("no rank")
	}
	w, err := strconv.ParseUint(rank, 10, 31)
	if err != nil || w >= maxWorker {
		return Slow{}, fmt.Errorf("%q is not a rank", rank)
	}
	s := Slow{Worker: star.Worker(w)}
	switch {
	case strings.HasPrefix(how, "+"):
		s.Kind = Add
		s.Pause, err = pause(how[1:])
	case strings.HasPrefix(how, "burst="):
		s.Kind = Burst
		s.Pause, s.Period, err = rhythm(how[len("burst="):])
	case strings.HasPrefix(how, "stop="):
		s.Kind = Stop
		s.Pause, s.Period, err = rhythm(how[len("stop="):])
	case strings.HasPrefix(how, "data="):
		s.Kind = Data
		s.Pause, err = pause(how[len("data="):])
	case strings.HasSuffix(how, "x"):
		s.Kind = Factor
		s.Times, err = factor(strings.TrimSuffix(how, "x"))
	case strings.HasSuffix(how, "bit"):
		s.Kind = Rate
		s.Bits, err = rate(strings.TrimSuffix(how, "bit"))
	default:
		err = fmt.Errorf("unknown kind %q", how)
	}
	return s, err
}

func factor(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) {
		return 0, fmt.Errorf("%q is not a factor", text)
	}
	if f < 1 || f > maxTimes {
		return 0, fmt.Errorf("factor %v is not between 1 and %d", f, maxTimes)
	}
	return f, nil
}

func pause(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("%q is not a duration", text)
	}
	if d <= 0 || d > maxPause {
		return 0, fmt.Errorf("duration %v is not between 0 and %v", d, maxPause)
	}
	return d, nil
}

func rhythm(text string) (length, period time.Duration, err error) {
	a, b, ok := strings.Cut(text, "/")
	if !ok {
		return 0, 0, fmt.Errorf("%q is not PAUSE/PERIOD", text)
	}
	if length, err = pause(a); err != nil {
		return 0, 0, err
	}
	if period, err = pause(b); err != nil {
		return 0, 0, err
	}
	if length > period-period/1000 {
		return 0, 0, fmt.Errorf("a pause of %v in every %v leaves no time to work", length, period)
	}
	return length, period, nil
}

// rate reads the part of 100mbit before "bit", in tc's decimal units.
func rate(text string) (int64, error) {
	scale := 1.0
	for unit, s := range map[string]float64{"k": 1e3, "m": 1e6, "g": 1e9} {
		if strings.HasSuffix(text, unit) {
			text, scale = strings.TrimSuffix(text, unit), s
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) {
		return 0, fmt.Errorf("%q is not a rate", text)
	}
	if f *= scale; f < minBits || f > maxBits {
		return 0, fmt.Errorf("%g bit/s is not between %d and %d", f, minBits, maxBits)
	}
	return int64(f), nil
}
