package actuate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Limit is an upper limit on the use of a process. The zero value limits nothing.
type Limit struct {
	Delay  time.Duration // pause in each iteration
	Cores  float64       // processors; 0: no limit
	NetOut float64       // bytes per second out of the interface; 0: no limit
	NetIn  float64       // bytes per second into it; 0: no limit
}

// Bounds of accepted values. A value beyond them is probably a typing error, or the kernel refuses it.
const (
	MaxDelay = time.Minute // well below the time after which a ring counts as broken
	MinCores = 0.01        // the kernel gives at least 1 ms of 100 ms
	MaxCores = 4096        //
	MinRate  = 1000.0      // bytes per second
	MaxRate  = 1.25e11     // a terabit per second
	limitUse = "delay=50ms,cpu=1.5,out=100mbit,in=100mbit"
)

// Zero reports whether l limits nothing.
func (l Limit) Zero() bool { return l == Limit{} }

// Check returns an error for an invalid limit.
func (l Limit) Check() error {
	if l.Delay < 0 || l.Delay > MaxDelay {
		return fmt.Errorf("delay: %v is not between 0 and %v per iteration", l.Delay, MaxDelay)
	}
	if l.Cores != 0 && !(l.Cores >= MinCores && l.Cores <= MaxCores) {
		return fmt.Errorf("cpu: %v processors is not between %v and %v", l.Cores, MinCores, MaxCores)
	}
	for _, r := range []struct {
		name string
		rate float64
	}{{"out", l.NetOut}, {"in", l.NetIn}} {
		if r.rate != 0 && !(r.rate >= MinRate && r.rate <= MaxRate) {
			return fmt.Errorf("%s: %v bytes/s is not between %v and %v", r.name, r.rate, MinRate, MaxRate)
		}
	}
	return nil
}

// And combines two limits: the sum of the delays, the lesser of each other value.
func (l Limit) And(o Limit) Limit {
	l.Delay = min(l.Delay+o.Delay, MaxDelay)
	l.Cores = lesser(l.Cores, o.Cores)
	l.NetOut = lesser(l.NetOut, o.NetOut)
	l.NetIn = lesser(l.NetIn, o.NetIn)
	return l
}

// lesser is the lesser of two limits; 0 is unlimited.
func lesser(a, b float64) float64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// String formats l for Parse; none for the zero value.
func (l Limit) String() string {
	var words []string
	if l.Delay != 0 {
		words = append(words, "delay="+l.Delay.String())
	}
	if l.Cores != 0 {
		words = append(words, "cpu="+strconv.FormatFloat(l.Cores, 'g', -1, 64))
	}
	if l.NetOut != 0 {
		words = append(words, "out="+strconv.FormatFloat(8*l.NetOut, 'f', -1, 64)+"bit")
	}
	if l.NetIn != 0 {
		words = append(words, "in="+strconv.FormatFloat(8*l.NetIn, 'f', -1, 64)+"bit")
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, ",")
}

// Parse reads a limit: none, or a list of delay=50ms, cpu=1.5 (processors), out=100mbit and in=100mbit (per second;
// bit, kbit, mbit, gbit), separated by commas.
func Parse(text string) (Limit, error) {
	l, err := parse(text)
	if err == nil {
		err = l.Check()
	}
	if err != nil {
		return Limit{}, fmt.Errorf("limit %q: %w; write none or such as %s", text, err, limitUse)
	}
	return l, nil
}

func parse(text string) (l Limit, err error) {
	if text == "" || text == "none" {
		return l, nil
	}
	seen := map[string]bool{}
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		if seen[key] {
			return l, fmt.Errorf("%s comes twice", key)
		}
		seen[key] = true
		switch key {
		case "delay":
			l.Delay, err = time.ParseDuration(value)
			if err == nil && l.Delay == 0 {
				err = fmt.Errorf("0 is no delay")
			}
		case "cpu":
			l.Cores, err = number(value, 1)
		case "out":
			l.NetOut, err = rate(value)
		case "in":
			l.NetIn, err = rate(value)
		default:
			return l, fmt.Errorf("%q is no limit", word)
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", key, err)
		}
	}
	return l, nil
}

// number reads a positive number, in units of scale.
func number(text string, scale float64) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if f *= scale; err != nil || !(f > 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a positive number", text)
	}
	return f, nil
}

// rate reads bits per second in tc's decimal units, as bytes per second.
func rate(text string) (float64, error) {
	n, ok := strings.CutSuffix(text, "bit")
	if !ok {
		return 0, fmt.Errorf("%q has no unit; write such as 100mbit", text)
	}
	scale := 1.0
	for unit, s := range map[string]float64{"k": 1e3, "m": 1e6, "g": 1e9} {
		if m, ok := strings.CutSuffix(n, unit); ok {
			n, scale = m, s
		}
	}
	return number(n, scale/8)
}
