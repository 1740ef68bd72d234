package market

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"star/sched/workload"
)

func TestParseRevocations(t *testing.T) {
	for text, want := range map[string]Revocations{
		"rate:2":                         {Rate: 2, Seed: 1, Replace: -1, Notice: 30 * time.Second, Clock: 1},
		"k80":                            {Curve: "k80", Seed: 1, Replace: -1, Notice: 30 * time.Second, Clock: 1},
		"v100:seed=7,clock=3600":         {Curve: "v100", Seed: 7, Replace: -1, Notice: 30 * time.Second, Clock: 3600},
		"rate:.5,replace=90s,notice=0s":  {Rate: .5, Seed: 1, Replace: 90 * time.Second, Clock: 1},
		"trace:a/b.csv,replace=0s":       {File: "a/b.csv", Seed: 1, Notice: 30 * time.Second, Clock: 1},
		"trace:c:d.csv,replace=none":     {File: "c:d.csv", Seed: 1, Replace: -1, Notice: 30 * time.Second, Clock: 1},
		"p100:replace=1m,replace=2m30s,": {},
	} {
		got, err := ParseRevocations(text)
		if want.Seed == 0 {
			if err == nil {
				t.Errorf("%q is %+v, want an error", text, got)
			}
			continue
		}
		if want.Text = text; err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "rate", "rate:", "rate:0", "rate:-1", "rate:nan", "rate:inf", "rate:x", "trace:", "trace:,seed=1", "a100", "k80:seed=-1", "k80:seed=", "k80:clock=0",
		"k80:clock=nan", "k80:replace=-1s", "k80:notice=none", "k80:replace=5", "k80:color=red", "k80,seed=1"} {
		if r, err := ParseRevocations(text); err == nil || !strings.Contains(err.Error(), "rate:PER_HOUR") {
			t.Errorf("%q is %+v, %v; want an error that says what to write", text, r, err)
		}
	}
}

// The lives of many machines are those of the process, and of each machine always the same.
func TestLives(t *testing.T) {
	const n = 40000
	lives := func(text string) (hours []float64) {
		r, err := ParseRevocations(text)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			d := r.Life(i%200, i/200, 0)
			hours = append(hours, d.Hours())
		}
		slices.Sort(hours)
		return hours
	}
	within := func(hours []float64, h float64) float64 {
		i, _ := slices.BinarySearch(hours, h)
		return float64(i) / n
	}
	rate := lives("rate:2,seed=3")
	for _, h := range []float64{.1, .5, 1, 2} {
		if got, want := within(rate, h), 1-math.Exp(-2*h); math.Abs(got-want) > .01 { // four standard errors
			t.Errorf("rate:2: %.3f are gone within %v h, want %.3f", got, h, want)
		}
	}
	for _, c := range []struct {
		curve   string
		h, want float64
	}{{"k80", 1, 5. / 64}, {"k80", 7, 13. / 64}, {"k80", 23.999, 20. / 64}, {"p100", 4, 0}, {"p100", 5, .1}, {"p100", 5.5, .1}, {"v100", 2, 2. / 48}, {"v100", 24.001, 1}} {
		if got := within(lives(c.curve), c.h); math.Abs(got-c.want) > .01 {
			t.Errorf("%s: %.3f are gone within %v h, want %.3f", c.curve, got, c.h, c.want)
		}
	}
	if fast := lives("rate:2,seed=3,clock=60"); math.Abs(fast[n/2]*60-rate[n/2]) > 1e-9 {
		t.Errorf("with clock=60 half of the machines are gone after %v h, want a 60th of %v", fast[n/2], rate[n/2])
	}
	if slices.Equal(rate, lives("rate:2,seed=4")) {
		t.Error("two seeds give the same lives")
	}
}

func TestTraceOfLosses(t *testing.T) {
	losses, err := ReadTrace(strings.NewReader("worker,time,replaced\n1,30,\n0,10,50\n1,20.5,21\n"))
	s := time.Second
	if want := []Revocation{{10 * s, 0, 50 * s}, {20*s + s/2, 1, 21 * s}, {30 * s, 1, -1}}; err != nil || !reflect.DeepEqual(losses, want) {
		t.Fatalf("read %v, %v; want %v", losses, err, want)
	}
	r := Revocations{File: "x", Trace: losses, Replace: 3 * s, Notice: 2 * s}
	for _, c := range []struct {
		worker             int
		begins, life, next time.Duration // of one that leaves 2 s after the notice
	}{{0, 0, 10 * s, 50 * s}, {0, 11 * s, forever, 0}, {1, 0, 20*s + s/2, 22*s + s/2}, {1, 21 * s, 9 * s, 35 * s}, {2, 0, forever, 0}} {
		life := r.Life(c.worker, 0, c.begins)
		if next, ok := r.Next(c.worker, c.begins, c.begins+c.life+2*s); life != c.life || life < forever && (!ok || next != c.next) {
			t.Errorf("worker %d from %v lives %v, another one comes at %v; want %v, %v", c.worker, c.begins, life, next, c.life, c.next)
		}
	}
	r.Replace = -1
	for worker, want := range [][][2]time.Duration{{{10 * s, 50 * s}}, {{20*s + s/2, 21 * s}, {30 * s, -1}}, nil} {
		if got := r.Gone(worker, time.Hour); !slices.Equal(got, want) {
			t.Errorf("worker %d is not there in %v, want %v", worker, got, want)
		}
	}
	// what happens at the time is not before it
	for before, times := range map[time.Duration]int{25 * s: 1, 20*s + s/2: 0} {
		if got := r.Gone(1, before); len(got) != times {
			t.Errorf("worker 1 is not there in %v, before %v, want %d times", got, before, times)
		}
	}
	for text, why := range map[string]string{
		"time\n1\n":                       `line 1: column "worker"`,
		"time,worker\n-1,0\n":             "line 2: time",
		"time,worker\n1,.5\n":             "line 2: want the rank",
		"time,worker,replaced\n10,0,9\n":  "line 2: replaced",
		"time,worker\n1,0\n2e9,1\n":       "line 3: want the rank",
		"time,worker,replaced\n1,0,nan\n": "line 2: replaced",
	} {
		if _, err := ReadTrace(strings.NewReader(text)); !errors.Is(err, workload.ErrInput) || !strings.HasPrefix(err.Error(), why) {
			t.Errorf("%q: %v, want %s", text, err, why)
		}
	}
}

// The curves are those of the study's machines.
func TestCurves(t *testing.T) {
	s, err := Read(os.DirFS(filepath.Join(reference(t), "data")))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Lifetimes {
		c := curves[strings.ToLower(string(l.Machine))]
		if c.machine != l.Machine || c.machines != len(l.Hours) {
			t.Errorf("%s: there are %d of %s, want %d", l.Machine, c.machines, c.machine, len(l.Hours))
		}
		sum := 0
		for h, n := range c.revoked {
			if sum += n; math.Abs(l.Within(float64(h+1))*float64(len(l.Hours))-float64(sum)) > 1e-6 {
				t.Errorf("%s: %d lived less than %d h, want %v of them", l.Machine, sum, h+1, l.Within(float64(h+1)))
			}
		}
	}
}
