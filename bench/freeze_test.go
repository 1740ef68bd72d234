package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"star"
	"star/internal/kernel"
	"star/modes"
	"star/sim"
	"star/train/optim"
)

var referenceFile = flag.String("reference", "", "file to which TestReferenceJobs writes its hashes, in place of comparing them")

const recordedJobs = "freeze/virtual.txt"

// referenceJobs train a real model in virtual time. Each takes another way through shards, rules and barrier.
var referenceJobs = []struct {
	name, method string
	own          optim.Config
	riders       []star.Worker
}{
	{"servers, sgd", "ssgd", optim.Config{Name: optim.SGD}, nil},
	{"servers, dana", "asgd", optim.Config{Name: optim.DANA, Momentum: 0.9}, nil},
	{"servers, adam", "x=2", optim.Config{Name: optim.Adam}, nil},
	{"servers, a queue", "ssgd queue=4", optim.Config{Name: optim.DANA, Momentum: 0.9}, nil},
	{"servers, backup workers", "backup=1", optim.Config{Name: optim.Nesterov, Momentum: 0.9}, nil},
	{"servers, a tree", "tree=0(1,2),3", optim.Config{Name: optim.DANA, Momentum: 0.9}, nil},
	{"servers, auto", "auto", optim.Config{Name: optim.SGD}, nil},
	{"servers, dc-asgd", "dc-asgd", optim.Config{Name: optim.SGD}, nil},
	{"ring, a rider", "ssgd", optim.Config{Name: optim.Momentum, Momentum: 0.9}, []star.Worker{3}},
}

// referenceTimes are those of four workers. The last worker takes three times as long. Each has a jitter that follows
// from its step.
type referenceTimes struct{}

func (referenceTimes) Workers() int { return 4 }
func (referenceTimes) Spend(w star.Worker, step int64, _ time.Duration, load float64) sim.Spent {
	ms := 100 + 7*time.Duration(w) + time.Duration((step*31+int64(w)*17)%13)
	if w == 3 {
		ms *= 3
	}
	return sim.Spent{Compute: time.Duration(load * float64(ms*time.Millisecond))}
}

// parametersHash is the hash of the parameters that a reference job ends with.
func parametersHash(t *testing.T, job int) string {
	r := referenceJobs[job]
	task, err := openTask(TTATask{Name: "freeze", Dataset: "digits:n=400,test=100", Model: "mlp", Round: 32, Tests: 100})
	if err != nil {
		t.Fatal(err)
	}
	model, err := task.build(t.Context(), 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer model.model.Close()
	learner := &sim.Trained{Task: model, Every: 1 << 30}
	c := sim.Config{Times: referenceTimes{}, Learner: learner, Batch: 8, Samples: 1600, Target: 2, Limit: 4 * time.Second}
	r.own.LR = 0.01
	if err := c.Use(r.method, r.own); err != nil {
		t.Fatal(err)
	}
	if r.riders != nil {
		c.Plan = modes.Plan{Groups: []modes.Group{{Members: []star.Worker{0, 1, 2}, Riders: r.riders, Quorum: 3}}}
	}
	if _, err := sim.Run(c); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if err := binary.Write(h, binary.LittleEndian, learner.Params()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// TestReferenceJobs compares the parameters of jobs in virtual time with those that bench/freeze.sh has recorded, bit
// for bit. Kernels of other processors round otherwise: there the hashes say nothing.
func TestReferenceJobs(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "kernels %s\n", kernel.Name())
	for i, r := range referenceJobs {
		fmt.Fprintf(&b, "%s: %s %s: %s\n", r.name, r.method, r.own.Name, parametersHash(t, i))
	}
	if *referenceFile != "" {
		if err := os.WriteFile(*referenceFile, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	recorded, err := os.ReadFile(recordedJobs)
	if err != nil {
		t.Fatal(err)
	}
	was, now := strings.Split(string(recorded), "\n"), strings.Split(b.String(), "\n")
	if was[0] != now[0] {
		t.Skipf("%s recorded with %s, this processor has %s", recordedJobs, was[0], now[0])
	}
	if len(was) != len(now) {
		t.Fatalf("%s has %d lines, the jobs make %d: run bench/freeze.sh --record", recordedJobs, len(was), len(now))
	}
	for i := range was {
		if was[i] != now[i] {
			t.Errorf("the parameters changed:\nwas %s\nnow %s", was[i], now[i])
		}
	}
}
