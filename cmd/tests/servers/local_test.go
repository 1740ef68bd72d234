package servers

import (
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// Steps of the workers' own in a job without a baseline come to what those of local SGD with the same optimiser come
// to, with servers and in a ring, and with whatever momentum.
func TestLocalStepsAreLocalSGD(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, arch := range []string{"ps", "allreduce"} {
		for _, optimizer := range []string{"sgd", "momentum", "nesterov", "dana"} {
			t.Run(arch+"/"+optimizer, func(t *testing.T) {
				t.Parallel()
				run := []string{"--arch", arch, "--workers", "3", "--model", "softmax", "--dataset", "digits:n=96,test=16", "--batch", "4", "--steps", "24", "--optimizer", optimizer, "--lr", "0.05", "--eval-every", "0"}
				a, _ := jobtest.Run(t, append([]string{"--mode", "ssgd local=4"}, run...)...)
				b, _ := jobtest.Run(t, append([]string{"--baseline", "local-sgd:steps=4"}, run...)...)
				if a.Updates != 6 || a.Samples != 3*24*4 || b.Updates != 6 {
					t.Fatalf("%d updates of %d samples, with the baseline %d", a.Updates, a.Samples, b.Updates)
				}
				if d := apart(t, b, a); !(d < 1e-5) {
					t.Errorf("%.2g apart from the baseline", d)
				}
			})
		}
	}
	for _, args := range [][]string{{"--optimizer", "adam"}, {"--clip", "1"}, {"--compress", "topk:0.1"}, {"--update-scale", "firing"}} {
		out, err := exec.Command(jobtest.Star(t), append([]string{"run", "--mode", "ssgd local=4", "--workers", "2", "--model", "softmax", "--steps", "4", "--out", t.TempDir(), "--listen", "127.0.0.1:0"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), `--mode "ssgd local=4": `) {
			t.Errorf("%v: a job with local steps ends with %v\n%s", args, err, out)
		}
	}
}

// Workers make steps of their own by the job's optimiser, whatever they were told themselves.
func TestLocalStepsOfTheJob(t *testing.T) {
	args := []string{"--mode", "ssgd local=4", "--steps", "12", "--eval-every", "0"}
	silent := jobtest.Start(t, 1, 2, args...) // only the server has --lr 0.001
	jobtest.SameBits(t, "with workers that were told the learning rate, and others", jobtest.Parameters(t, silent.Result()),
		jobtest.Parameters(t, jobtest.Start(t, 1, 2, append(args, "--lr", "0.001")...).Result()))
}

// Workers go over to steps of their own and back while the job runs, from and to whatever mode, and each sample is in
// one update.
func TestIntoLocalStepsAndOut(t *testing.T) {
	for _, c := range []struct {
		more  []string
		modes []string
	}{
		{[]string{"--arch", "ps", "--optimizer", "momentum"}, []string{"ssgd local=4", "asgd", "ssgd local=2", "x=2", "ssgd local=4", "ssgd"}},
		{[]string{"--arch", "ps", "--optimizer", "dana"}, []string{"ssgd queue=2", "ssgd local=4", "ssgd local=8", "asgd"}},
	} {
		if testing.Short() && c.more[3] == "momentum" {
			continue
		}
		g := jobtest.Start(t, 1, 3, append([]string{"--mode", "ssgd", "--model", "softmax", "--steps", "1000000", "--eval-every", "0", "--slow", "0:+8ms,1:+8ms,2:+8ms"}, c.more...)...)
		g.Training()
		v := g.Version(5)
		for _, m := range c.modes {
			if out, err := exec.Command(jobtest.Star(t), "ctl", "mode", m, "--coordinator", g.Addr).CombinedOutput(); err != nil {
				t.Fatalf("mode %s: %v\n%s", m, err, out)
			}
			v = g.Version(v + 15)
		}
		jobtest.Ctl(t, g.Addr, "stop")
		r := g.Result()
		if !(float64(r.TestLoss) < 2.3) {
			t.Errorf("loss %v after %d updates, want less than at the beginning", r.TestLoss, r.Updates)
		}
		jobtest.EverySampleOnce(t, g.Out, r.Samples)
	}
}
