package ps

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/ps/rule"
	"star/transport/wire"
)

// sgd is the plainest Optimizer.
type sgd struct{}

func (sgd) Step(params, grad []float32, lr float64) {
	for i, g := range grad {
		params[i] -= float32(float32(lr) * g)
	}
}

// heap is a Memory for machines under test. During a read, updates go to a new vector. What is freed is overwritten, so
// that a use after it shows.
type heap struct {
	reading bool
	freed   int
}

func (h *heap) Writable(params []float32) []float32 {
	if h.reading {
		return make([]float32, len(params))
	}
	return params
}

func (h *heap) Written() {}

func (h *heap) Free(v []float32) {
	h.freed++
	for i := range v {
		v[i] = -999
	}
}

// TestScripts runs the lives of a shard in testdata/shard. Commands:
//
//	new params=(…) [lr=…] [clip=…] [version=…]
//	push w=… step=… g=(…)
//	fire seq=… v=… [samples=…] [norm] [report] [g=(worker:step*weight,…)] [drop=(worker:step,…)] [quiet=(…)]
//	apply seq=… norm=…
//	save seq=… id=…
//	forget w=…, hold, resume, reading, done-reading, state
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/shard", func(t *testing.T, path string) {
		var s *Shard
		var mem *heap
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			say := func(err error) string {
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				for {
					ev, ok := s.Next()
					if !ok {
						break
					}
					out.WriteString(describe(ev))
				}
				if out.Len() == 0 {
					return "ok\n"
				}
				return out.String()
			}
			switch d.Cmd {
			case "new":
				mem = &heap{}
				r := &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(0.1)}
				if d.HasArg("lr") {
					r.Schedule = rule.Constant(number(t, d, "lr"))
				}
				if d.HasArg("clip") {
					r.Clip = number(t, d, "clip")
				}
				params := vector(t, d, "params")
				s = NewShard(len(params), r, mem)
				if !d.HasArg("empty") {
					s.Load(params, integer(t, d, "version"))
				}
				return say(nil)
			case "push":
				return say(s.Push(rule.Gradient{
					Worker: star.Worker(integer(t, d, "w")), Step: integer(t, d, "step"), Vec: vector(t, d, "g"),
				}))
			case "fire":
				f := wire.Fire{
					Seq: integer(t, d, "seq"), Version: integer(t, d, "v"), Samples: integer(t, d, "samples"),
					NormFirst: d.HasArg("norm"), Report: d.HasArg("report"), Gradients: named(t, d, "g"), Dropped: named(t, d, "drop"),
				}
				for _, x := range words(d, "quiet") {
					f.Quiet = append(f.Quiet, star.Worker(atoi(t, d, x)))
				}
				return say(s.Fire(&f))
			case "apply":
				return say(s.Apply(integer(t, d, "seq"), number(t, d, "norm"), 1))
			case "save":
				return say(s.Save(wire.Save{Seq: integer(t, d, "seq"), ID: words(d, "id")[0]}))
			case "forget":
				s.Forget(star.Worker(integer(t, d, "w")))
				return say(nil)
			case "hold":
				s.Hold()
				return say(nil)
			case "resume":
				s.Resume()
				return say(nil)
			case "reading":
				mem.reading = true
				return say(nil)
			case "done-reading":
				mem.reading = false
				return say(nil)
			case "state":
				fmt.Fprintf(&out, "v%d %v", s.Version(), s.Params())
				for w := range s.pending {
					if step, ok := s.Pending(star.Worker(w)); ok {
						fmt.Fprintf(&out, "; stored: worker %d step %d", w, step)
					}
				}
				fmt.Fprintf(&out, "; freed: %d\n", mem.freed)
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func describe(ev Event) string {
	switch ev.Kind {
	case Updated:
		to := "nobody"
		if len(ev.Workers) > 0 {
			to = strings.Trim(fmt.Sprint(ev.Workers), "[]")
		}
		if ev.Report {
			to += fmt.Sprintf("; squares %.4f", ev.Sum2)
		}
		return fmt.Sprintf("v%d %v to %s\n", ev.Version, ev.Params, to)
	case Summed:
		return fmt.Sprintf("firing %d: squares %v; waits for the norm\n", ev.Seq, ev.Squares.Float64())
	case SaveDue:
		return fmt.Sprintf("save %s: v%d %v\n", ev.Save.ID, ev.Version, ev.Params)
	}
	return "?\n"
}

func words(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func number(t *testing.T, d *datadriven.TestData, key string) float64 {
	v, err := strconv.ParseFloat(words(d, key)[0], 64)
	if err != nil {
		d.Fatalf(t, "%s: %v", key, err)
	}
	return v
}

func integer(t *testing.T, d *datadriven.TestData, key string) int64 {
	if !d.HasArg(key) {
		return 0
	}
	return int64(atoi(t, d, words(d, key)[0]))
}

func atoi(t *testing.T, d *datadriven.TestData, s string) int {
	v, err := strconv.Atoi(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func vector(t *testing.T, d *datadriven.TestData, key string) []float32 {
	var v []float32
	for _, s := range words(d, key) {
		x, err := strconv.ParseFloat(s, 32)
		if err != nil {
			d.Fatalf(t, "%s: %v", key, err)
		}
		v = append(v, float32(x))
	}
	return v
}

// named reads gradients written as worker:step*weight.
func named(t *testing.T, d *datadriven.TestData, key string) (gs []wire.Gradient) {
	for _, s := range words(d, key) {
		g := wire.Gradient{Weight: 1}
		head, weight, ok := strings.Cut(s, "*")
		if ok {
			x, err := strconv.ParseFloat(weight, 32)
			if err != nil {
				d.Fatalf(t, "%s: %v", key, err)
			}
			g.Weight = float32(x)
		}
		w, step, _ := strings.Cut(head, ":")
		g.Worker, g.Step = star.Worker(atoi(t, d, w)), int64(atoi(t, d, step))
		gs = append(gs, g)
	}
	return gs
}
