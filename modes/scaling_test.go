package modes

import (
	"math"
	"testing"
	"time"
)

func TestScaling(t *testing.T) {
	ms := func(of ...int) (out []time.Duration) {
		for _, d := range of {
			out = append(out, time.Duration(d)*time.Millisecond)
		}
		return out
	}
	for name, c := range map[string]struct {
		own, iteration []time.Duration
		samples        []int
		efficiency     float64
		worth          bool
	}{
		"nobody waits":                 {ms(10, 10), ms(10, 10), []int{32, 32}, 1, true},
		"half is exchange, of four":    {ms(10, 10, 10, 10), ms(20, 20, 20, 20), []int{32, 32, 32, 32}, 0.5, true},
		"break-even of two":            {ms(10, 10), ms(20, 20), []int{32, 32}, 0.5, false},
		"exchange costs more":          {ms(10, 10), ms(50, 50), []int{32, 32}, 0.2, false},
		"a slow one holds up three":    {ms(10, 10, 10, 80), ms(80, 80, 80, 80), []int{32, 32, 32, 32}, 4. / 80 / (3./10 + 1./80), false},
		"its share is smaller":         {ms(10, 10, 10, 10), ms(20, 20, 20, 20), []int{32, 32, 32, 4}, 0.5, true},
		"one has made none":            {ms(10, 10, 0), ms(10, 10, 0), []int{32, 32, 0}, 1, true},
		"nothing is known":             {ms(0), ms(0), []int{0}, 0, false},
		"an iteration without its own": {ms(10), ms(0), []int{1}, 1, false},
	} {
		s := ScalingOf(c.own, c.iteration, c.samples)
		if math.Abs(s.Efficiency()-c.efficiency) > 1e-12 || s.Worth() != c.worth {
			t.Errorf("%s: %+v, efficiency %v, worth %v; want %v, %v", name, s, s.Efficiency(), s.Worth(), c.efficiency, c.worth)
		}
	}
}
