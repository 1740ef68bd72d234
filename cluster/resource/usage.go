package resource

import (
	"fmt"
	"math"
)

// Usage is the use or the capacity of a host.
type Usage struct {
	CPU    float64 // cores: processor seconds per second
	NetIn  float64 // bytes per second into the host
	NetOut float64 // bytes per second out of the host
}

// Unlimited is the capacity of an unknown host.
var Unlimited = Usage{math.Inf(1), math.Inf(1), math.Inf(1)}

// Percent converts a share of a host's processors, as tools show it, to cores: 100 is all of them.
func Percent(percent, cores float64) float64 { return percent / 100 * cores }

// kinds of resources; each is separate.
const (
	cpu = iota
	netIn
	netOut
	kinds
)

var kindNames = [kinds]string{"CPU", "incoming network", "outgoing network"}

func (u Usage) of(k int) float64 { return [kinds]float64{u.CPU, u.NetIn, u.NetOut}[k] }

func (u *Usage) at(k int) *float64 { return [kinds]*float64{&u.CPU, &u.NetIn, &u.NetOut}[k] }

// each applies f to every kind.
func (u Usage) each(v Usage, f func(a, b float64) float64) Usage {
	return Usage{f(u.CPU, v.CPU), f(u.NetIn, v.NetIn), f(u.NetOut, v.NetOut)}
}

// Plus is u + v.
func (u Usage) Plus(v Usage) Usage {
	return u.each(v, func(a, b float64) float64 { return a + b })
}

// Minus is u − v, and at least zero.
func (u Usage) Minus(v Usage) Usage {
	return u.each(v, func(a, b float64) float64 { return max(a-b, 0) })
}

// Max is the element-wise maximum.
func (u Usage) Max(v Usage) Usage {
	return u.each(v, func(a, b float64) float64 { return max(a, b) })
}

// Min is the element-wise minimum.
func (u Usage) Min(v Usage) Usage {
	return u.each(v, func(a, b float64) float64 { return min(a, b) })
}

// Times is k·u.
func (u Usage) Times(k float64) Usage { return Usage{k * u.CPU, k * u.NetIn, k * u.NetOut} }

// Fits reports whether u is at most capacity, up to rounding.
func (u Usage) Fits(capacity Usage) bool {
	for k := range kinds {
		if u.of(k) > capacity.of(k)+slack(capacity.of(k)) {
			return false
		}
	}
	return true
}

// slack bounds the rounding error of such sums.
func slack(v float64) float64 { return 1e-9 * (1 + math.Abs(v)) }

// check returns an error for a negative or non-finite number; limitless: it may be infinite.
func (u Usage) check(what string, limitless bool) error {
	for k := range kinds {
		if v := u.of(k); !(v >= 0) || math.IsInf(v, 1) && !limitless {
			return fmt.Errorf("resource: %s: %s of %v: want a number of at least 0", what, kindNames[k], v)
		}
	}
	return nil
}

// String formats u: 0.38 cores, in 3.7 MB/s, out 3.7 MB/s.
func (u Usage) String() string {
	return fmt.Sprintf("%s, in %s, out %s", amount(cpu, u.CPU), amount(netIn, u.NetIn), amount(netOut, u.NetOut))
}

// amount formats an amount of a kind.
func amount(kind int, v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "no limit"
	case kind == cpu:
		return fmt.Sprintf("%.3g cores", v)
	}
	return fmt.Sprintf("%.4g MB/s", v/1e6)
}
