package recovery

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// With several processes that may coordinate and copies of every shard, the coordinator is killed, and then a server:
// the job goes on, and its parameters are those of a job to which nothing happened, to the bit.
func TestCoordinatorAndServerAreKilled(t *testing.T) {
	t.Parallel()
	common := []string{"--mode", "ssgd", "--steps", "400", "--optimizer", "adam", "--eval-every", "0"}
	calm := jobtest.Start(t, 3, 2, common...)
	var addrs []string
	for range 3 {
		addrs = append(addrs, jobtest.FreeAddr(t))
	}
	g := &jobtest.Job{T: t, Addr: addrs[0], Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	args := append([]string{"--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--join-timeout", "3m",
		"--coordinators", strings.Join(addrs, ","), "--replicas", "2", "--slow", "0:+5ms"}, common...)
	for i := range 6 {
		listen, shards := "127.0.0.1:0", "1"
		if i < len(addrs) {
			listen, shards = addrs[i], "0"
		}
		g.Start(fmt.Sprintf("ps%d", i), append([]string{"ps", "--rank", fmt.Sprint(i), "--servers", "6", "--shards", shards, "--listen", listen,
			"--http", "off", "--out", g.Out, "--lr", "0.001", "--json"}, args...)...)
	}
	for i := range 2 {
		g.Worker(i, args)
	}
	g.Training()
	kill := func(name string) {
		g.Signal(name, syscall.SIGKILL)
		<-g.All[name].Done
		delete(g.All, name)
	}
	first := g.Said("ps0")
	g.Version(20)
	kill("ps0")
	took := func() (name string) {
		for _, n := range []string{"ps1", "ps2"} {
			if strings.Contains(g.Said(n), `"takes_over":true`) {
				name = n
			}
		}
		return name
	}
	for end := time.Now().Add(60 * time.Second); took() == "" || !strings.Contains(g.Said(took()), `"msg":"training started"`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no server goes on\n%s\n%s\n%s", first, g.Said("ps1"), g.Said("ps2"))
		}
	}
	kill("ps4")
	for name := range g.All {
		g.Ends(name, 0)
	}
	if !strings.Contains(g.Said(took()), `"event":"promoted"`) {
		t.Errorf("no server took the place of the one that was killed\n%s", g.Said(took()))
	}
	calm.Result()
	for shard := range 3 {
		var texts [][]byte
		for _, dir := range []string{calm.Out, g.Out} {
			names, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*400-g1", fmt.Sprintf("shard-%05d.safetensors", shard)))
			if len(names) != 1 {
				t.Fatalf("%d files of shard %d and version 400 in %s", len(names), shard, dir)
			}
			b, err := os.ReadFile(names[0])
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, b)
		}
		if !bytes.Equal(texts[0], texts[1]) {
			t.Errorf("shard %d is another one after a coordinator and a server were killed", shard)
		}
	}
}
