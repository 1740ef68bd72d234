package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The prolog calls star as the node's place in the job wants it, and fails only for an outlier.
func TestProlog(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	for _, c := range []struct {
		name  string
		nodes string // of the job
		node  string // this one
		token bool
		exits string // of star; empty: it does not exist
		want  string // arguments of star after the folders; !: it is not called
		fails bool
	}{
		{"first of three", "a b c", "a", true, "0", "--timeout 9s --listen :30007 --members 3 token", false},
		{"another", "a b c", "c", true, "0", "--timeout 9s --to a:30007 token", false},
		{"the only one", "a", "a", true, "0", "--timeout 9s", false},
		{"no token", "a b", "b", false, "0", "--timeout 9s", false},
		{"an outlier", "a b", "b", true, "1", "--timeout 9s --to a:30007 token", true},
		{"the wrong token", "a b", "b", true, "77", "--timeout 9s --to a:30007 token", false},
		{"no star", "a", "a", false, "", "!", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			write("star.env", "STAR="+dir+"/star SWEEP_DIR=/scratch SWEEP_WAIT=9s PATH="+dir+":$PATH\n")
			write("scontrol", "#!/bin/sh\nfor n in "+c.nodes+"; do echo $n; done\n")
			write("logger", "#!/bin/sh\n")
			if c.exits != "" {
				write("star", "#!/bin/sh\necho \"$@\" ${STAR_TOKEN:+token} ${SLURM_JOB_ID:+slurm} >"+dir+"/called\nexit "+c.exits+"\n")
			}
			if c.token {
				write("star.token", "secret\n")
			}
			cmd := exec.Command(bash, "slurm/prolog.sh")
			cmd.Env = []string{"SLURM_CONF=" + dir + "/slurm.conf", "SLURM_JOB_ID=7", "SLURM_NODELIST=x[1-3]", "SLURMD_NODENAME=" + c.node}
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
			called, err := os.ReadFile(filepath.Join(dir, "called"))
			want := "doctor --sweep --dir /scratch --state /var/lib/star " + c.want
			if c.want == "!" {
				want = ""
			}
			if got := strings.TrimSpace(string(called)); got != want {
				t.Errorf("star got %q, want %q (%v)", got, want, err)
			}
		})
	}
}
