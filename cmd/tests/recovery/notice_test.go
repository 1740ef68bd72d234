package recovery

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A worker on a machine that will be taken away says good-bye, and the job goes on without it, with every sample used
// once.
func TestNotice(t *testing.T) {
	t.Parallel()
	g := jobtest.Start(t, 1, 2, "--max-workers", "3", "--mode", "ssgd", "--steps", "100000000", "--eval-every", "0")
	g.Training()
	notice := filepath.Join(t.TempDir(), "notice")
	g.Worker(2, append(g.Common, "--notice", notice))
	g.Until("the third worker has joined", func() bool { return strings.Contains(g.Said("w2"), `"joined"`) })
	if err := os.WriteFile(notice, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	g.Ends("w2", 143, "will be taken away")
	g.Version(g.Version(1) + 10)
	jobtest.Ctl(t, g.Addr, "stop")
	for _, name := range []string{"ps0", "w0", "w1"} {
		g.Ends(name, 0)
	}
	jobtest.EverySampleOnce(t, g.Out, int64(g.Lines("summary")[0]["samples"].(float64)))
	if !strings.Contains(g.Said("ps0"), "member was told to end") {
		t.Errorf("the worker is lost, and has not left:\n%s", g.Said("ps0"))
	}
}
