package network

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// A host with its own name as 127.0.1.1 in its /etc/hosts, as Debian's installer writes it, coordinates a ring, and two
// members are on it. The third, on another host, reaches them, or gets an error at once that names the missing flag.
func TestRingBesideItsCoordinatorOnDebian(t *testing.T) {
	a, b := hosts(t)
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("needs unshare (Debian: util-linux)")
	}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("127.0.0.1 localhost\n127.0.1.1 node-a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a = append(a, "unshare", "-m", "-u", "sh", "-c", "mount --bind "+file+" /etc/hosts && hostname node-a && exec \"$@\"", "sh")
	if out, err := exec.Command(a[0], append(a[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no mount namespaces here: %v: %s", err, out)
	}
	for _, c := range []struct {
		name    string
		beside  []string // of the two workers on the coordinator's host
		refused string   // the error of the third one
	}{
		{"by name", []string{"--coordinator", "node-a:7070"}, ""},
		{"by name, and --listen", []string{"--coordinator", "node-a:7070", "--listen", ":0"}, ""},
		{"by loopback, and --listen", []string{"--coordinator", "127.0.0.1:7070", "--listen", ":0"}, ""},
		{"by loopback, and --advertise", []string{"--coordinator", "127.0.0.1:7070", "--advertise", "10.79.0.1:1"}, ""},
		{"by loopback", []string{"--coordinator", "127.0.0.1:7070"}, "start it with --advertise HOST:PORT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := []string{"--arch", "allreduce", "--http", "off", "--join-timeout", "1m", "--log-format", "text", "--dataset", "digits:n=400,test=50", "--model", "softmax"}
			var running sync.WaitGroup
			var mu sync.Mutex
			var failed []string
			start := func(on []string, args ...string) (cmd *exec.Cmd, ended chan string) {
				cmd = exec.Command(on[0], append(append(append(on[1:len(on):len(on)], jobtest.Star(t)), args...), job...)...)
				cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
				var said jobtest.Output
				cmd.Stdout, cmd.Stderr = &said, &said
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended = make(chan string, 1)
				running.Go(func() {
					timer := time.AfterFunc(90*time.Second, func() { cmd.Process.Kill() })
					defer timer.Stop()
					err := cmd.Wait()
					if err != nil {
						mu.Lock()
						failed = append(failed, strings.Join(args, " ")+": "+err.Error()+"\n"+said.String())
						mu.Unlock()
					}
					ended <- said.String()
				})
				return cmd, ended
			}
			ps, _ := start(a, "ps", "--workers", "3", "--steps", "20", "--out", t.TempDir())
			zero, _ := start(a, append([]string{"worker", "--rank", "0"}, c.beside...)...)
			one, _ := start(a, append([]string{"worker", "--rank", "1"}, c.beside...)...)
			if c.refused != "" {
				time.Sleep(2 * time.Second) // they are there first; if not, one of them is refused
			}
			_, ended := start(b, "worker", "--rank", "2", "--coordinator", "10.79.0.1:7070")
			if c.refused != "" {
				if said := <-ended; !strings.Contains(said, c.refused) {
					t.Errorf("the worker on the other host said %s", said)
				}
				for _, cmd := range []*exec.Cmd{ps, zero, one} {
					cmd.Process.Kill()
				}
				running.Wait()
				return
			}
			running.Wait()
			for _, why := range failed {
				t.Error(why)
			}
		})
	}
}
