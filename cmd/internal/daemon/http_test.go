package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"star/internal/settings"
)

func TestHTTPOnASocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "star") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "ear")
	job := new(settings.Job)
	cmd := &cobra.Command{}
	job.Bind(cmd, settings.ForWorker)
	if err := cmd.ParseFlags([]string{"--http", "unix:" + path}); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Load(nil); err != nil {
		t.Fatal(err)
	}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := serveHTTP(job, new(board), "", log); err == nil || !strings.Contains(err.Error(), "another process answers there") {
		t.Errorf("beside another process: %v", err)
	}
	left.SetUnlinkOnClose(false)
	left.Close() // as a process leaves it that is killed
	stop, err := serveHTTP(job, new(board), "", log)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may ask", info.Mode(), err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for at, want := range map[string]string{"/metrics": "\ngo_goroutines ", "/debug/star": " goroutines; waits, the longest first", "/debug/star?json": "[]"} {
		r, err := client.Get("http://process" + at)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %s: %.200s", at, err, r.Status, text)
		}
	}
}

// A web site with a name that is bound to an address of this host can read nothing, and start no profile. A warning is
// logged for an address that other hosts reach.
func TestHTTPAnswersItsHostsOnly(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		free, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		free.Close()
		job := new(settings.Job)
		cmd := &cobra.Command{}
		job.Bind(cmd, settings.ForWorker)
		if err := cmd.ParseFlags([]string{"--http", free.Addr().String()}); err != nil {
			t.Fatal(err)
		}
		if _, err := job.Load(nil); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		stop, err := serveHTTP(job, new(board), t.TempDir(), slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if warned := strings.Contains(said.String(), "every host"); warned != (host == "0.0.0.0") {
			t.Errorf("--http %s: said %q", free.Addr(), said.String())
		}
		_, port, _ := net.SplitHostPort(free.Addr().String())
		for _, path := range []string{"/", "/view.json", "/run.jsonl", "/metrics", "/debug/star", "/debug/pprof/heap"} {
			for host, want := range map[string]bool{"evil.example": false, "localhost:" + port: true} {
				r, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:"+port+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = host
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if answered := resp.StatusCode != http.StatusMisdirectedRequest; answered != want {
					t.Errorf("--http %s, Host %s, %s: %s", free.Addr(), host, path, resp.Status)
				}
			}
		}
	}
}

func TestFilesAreNotReplacedBySockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := listen("unix:" + path); err == nil {
		l.Close()
		t.Error("it listens there")
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file holds %q", b)
	}
}
