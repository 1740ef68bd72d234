package rings

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// All-reduce, parameter servers and one process on the whole batch train alike.
// That the members have the same bits the coordinator checks itself, at every evaluation.
func TestAllReduceIsSSGD(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "lenet", "--steps", "50", "--lr", "0.01", "--clip", "1", "--schedule", "warmup=500", "--weight-decay", "1e-4"}
	one, _ := jobtest.Run(t, append(args, "--workers", "1", "--shards", "1", "--batch", "64")...)
	ps, _ := jobtest.Run(t, append(args, "--workers", "4", "--shards", "2", "--batch", "16")...)
	ring, _ := jobtest.Run(t, append(args, "--workers", "4", "--arch", "allreduce", "--batch", "16")...)
	if ring.Arch != "allreduce" || ring.Shards != 0 || ring.Updates != 50 || ring.Steps != 200 || ring.Samples != 3200 || !ring.Evaluated {
		t.Errorf("result %+v", ring)
	}
	jobtest.Near(t, "all-reduce and one process", jobtest.Parameters(t, one), jobtest.Parameters(t, ring))
	jobtest.Near(t, "all-reduce and parameter servers", jobtest.Parameters(t, ps), jobtest.Parameters(t, ring))
	if ps.TestAccuracy != ring.TestAccuracy {
		t.Errorf("test accuracy %v with servers, %v with all-reduce", ps.TestAccuracy, ring.TestAccuracy)
	}
	alone, _ := jobtest.Run(t, append(args, "--workers", "1", "--arch", "allreduce", "--batch", "64")...)
	jobtest.Near(t, "a ring of one and one process", jobtest.Parameters(t, one), jobtest.Parameters(t, alone))
}

// Buckets that are exchanged while the rest is computed make the same sum, with and
// without the overlap.
func TestBuckets(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "mlp", "--workers", "3", "--steps", "30", "--batch", "8", "--lr", "0.05", "--arch", "allreduce", "--clip", "1"}
	whole, _ := jobtest.Run(t, args...)
	overlap, dir := jobtest.Run(t, append(args, "--bucket", "0.1")...)
	after, _ := jobtest.Run(t, append(args, "--bucket", "0.1", "--slow", "1:+1ms")...)
	jobtest.Near(t, "in one piece and in buckets", jobtest.Parameters(t, whole), jobtest.Parameters(t, overlap))
	jobtest.SameBits(t, "buckets with and without overlap", jobtest.Parameters(t, overlap), jobtest.Parameters(t, after))
	type record struct {
		Norm2, Loss float64
		NetIn       float64 `json:"net_in"`
		NetOut      float64 `json:"net_out"`
	}
	// What members move is counted at their links: a gradient to three of them, depending on
	// the algorithm, and little beside it.
	gradient := 4 * float64(len(jobtest.Parameters(t, whole)))
	for _, r := range jobtest.RunLog[record](t, dir, "record") {
		if !(r.Norm2 > 0) {
			t.Fatalf("record %+v: no norm", r)
		}
		for _, n := range []float64{r.NetIn, r.NetOut} {
			if n < gradient || n > 3*gradient+1e4 {
				t.Fatalf("record %+v: %v bytes moved, want about %v", r, n, gradient)
			}
		}
	}
}

// Checkpoints of both architectures are the same, and either goes on with the other's.
func TestAllReduceResumes(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, optimizer := range []string{"adam", "dana", "muon"} {
		resumes(t, optimizer)
	}
}

func resumes(t *testing.T, optimizer string) {
	t.Helper()
	args := []string{"--model", "mlp", "--workers", "3", "--batch", "8", "--optimizer", optimizer, "--lr", "0.001"}
	ring := append(args, "--arch", "allreduce")
	whole, _ := jobtest.Run(t, append(ring, "--steps", "20")...)
	_, half := jobtest.Run(t, append(ring, "--steps", "10")...)
	rest, _ := jobtest.Run(t, append(ring, "--steps", "20", "--resume", half)...)
	if rest.Updates != 10 {
		t.Errorf("%d updates after resuming, want 10", rest.Updates)
	}
	jobtest.SameBits(t, "with and without a stop", jobtest.Parameters(t, whole), jobtest.Parameters(t, rest))
	ps, _ := jobtest.Run(t, append(args, "--shards", "2", "--steps", "20", "--resume", half)...)
	jobtest.Near(t, "resumed by parameter servers", jobtest.Parameters(t, whole), jobtest.Parameters(t, ps))
	_, half = jobtest.Run(t, append(args, "--shards", "2", "--steps", "10")...)
	back, _ := jobtest.Run(t, append(ring, "--steps", "20", "--resume", half)...)
	jobtest.Near(t, "resumed from parameter servers", jobtest.Parameters(t, whole), jobtest.Parameters(t, back))
}

// Models with buffers evaluate and save their average.
func TestAllReduceAveragesBuffers(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	if err := jobtest.WriteCIFAR(dir, 60); err != nil {
		t.Fatal(err)
	}
	args := []string{"--dataset", "cifar10:" + dir, "--model", "resnet20:width=0.25", "--workers", "2", "--batch", "8", "--steps", "3"}
	ps, _ := jobtest.Run(t, args...)
	ring, _ := jobtest.Run(t, append(args, "--arch", "allreduce")...)
	jobtest.Near(t, "running statistics", jobtest.Buffers(t, ps), jobtest.Buffers(t, ring))
}

// A ring that waits for its riders is a tree, and trains as SSGD does.
func TestRidersThatAreWaitedFor(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, optimizer := range []string{"dana", "momentum"} {
		args := []string{"--model", "lenet", "--workers", "4", "--steps", "30", "--batch", "8", "--lr", "0.01", "--arch", "allreduce", "--optimizer", optimizer}
		full, _ := jobtest.Run(t, args...)
		tree, dir := jobtest.Run(t, append(args, "--mode", "ring-minus=1,3", "--rider-wait", "10s", "--slow", "3:2x")...)
		if tree.Updates != 30 || tree.Samples != full.Samples || tree.Staleness.Max != 0 {
			t.Errorf("%d updates of %d samples, staleness up to %d; want 30 of %d without", tree.Updates, tree.Samples, tree.Staleness.Max, full.Samples)
		}
		jobtest.Near(t, optimizer+": riders that are waited for and a full ring", jobtest.Parameters(t, full), jobtest.Parameters(t, tree))
		jobtest.EverySampleOnce(t, dir, full.Samples)
	}
}

// Riders that are not waited for are carried when they are there, and every sample is
// used once.
func TestRiders(t *testing.T) {
	r, dir := jobtest.Run(t, "--model", "mlp", "--workers", "4", "--epochs", "9", "--batch", "8", "--arch", "allreduce",
		"--mode", "ring-minus=2,3", "--slow", "3:20x")
	if r.Samples != 3600 {
		t.Errorf("%d samples were used, want 3600", r.Samples)
	}
	if r.Staleness.Max == 0 {
		t.Error("no gradient was carried later than in its own round")
	}
	jobtest.EverySampleOnce(t, dir, 3600)
	asStaleAsSaid(t, dir, 2, 3)
	if r, _ := jobtest.Run(t, "--model", "mlp", "--workers", "3", "--epochs", "9", "--batch", "8", "--arch", "allreduce",
		"--mode", "ring-minus=2", "--slow", "2:20x", "--max-staleness", "1"); r.Staleness.Max > 1 || r.Wasted == 0 || r.Samples+r.Wasted != 3600 {
		t.Errorf("staleness up to %d, %d samples used and %d dropped; want 1 at most, and 3600 in all", r.Staleness.Max, r.Samples, r.Wasted)
	}
}

// asStaleAsSaid: an update names the version of the parameters that the gradients of riders are of, as their records
// do. A rider has one batch at a time.
func asStaleAsSaid(t *testing.T, dir string, riders ...int64) {
	t.Helper()
	type record struct{ Worker, Basis int64 }
	said := map[int64][]int64{}
	for _, m := range jobtest.RunLog[record](t, dir, "record") {
		said[m.Worker] = append(said[m.Worker], m.Basis)
	}
	type fire struct {
		Version            int64
		Workers, Staleness []int64
	}
	wrong, all := 0, 0
	for _, f := range jobtest.RunLog[fire](t, dir, "fire") {
		for i, w := range f.Workers {
			if !slices.Contains(riders, w) || len(said[w]) == 0 {
				continue
			}
			if basis := said[w][0]; basis != f.Version-1-f.Staleness[i] {
				wrong++
				t.Logf("the gradient of worker %d in version %d is of version %d by its record, and %d behind by the update", w, f.Version, basis, f.Staleness[i])
			}
			all++
			said[w] = said[w][1:]
		}
	}
	if wrong > 0 || all == 0 {
		t.Errorf("%d of %d gradients are not as stale as it is said", wrong, all)
	}
}

// ringJob starts a job of all-reduce that can be talked to.
func ringJob(t *testing.T, args ...string) (cmd *exec.Cmd, addr, dir string, out, errs *jobtest.Output) {
	t.Helper()
	return jobtest.Background(t, append([]string{"--arch", "allreduce", "--mode", "ssgd", "--model", "mlp", "--eval-every", "2", "--batch", "8"}, args...)...)
}

// A straggler is taken out of the ring while the job runs, and comes back.
func TestRingChangesWhileRunning(t *testing.T) {
	t.Parallel()
	cmd, addr, dir, out, errs := ringJob(t, "--workers", "4", "--slow", "0:3x")
	jobtest.AtVersion(t, addr, 20, errs)
	jobtest.Ctl(t, addr, "mode", "ring-minus=0")
	v := jobtest.AtVersion(t, addr, 40, errs).Version
	jobtest.Ctl(t, addr, "mode", "ring-minus=0,2")
	jobtest.AtVersion(t, addr, v+40, errs)
	jobtest.Ctl(t, addr, "checkpoint")
	jobtest.Ctl(t, addr, "mode", "ssgd")
	v = jobtest.AtVersion(t, addr, v+60, errs).Version
	jobtest.Ctl(t, addr, "mode", "ring-minus=3")
	jobtest.AtVersion(t, addr, v+20, errs)
	if b, err := exec.Command(jobtest.Star(t), "ctl", "mode", "asgd", "--coordinator", addr).CombinedOutput(); err == nil || !strings.Contains(string(b), "--arch ps") {
		t.Errorf("star ctl mode asgd: %v, %s; want a refusal that names --arch ps", err, b)
	}
	jobtest.Ctl(t, addr, "mode", "ssgd")
	jobtest.AtVersion(t, addr, v+60, errs)
	if r := jobtest.Stopped(t, cmd, addr, dir, out, errs); r.Switches != 5 || r.Staleness.Max == 0 {
		t.Errorf("%d switches, staleness up to %d; want 5, more than 0", r.Switches, r.Staleness.Max)
	}
}

// Members and riders are killed; the others go on, and every sample is used once.
func TestRingLosesMembers(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := ringJob(t, "--workers", "6",
		"--mode", "ring-minus=4,5", "--slow", "5:2x", "--checkpoint-every", "200ms")
	jobtest.AtVersion(t, addr, 20, errs)
	jobtest.KillWorker(t, cmd, 2, syscall.SIGKILL) // a member
	v := jobtest.AtVersion(t, addr, 60, errs).Version
	jobtest.KillWorker(t, cmd, 0, syscall.SIGKILL) // the first, parent of a rider
	v = jobtest.AtVersion(t, addr, v+30, errs).Version
	jobtest.KillWorker(t, cmd, 4, syscall.SIGKILL) // a rider
	jobtest.AtVersion(t, addr, v+30, errs)
	jobtest.Stopped(t, cmd, addr, dir, out, errs)
}

// A member that is stopped is given up after --dead-after, and one that continues later does not disturb.
func TestRingLosesASilentMember(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := ringJob(t, "--workers", "3", "--slow", "none", "--dead-after", "1s")
	jobtest.AtVersion(t, addr, 20, errs)
	jobtest.KillWorker(t, cmd, 1, syscall.SIGSTOP)
	v := jobtest.AtVersion(t, addr, 20, errs).Version
	v = jobtest.AtVersion(t, addr, v+20, errs).Version
	jobtest.KillWorker(t, cmd, 1, syscall.SIGCONT)
	jobtest.AtVersion(t, addr, v+20, errs)
	jobtest.Stopped(t, cmd, addr, dir, out, errs)
}

// A member that is stopped in a round is late, and no other is: they have said that they wait. A plan without it is in
// force at once, and when it continues it rides.
func TestRingLeavesALateMember(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := ringJob(t, "--workers", "4", "--slow", "none", "--mode", "auto", "--dead-after", "2m")
	jobtest.AtVersion(t, addr, 40, errs)
	jobtest.Ctl(t, addr, "mode", "ssgd")
	jobtest.AtVersion(t, addr, 80, errs)
	lates := func() []struct{ Worker int } { return jobtest.RunLog[struct{ Worker int }](t, dir, "late") }
	late := map[int]int{}
	stop := func() bool {
		before, end := len(lates()), time.Now().Add(20*time.Second)
		jobtest.KillWorker(t, cmd, 3, syscall.SIGSTOP)
		for clear(late); late[3] < 3; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
			clear(late)
			for _, l := range lates()[before:] {
				late[l.Worker]++
			}
		}
		return true
	}
	if !stop() { // it had said that it waits
		t.Logf("worker 3 is stopped; late were, by worker, %v", late)
		jobtest.KillWorker(t, cmd, 3, syscall.SIGCONT)
		jobtest.AtVersion(t, addr, jobtest.AtVersion(t, addr, 80, errs).Version+5, errs)
		if !stop() {
			t.Fatalf("worker 3 is stopped again; late were, by worker, %v\n%s", late, errs)
		}
	}
	v := jobtest.AtVersion(t, addr, 80, errs).Version
	jobtest.Ctl(t, addr, "mode", "ring-minus=3")
	v = jobtest.AtVersion(t, addr, v+20, errs).Version
	jobtest.KillWorker(t, cmd, 3, syscall.SIGCONT)
	type fire struct {
		Version int64
		Workers []int
	}
	carried := func(f fire) bool { return f.Version > v && slices.Contains(f.Workers, 3) }
	for end := time.Now().Add(30 * time.Second); !slices.ContainsFunc(jobtest.RunLog[fire](t, dir, "fire"), carried); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("worker 3 continues, and is in no update\n%s", errs)
		}
	}
	jobtest.Stopped(t, cmd, addr, dir, out, errs)
	if late[0]+late[1]+late[2] >= late[3] {
		t.Errorf("late, by worker: %v; only worker 3 was stopped", late)
	}
}

// With --on-failure stop the job ends when a worker is gone.
func TestRingStops(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, _, _, errs := ringJob(t, "--model", "mlp", "--workers", "3", "--epochs", "1000", "--slow", "none", "--on-failure", "stop")
	jobtest.AtVersion(t, addr, 10, errs)
	jobtest.KillWorker(t, cmd, 1, syscall.SIGKILL)
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 69 || !strings.Contains(errs.String(), "worker 1 is gone (--on-failure stop)") {
		t.Errorf("exit code %d, want 69 with the reason\n%s", got, errs)
	}
}

// Processes of their own, as on several hosts: star ps without shards coordinates, a
// worker with another update rule is refused, one without --arch too, and TLS protects the
// ring and its riders.
func TestRingOfSeparateProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	common := append([]string{"--batch", "8", "--model", "mlp", "--dataset", "digits:n=400,test=100", "--out", dir, "--log-format", "text"}, jobtest.Certificates(t)...)
	ps, addr, errs := jobtest.StartServer(t, append(common, "--shards", "0", "--workers", "3", "--steps", "40", "--mode", "ring-minus=2")...)
	jobtest.WaitFor(t, addr)
	worker := func(args ...string) (*exec.Cmd, *jobtest.Output) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, jobtest.Star(t), append(append([]string{"worker", "--coordinator", addr}, common...), args...)...)
		said := new(jobtest.Output)
		cmd.Stderr = said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, said
	}
	for _, c := range []struct{ args, says string }{
		{"--arch allreduce --lr 0.5", "lr=0.5"},
		{"--arch allreduce --compress int8", "compress=int8"},
		{"--arch ps", "the job's architecture is allreduce, the worker's ps"},
	} {
		cmd, said := worker(strings.Fields(c.args)...)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 78 || !strings.Contains(said.String(), c.says) {
			t.Errorf("star worker %s: exit code %d, want 78 and %q\n%s", c.args, got, c.says, said)
		}
	}
	for rank := range 3 {
		cmd, said := worker("--arch", "allreduce", "--rank", strconv.Itoa(rank))
		defer func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("worker %d: %v\n%s", rank, err, said)
			}
			if rank < 2 && !strings.Contains(said.String(), "stream:1") {
				t.Errorf("worker %d does not say that its link is a stream:\n%s", rank, said)
			}
		}()
	}
	if err := ps.Wait(); err != nil {
		t.Fatalf("star ps: %v\n%s", err, errs)
	}
}
