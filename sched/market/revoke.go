package market

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"star/sched/workload"
)

// maxLife is the longest life of a transient machine in the study's cloud.
const maxLife = 24 * time.Hour

// curves contains how many of the study's machines were revoked in each hour of their life, and how many there were;
// the others lived to the end, 24 h. The numbers are those of Lifetimes (TestCurves).
var curves = map[string]struct {
	machine  Machine
	machines int
	revoked  [24]int
}{
	"k80":  {K80, 64, [24]int{0: 5, 2: 2, 5: 1, 6: 5, 13: 1, 15: 2, 20: 1, 23: 3}},
	"p100": {P100, 40, [24]int{4: 4, 6: 2, 10: 1, 19: 1}},
	"v100": {V100, 48, [24]int{1: 2, 2: 1, 23: 2}},
}

// Revocations defines when transient machines are taken away and when others replace them.
type Revocations struct {
	Text    string        // the parsed text
	Curve   string        // source of drawn lifetimes: k80, p100, v100; empty: Rate or Trace
	Rate    float64       // revocations per machine and hour, at a constant rate
	File    string        // file of Trace; empty: no trace
	Trace   []Revocation  // contents of File, which the caller must read
	Seed    uint64        // seed of the drawn lives
	Replace time.Duration // from a worker's leaving until the start of its replacement; negative: none
	Notice  time.Duration // from the notice until the machine is gone
	// Clock is the factor by which lives pass faster: in a test hours become minutes.
	Clock float64
}

// Revocation is a line of a trace: the notice that the machine of a worker will be taken away.
type Revocation struct {
	At     time.Duration // since the training began
	Worker int
	Back   time.Duration // start of its replacement, on the same clock; negative: by Revocations.Replace
}

const revokeForm = "want rate:PER_HOUR, trace:FILE, k80, p100 or v100, optionally with other values than seed=1,replace=none,notice=30s,clock=1, such as rate:2,replace=90s or k80:seed=7"

// ParseRevocations parses the value of star run --revoke. By default nothing is replaced, and a notice comes 30 s
// before the end, as Google's.
func ParseRevocations(text string) (*Revocations, error) {
	wrong := func(format string, args ...any) (*Revocations, error) {
		return nil, fmt.Errorf("%q: %s: %s", text, fmt.Sprintf(format, args...), revokeForm)
	}
	r := &Revocations{Text: text, Seed: 1, Replace: -1, Notice: 30 * time.Second, Clock: 1}
	kind, rest, _ := strings.Cut(text, ":")
	var options []string
	if rest != "" {
		options = strings.Split(rest, ",")
	}
	var err error
	switch _, known := curves[kind]; {
	case known:
		r.Curve = kind
	case kind == "rate" && rest != "":
		if r.Rate, err = strconv.ParseFloat(options[0], 64); err != nil || !(r.Rate > 0) || r.Rate > 1e6 {
			return wrong("%q is not a number of revocations per hour, above 0 and at most 1e6", options[0])
		}
		options = options[1:]
	case kind == "trace" && rest != "" && options[0] != "":
		r.File, options = options[0], options[1:]
	default:
		return wrong("%q is not a process of revocations", text)
	}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "seed":
			r.Seed, err = strconv.ParseUint(value, 10, 64)
		case "clock":
			if r.Clock, err = strconv.ParseFloat(value, 64); err == nil && !(r.Clock > 0 && r.Clock <= 1e6) {
				err = fmt.Errorf("out of range")
			}
		case "replace", "notice":
			d := time.Duration(-1)
			if value != "none" || name == "notice" {
				if d, err = time.ParseDuration(value); err == nil && d < 0 {
					err = fmt.Errorf("negative")
				}
			}
			if name == "replace" {
				r.Replace = d
			} else {
				r.Notice = d
			}
		default:
			return wrong("unknown option %q", name)
		}
		if err != nil {
			return wrong("%s: %q: %v", name, value, err)
		}
	}
	return r, nil
}

// ReadTrace reads a trace: CSV with time (s since the training began) and worker, and optionally replaced (start of the
// replacement, s on the same clock). Revocations are returned in order of time. Errors name the line.
func ReadTrace(f io.Reader) (trace []Revocation, err error) {
	rows := workload.NewRows(f, "time", "worker")
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	for rows.Next() {
		at, w, back := rows.Number("time", 0), rows.Number("worker", 0), -1.
		if strings.TrimSpace(rows.Text("replaced")) != "" {
			back = rows.Number("replaced", at)
		}
		if w != math.Trunc(w) || w > 65535 || max(at, back) > 1e9 {
			rows.Fail("want the rank of a worker, up to 65535, and times of at most 1e9 s")
		}
		trace = append(trace, Revocation{seconds(at), int(w), max(-1, seconds(back))})
	}
	slices.SortStableFunc(trace, func(a, b Revocation) int { return cmp.Compare(a.At, b.At) })
	return trace, rows.Err()
}

// forever is a life without end.
const forever = time.Duration(math.MaxInt64)

// Life returns how long after its start, begins, the n-th machine of a worker (from 0) gets its notice; begins counts
// from the start of training. The same seed gives the same lives, in any order of calls.
func (r *Revocations) Life(worker, n int, begins time.Duration) time.Duration {
	if r.File != "" {
		if l, ok := r.first(worker, begins); ok {
			return l.At - begins
		}
		return forever
	}
	u := uniform(r.Seed, uint64(worker)<<32|uint64(n))
	h := -math.Log1p(-u) / r.Rate
	if r.Curve != "" {
		h = quantile(r.Curve, u)
	}
	if h /= r.Clock; h > float64(forever)/float64(time.Hour)/2 {
		return forever
	}
	return time.Duration(h * float64(time.Hour))
}

// uniform returns the i-th number of a seed, in [0, 1), without computing those before: the outputs of two SplitMix64
// (Steele, Lea, Flood, OOPSLA 2014), the second seeded by the first.
func uniform(seed, i uint64) float64 {
	mix := func(z uint64) uint64 {
		z += 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	return float64(mix(mix(seed)^i)>>11) / (1 << 53)
}

// first returns the first revocation in the trace of a worker's machine that started at begins. A machine that starts
// at the time of a revocation replaces that one.
func (r *Revocations) first(worker int, begins time.Duration) (Revocation, bool) {
	for _, l := range r.Trace {
		if l.Worker == worker && (l.At > begins || begins == 0) {
			return l, true
		}
	}
	return Revocation{}, false
}

// Next returns when the replacement starts of a machine that started at begins and has left; both count from the start
// of training. ok is false if it is not replaced.
func (r *Revocations) Next(worker int, begins, left time.Duration) (time.Duration, bool) {
	if l, ok := r.first(worker, begins); ok && l.Back >= 0 {
		return max(l.Back, left), true
	}
	return left + r.Replace, r.Replace >= 0
}

// Gone returns the periods in which a worker has no machine, from a notice until the start of the replacement, counted
// from the start of training and before a time. The second value is -1 if there is no replacement.
func (r *Revocations) Gone(worker int, before time.Duration) (times [][2]time.Duration) {
	for n, begins := 0, time.Duration(0); ; n++ {
		life := r.Life(worker, n, begins)
		if life >= before-begins {
			return times
		}
		left := begins + life
		next, ok := r.Next(worker, begins, left)
		if !ok {
			return append(times, [2]time.Duration{left, -1})
		}
		times = append(times, [2]time.Duration{left, next})
		begins = next
	}
}

// quantile returns after how many hours a fraction u of a curve's machines has been revoked. Within an hour the rate is
// constant.
func quantile(curve string, u float64) float64 {
	c := curves[curve]
	left := u * float64(c.machines)
	for h, n := range c.revoked {
		if left < float64(n) {
			return float64(h) + left/float64(n)
		}
		left -= float64(n)
	}
	return maxLife.Hours()
}
