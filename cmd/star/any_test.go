package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// With several processes that may coordinate and copies of every shard, whoever coordinates is killed, and then a server: the job goes on, and its
// parameters are those of a job to which nothing happened, to the bit.
func TestCoordinatorAndServerAreKilled(t *testing.T) {
	t.Parallel()
	common := []string{"--mode", "ssgd", "--steps", "400", "--optimizer", "adam", "--eval-every", "0"}
	calm := group(t, 3, 2, common...)
	var addrs []string
	for range 3 {
		addrs = append(addrs, freeAddr(t))
	}
	g := &gang{t: t, addr: addrs[0], out: t.TempDir(), all: map[string]*joined{}}
	args := append([]string{"--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--join-timeout", "30s",
		"--coordinators", strings.Join(addrs, ","), "--replicas", "2", "--slow", "0:+5ms"}, common...)
	for i := range 6 {
		listen, shards := "127.0.0.1:0", "1"
		if i < len(addrs) {
			listen, shards = addrs[i], "0"
		}
		g.start(fmt.Sprintf("ps%d", i), append([]string{"ps", "--rank", fmt.Sprint(i), "--servers", "6", "--shards", shards, "--listen", listen,
			"--http", "off", "--out", g.out, "--lr", "0.001", "--json"}, args...)...)
	}
	for i := range 2 {
		g.worker(i, args)
	}
	g.training()
	kill := func(name string) {
		g.signal(name, syscall.SIGKILL)
		<-g.all[name].done
		delete(g.all, name)
	}
	first := g.said("ps0")
	g.version(20)
	kill("ps0")
	took := func() (name string) {
		for _, n := range []string{"ps1", "ps2"} {
			if strings.Contains(g.said(n), `"takes_over":true`) {
				name = n
			}
		}
		return name
	}
	for end := time.Now().Add(60 * time.Second); took() == "" || !strings.Contains(g.said(took()), `"msg":"training"`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody goes on\n%s\n%s\n%s", first, g.said("ps1"), g.said("ps2"))
		}
	}
	kill("ps4")
	for name := range g.all {
		g.ends(name, 0)
	}
	if !strings.Contains(g.said(took()), `"event":"promoted"`) {
		t.Errorf("nobody took the place of the server that was killed\n%s", g.said(took()))
	}
	calm.result()
	for shard := range 3 {
		var texts [][]byte
		for _, dir := range []string{calm.out, g.out} {
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
