package launch

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Each process of a worker has its rank and the address of process 0; lines of others than process 0 have the rank.
// The exit code is that of the first process that failed; processes that end on signals do not hide it.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		script string
		n      int
		code   int
		want   []string
	}{
		{`echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR; printf "no end"`, 2, 0, []string{"0 0 2 127.0.0.1", "[1] 1 1 2 127.0.0.1", "[1] no end", "no end"}},
		{`test $RANK = 0 || exit 7`, 3, 7, nil},
		{`test $RANK = 0 || kill -9 $$`, 2, 137, nil},
	} {
		var out, errs bytes.Buffer
		code, err := Processes{Command: []string{"sh", "-c", c.script}, N: c.n, Stdout: &out, Stderr: &errs}.Run()
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		slices.Sort(lines)
		if err != nil || code != c.code || c.want != nil && !slices.Equal(lines, c.want) {
			t.Errorf("%s: %d, %v, %q", c.script, code, err, lines)
		}
		if c.code == 137 && errs.String() != "process 1 of the 2 of this worker was ended by a signal: killed\n" {
			t.Errorf("it says %q", errs.String())
		}
	}
	if _, err := (Processes{Command: []string{"/nowhere"}, N: 2}).Run(); err == nil || !strings.Contains(err.Error(), "cannot start process 0 of this worker") {
		t.Errorf("%v", err)
	}
}
