package ps

import (
	"math"
	"testing"

	"star/ps/rule"
	"star/transport/wire"
)

// A shard holds a direction against v, and applies it as the verdict says, or not at all.
func TestValidated(t *testing.T) {
	rule := &rule.Validated{Then: descent(0.1), Validator: 2}
	c := newScalar(t, rule, 1)
	c.fire(0, nil, c.push(2, 0, 1, 3))    // the validator's
	c.fire(0, nil, c.push(1, 0, 1, 1000)) // a worker's that was dropped is no v
	judged := func(g float32, factor float64) float64 {
		c.seq, c.ver = c.seq+1, c.ver+1
		p := c.push(0, c.ver-1, 1, g)
		p.Weight = 1
		if err := c.s.Fire(&wire.Fire{Seq: c.seq, Version: c.ver, Gradients: []wire.Gradient{p}, NormFirst: true}); err != nil {
			t.Fatal(err)
		}
		ev, ok := c.s.Next()
		if !ok || ev.Kind != Summed || ev.Ref == nil {
			t.Fatalf("%+v, %v", ev, ok)
		}
		near(t, "product", ev.Dot, 3*float64(g), 0)
		near(t, "|v|²", ev.Ref.Float64(), 9, 0)
		if _, ok := c.s.Next(); ok {
			t.Fatal("the shard did not wait for the verdict")
		}
		if err := c.s.Apply(c.seq, math.Abs(float64(g)), factor); err != nil {
			t.Fatal(err)
		}
		if ev, ok = c.s.Next(); !ok || ev.Kind != Updated || ev.Version != c.ver || len(ev.Workers) != 1 {
			t.Fatalf("%+v, %v", ev, ok)
		}
		return float64(c.s.Params()[0])
	}
	near(t, "accepted", judged(6, .5), .7, 1e-6)
	near(t, "rejected", judged(-6, 0), .7, 1e-6)
	near(t, "accepted again", judged(6, .5), .4, 1e-6)
	c.fire(0, nil, c.push(2, c.ver, 1, -3))
	if dot, _ := rule.Score([]float32{2}); dot != -6 {
		t.Errorf("a new v: product %v", dot)
	}
}
