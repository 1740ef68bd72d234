package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/chaos"
	"star/cmd/internal/settings"
)

// A calm job makes the updates of a job again, to the same bits; and if the account of them is not what was done, that is found.
func TestCalmJob(t *testing.T) {
	t.Parallel()
	for name, own := range map[string][]string{
		"asgd": {"--mode", "asgd", "--slow", "0:+2ms"},
		"dana": {"--mode", "x=2", "--optimizer", "dana", "--slow", "0:+2ms"},
		"ssgd": {"--mode", "ssgd", "--clip", "0.5", "--optimizer", "adam", "--lr", "0.01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			args := append([]string{"--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--workers", "3", "--shards", "2", "--model", "softmax",
				"--batch", "8", "--steps", "60", "--eval-every", "0", "--out", dir}, own...)
			if out, err := exec.Command(star(t), append([]string{"run", "--progress", "off", "--json"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			job, cmd := new(settings.Job), new(cobra.Command)
			job.Bind(cmd, settings.ForRun)
			if err := cmd.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			if _, err := job.Load(nil); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				what string
				do   func(us []chaos.Update)
				want string // in the detail of an invariant that is broken; empty: it is kept
			}{
				{"nothing", func([]chaos.Update) {}, ""},
				{"another loss", func(us []chaos.Update) { us[20].Members[0].Loss = 0.125 }, "is of other parameters than version"},
				{"other samples", func(us []chaos.Update) { us[20].Members[0].Start += 8 }, "is of other parameters than version"},
				{"no weight", func(us []chaos.Update) { us[20].Members[0].Out = true }, "in a calm job"},
				{"another round", func(us []chaos.Update) { us[20].Live = us[20].Live[:2] }, "in a calm job"},
				{"another plan at the end", func(us []chaos.Update) { us[len(us)-1].Live = us[20].Live[:2] }, "differ in"},
			} {
				lives, err := chaos.ReadAll(runLogs(dir), os.ReadFile)
				if err != nil {
					t.Fatal(err)
				}
				c.do(lives[0].Updates)
				got := (&launch{job: job}).calm(t.Context(), lives, time.Minute)
				if c.want == "" && (!got.OK || !strings.Contains(got.Detail, "the same bits")) || c.want != "" && (got.OK || !strings.Contains(got.Detail, c.want)) {
					t.Errorf("%s: %+v, want %q", c.what, got, c.want)
				}
			}
		})
	}
}
