package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
	"star/runlog"
)

// made is a run that a test makes up: two workers, steps of a tenth of a second.
type made struct {
	seed      uint64
	arch      string
	steps     int
	load      float64 // s of a step, more than 10 ms
	loss      float64 // times as large
	bytes     float64
	accuracy  float64
	wander    float64 // scatter of the steps of a run together, with a memory of 50 steps
	verdict   bool
	plan      string // from the middle on
	config    string
	open      bool
	unhealthy bool
}

func (m made) read(t *testing.T) (*Reader, runlog.Contents) {
	t.Helper()
	var b strings.Builder
	say := func(at float64, kind string, e any) {
		x, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, `{"type":%q,"t":%.6f,%s`+"\n", kind, at, strings.TrimPrefix(string(x), "{"))
	}
	rnd := rand.New(rand.NewPCG(m.seed, 7))
	config := fmt.Sprintf(`{"arch":%q,"batch":32,"out":"x%d"%s}`, m.arch, m.seed, m.config)
	say(0, "start", runlog.Start{Format: 1, Program: "star", Job: "j", Config: []byte(config)})
	say(1, "train", runlog.Train{Workers: 2, Shards: 1, Model: "net, 3 layers", Data: "d", Limit: int64(64 * m.steps), Plan: "ssgd"})
	at, state := 1.0, 0.0
	for step := range m.steps {
		state = 0.98*state + math.Sqrt(1-0.98*0.98)*rnd.NormFloat64()
		long := 0.0
		var owns [2]float64
		for w := range owns {
			owns[w] = (0.06 + 0.01*math.Exp(0.3*rnd.NormFloat64())) * math.Exp(m.wander*state)
			long = max(long, owns[w]+m.load)
		}
		at += long + 0.02
		for w := range owns {
			r := runlog.Record{Start: -1, Record: star.Record{Worker: star.Worker(w), Step: int64(step), Basis: int64(step), At: seconds(at), Compute: seconds(owns[w]), Load: seconds(0.01*rnd.Float64() + m.load),
				Push: seconds(0.01), Pull: seconds(0.01), Wait: seconds(long - owns[w] - m.load), Samples: 32, NetIn: 100 + m.bytes, NetOut: 100,
				Loss: (1 + m.loss) * (1/(1+float64(step)/100) + 0.02*rnd.NormFloat64())}}
			fmt.Fprintf(&b, `{"type":"record","t":%.6f,"worker":%d,"step":%d,"basis":%d,"at":%.6f,"load":%.9f,"compute":%.9f,"push":%.9f,"wait":%.9f,"pull":%.9f,"transit":0,"samples":32,"loss":%.9f,"net_in":%g,"net_out":%g}`+"\n",
				at, w, step, step, r.At.Seconds(), r.Load.Seconds(), r.Compute.Seconds(), r.Push.Seconds(), r.Wait.Seconds(), r.Pull.Seconds(), r.Loss, r.NetIn, r.NetOut)
		}
		say(at, "fire", runlog.Fire{Seq: int64(step + 1), Version: int64(step + 1), Workers: []star.Worker{0, 1}, Staleness: []int64{0, 0}, Samples: int64(64 * (step + 1))})
		if step%100 == 99 {
			at += 3 // an evaluation
			say(at, "eval", runlog.Eval{Eval: int64(step), To: int64(step + 1), Samples: int64(64 * (step + 1)), Loss: 1, Accuracy: runlog.Number(m.accuracy), Count: 1000})
		}
		if step == m.steps/2 && m.plan != "" {
			say(at, "plan", runlog.Plan{Plan: m.plan, From: "ssgd", Why: "by hand", Predicted: runlog.Number(math.NaN())})
		}
		if step == m.steps/2 && m.verdict {
			say(at, "verdict", runlog.Verdict{Worker: 1, Event: "slow", Step: int64(step), Since: int64(step / 2), Slowdown: 2, Cause: "data"})
			say(at, "slowdown", runlog.Slowdown{Event: "slow", Since: runlog.Seconds(at / 2), Slowdown: 1.5, Part: "load", Cause: "data"})
		}
	}
	if m.unhealthy {
		say(at, "leave", runlog.Leave{Worker: 1, Why: "killed"})
	}
	if !m.open {
		r := runlog.Result{Arch: m.arch, Workers: 2, Updates: int64(m.steps), Samples: int64(64 * m.steps), Wall: runlog.Seconds(at - 1)}
		if m.unhealthy {
			r.Error = "all workers are lost"
		}
		say(at, "summary", runlog.Summary{Result: r})
	}
	r := NewReader()
	read, err := runlog.Read(strings.NewReader(b.String()), "log", r.Add)
	if err != nil {
		t.Fatal(err)
	}
	return r, read
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

func compared(t *testing.T, a, b made) Comparison {
	t.Helper()
	x, rx := a.read(t)
	y, ry := b.read(t)
	return Of(x, y, [2]string{"a", "b"}, [2]runlog.Contents{rx, ry})
}

// differs are the names of what differs.
func (c *Comparison) differs() (names []string) {
	for _, row := range c.Rows() {
		if row[5] == "differs" {
			name, _, _ := strings.Cut(row[0], " after")
			names = append(names, name)
		}
	}
	return names
}

// Each change is found, and no other.
func TestDifferences(t *testing.T) {
	base := made{arch: "ps", steps: 600, accuracy: 0.9}
	for _, c := range []struct {
		name   string
		change func(m *made)
		want   string
	}{
		{"nothing", func(*made) {}, ""},
		{"data", func(m *made) { m.load = 0.02 }, "pace,own time of a sample,load"},
		{"bytes", func(m *made) { m.bytes = 50 }, "bytes of a step"},
		{"loss", func(m *made) { m.loss = 0.3 }, "loss,loss,loss,loss"},
		{"accuracy", func(m *made) { m.accuracy = 0.95 }, "accuracy,accuracy"},
		{"accuracy by chance", func(m *made) { m.accuracy = 0.92 }, ""},
	} {
		for seed := range uint64(3) {
			a, b := base, base
			a.seed, b.seed = 2*seed, 2*seed+1
			c.change(&b)
			x := compared(t, a, b)
			if got := strings.Join(x.differs(), ","); got != c.want {
				t.Errorf("%s, seed %d: %q differ, want %q", c.name, seed, got, c.want)
			}
		}
	}
}

// Two runs of one kind differ in at most 3 of 100 comparisons of a quantity, also where the times of steps wander.
func TestNoise(t *testing.T) {
	found, of := 0, 0
	for seed := range uint64(36) {
		m := made{arch: "ps", steps: 400, accuracy: 0.9, wander: 0.2 * float64(seed%3)}
		a, b := m, m
		a.seed, b.seed = 1000+2*seed, 1001+2*seed
		x := compared(t, a, b)
		found += len(x.differs())
		of += len(x.Rows()) - 1
	}
	t.Logf("%d of %d", found, of)
	if found > 3*of/100 {
		t.Errorf("%d of %d quantities of equal runs differ", found, of)
	}
}

// A comparison has what a reader needs to explain a difference: settings, modes, slow workers, how runs ended.
func TestText(t *testing.T) {
	c := compared(t, made{arch: "ps", steps: 300, accuracy: 0.5, seed: 1},
		made{arch: "ps", steps: 300, accuracy: 0.5, seed: 2, load: 0.05, plan: "asgd", verdict: true, unhealthy: true, config: `,"lr":0.1`})
	var b strings.Builder
	if err := c.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"A  a: star, ps, net, 2 workers, 19200 samples in 300 updates, ",
		"failed: all workers are lost, 1 times a worker left\n",
		"\nsettings\n  lr: not there → 0.1\n\n",
		"modes: ssgd 100 %; 0 changes; workers waited for others ",
		"; 1 change; workers",
		"w1 2.0x slow, ", "all workers together 1.5x slow, ",
		"   no worker was slow\n",
		"accuracy 50.00 %",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}

// A log without training, and one that goes on, can be compared, too.
func TestUnfinished(t *testing.T) {
	r := NewReader()
	read, err := runlog.Read(strings.NewReader(`{"type":"start","format":1,"program":"star","job":"j","config":{}}`+"\n"), "log", r.Add)
	if err != nil {
		t.Fatal(err)
	}
	x, rx := made{arch: "allreduce", steps: 20, open: true}.read(t)
	c := Of(r, x, [2]string{"none", "open"}, [2]runlog.Contents{read, rx})
	var b strings.Builder
	if err := c.Text(&b); err != nil || !strings.Contains(b.String(), "the training did not begin") || !strings.Contains(b.String(), "without its end") || !strings.Contains(b.String(), "only one run has it") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if len(c.differs()) > 0 {
		t.Errorf("%v", c.differs())
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}
