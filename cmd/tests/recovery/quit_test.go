package recovery

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
)

// SIGQUIT has processes say what they wait for, on one page, and go on; /debug/star says the same. A second one ends
// the process with every goroutine.
func TestQuit(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "http") // a port that is free now may be taken by a connection of another test
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	g := jobtest.Start(t, 1, 2, "--mode", "ssgd", "--steps", "100000", "--http", "unix:"+socket)
	g.Training()
	g.Signal("w1", syscall.SIGSTOP)
	var page string
	g.Until("/debug/star says that worker 1 is missing", func() bool {
		r, err := client.Get("http://star/debug/star")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		page = string(b)
		return strings.Contains(page, "missing: ") && strings.Contains(page, "worker 1 step ")
	})
	if !strings.Contains(page, "coordinator: waits for the update after version ") || !strings.Contains(page, "waits, the longest first") {
		t.Errorf("/debug/star:\n%s", page)
	}
	g.Signal("w0", syscall.SIGQUIT)
	g.Until("worker 0 says that it waits for the coordinator", func() bool {
		return strings.Contains(g.Said("w0"), "worker 0: waits for the coordinator's next order, until the coordinator is silent for --dead-after")
	})
	g.Signal("w0", syscall.SIGQUIT)
	g.Ends("w0", 2, "goroutine 1 ", "SIGQUIT: quit")
	g.Signal("w1", syscall.SIGCONT)
	g.Signal("ps0", syscall.SIGTERM)
	g.Ends("w1", 143)
}
