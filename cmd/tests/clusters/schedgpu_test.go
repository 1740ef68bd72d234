package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// Each worker sees a GPU of its host that no other has, also those of other jobs, and one that is free again is given
// away again.
func TestSchedGPUs(t *testing.T) {
	t.Parallel()
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=4,6")
	hosts, seen := filepath.Join(t.TempDir(), "hosts.yaml"), t.TempDir()
	text := "hosts:\n  - {name: near, cpu: 8, gpus: 2}\n  - {name: far, cpu: 8, gpus: [{size: 1, device: GPU-7}], launch: [env, FAR=1]}\n"
	if err := os.WriteFile(hosts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start("--hosts", hosts, "--policy", "fifo")
	s.Until("the service answers", func(service.Status) bool { return true })
	command := fmt.Sprintf("command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER > %s/$STAR_JOB-$STAR_RANK; exec %s worker']\nworkers: ", seen, jobtest.Star(t))
	sees := func(worker string) string {
		text, err := os.ReadFile(filepath.Join(seen, worker))
		if err != nil {
			t.Fatal(err)
		}
		device, ok := strings.CutSuffix(strings.TrimSpace(string(text)), " PCI_BUS_ID")
		if !ok {
			t.Errorf("%s sees %q", worker, text)
		}
		return device
	}
	s.Submit("two", 4_000_000, 2, command+"2\n")
	s.Submit("one", 4_000_000, 1, command+"1\n")
	s.Trains("two", 2)
	s.Trains("one", 1)
	all := map[string]bool{sees("two-0"): true, sees("two-1"): true, sees("one-0"): true}
	if fmt.Sprint(all) != "map[4:true 6:true GPU-7:true]" {
		t.Errorf("they see %v", all)
	}
	s.Ask("is cancelled already", "cancel", "one")
	s.Until("one has ended", func(st service.Status) bool {
		j := jobtest.JobOf(st, "one")
		return j.State == live.Cancelled && j.Workers == 0
	})
	s.Submit("next", 4_000_000, 1, command+"1\n")
	s.Trains("next", 1)
	if was, is := sees("one-0"), sees("next-0"); was != is {
		t.Errorf("the next worker sees %s, and %s is free", is, was)
	}
	for _, name := range []string{"two", "next"} {
		s.Ask("is cancelled already", "cancel", name)
	}
}
