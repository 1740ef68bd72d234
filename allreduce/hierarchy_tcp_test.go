package allreduce_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"star/allreduce"
)

// sums checks sums of several sizes, that all ranks have the same bits, and a mean.
func sums(g *allreduce.Group) error {
	n := g.Size()
	for _, count := range []int{1, 5, 1000, 300_001} {
		v := make([]float32, count)
		for i := range v {
			v[i] = float32(i%1000 + g.Rank())
		}
		if err := g.AllReduce(context.Background(), allreduce.Sum, v); err != nil {
			return err
		}
		for i, x := range v {
			if want := float32(n*(i%1000) + n*(n-1)/2); x != want {
				return fmt.Errorf("rank %d: element %d of %d is %v, want %v", g.Rank(), i, count, x, want)
			}
		}
	}
	v := make([]float64, 777)
	for i := range v {
		v[i] = float64(n * (g.Rank() + i))
	}
	if err := allreduce.AllReduce(context.Background(), g, allreduce.Mean, v); err != nil {
		return err
	}
	for i, x := range v {
		if want := float64(n*(n-1)/2 + n*i); x-want > 1e-6 || want-x > 1e-6 {
			return fmt.Errorf("rank %d: mean %d is %v, want %v", g.Rank(), i, x, want)
		}
	}
	return nil
}

// Ranks that say that they are on three hosts use shared memory inside each and TCP between them, and the
// hierarchy without being told.
func TestForcedHosts(t *testing.T) {
	names := []string{"a", "a", "b", "a", "c", "c"} // 3+1+2
	for _, a := range []allreduce.Algorithm{allreduce.AlgorithmAuto, allreduce.AlgorithmHierarchy, allreduce.AlgorithmHierarchyDoubling, allreduce.AlgorithmRing} {
		groups := form(t, len(names), func(c *allreduce.Config) { c.HostID, c.Algorithm = names[c.Rank], a })
		if got := groups[4].Hosts(); !slices.Equal(got, []int{3, 1, 2}) {
			t.Errorf("hosts %v, want 3, 1 and 2 ranks", got)
		}
		if got := groups[0].Transports(); got["tcp"] != 3 || got["shm"] != 2 {
			t.Errorf("rank 0 has links %v, want 3 tcp and 2 shm", got)
		}
		if a == allreduce.AlgorithmAuto {
			if got := groups[0].Algorithm(64 << 20); got != allreduce.AlgorithmHierarchy {
				t.Errorf("64 MiB between three hosts go by %v", got)
			}
		}
		if err := firstOf(all(groups, sums)); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
}

// placedJob is the job of ranks that form a group, sum, and say where they found themselves.
const placedJob = "placed"

type placedReport struct {
	Hosts     []int
	Links     map[string]int
	Algorithm string
	Failed    string
}

func placedChild(cfg allreduce.Config) {
	cfg.Log = slog.New(slog.DiscardHandler)
	var r placedReport
	g, err := allreduce.Dial(context.Background(), cfg)
	if err == nil {
		r = placedReport{Hosts: g.Hosts(), Links: g.Transports(), Algorithm: g.Algorithm(64 << 20).String()}
		err = sums(g)
		g.Close()
	}
	if err != nil {
		r.Failed = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(r)
}

// Two network namespaces are two hosts to us, with a real interface between them.
func TestNamespacesAreHosts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip command: ", err)
	}
	ns := []string{fmt.Sprintf("star-%d-a", os.Getpid()), fmt.Sprintf("star-%d-b", os.Getpid())}
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	for _, n := range ns {
		if err := ip("netns", "add", n); err != nil {
			t.Skip("no network namespaces here: ", err)
		}
		t.Cleanup(func() { _ = ip("netns", "del", n) })
	}
	for _, args := range []string{
		"link add sva netns " + ns[0] + " type veth peer name svb netns " + ns[1],
		"-n " + ns[0] + " addr add 10.99.0.1/24 dev sva", "-n " + ns[1] + " addr add 10.99.0.2/24 dev svb",
		"-n " + ns[0] + " link set sva up", "-n " + ns[1] + " link set svb up", "-n " + ns[0] + " link set lo up", "-n " + ns[1] + " link set lo up",
	} {
		if err := ip(strings.Fields(args)...); err != nil {
			t.Skip("no veth here: ", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	where := []int{0, 0, 1, 0, 1} // 3+2
	reports := make([]placedReport, len(where))
	var wg sync.WaitGroup
	for r, w := range where {
		text, err := json.Marshal(struct {
			Rank, Size      int
			Rendezvous, Job string
			Insecure        bool
			DialTimeout     time.Duration
		}{Rank: r, Size: len(where), Rendezvous: "10.99.0.1:7170", Job: placedJob, Insecure: true, DialTimeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "ip", "netns", "exec", ns[w], exe)
		cmd.Env = append(os.Environ(), childVariable+"="+string(text))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				reports[r].Failed = fmt.Sprintf("%v: %s", err, out.Bytes())
			} else if err := json.Unmarshal(out.Bytes(), &reports[r]); err != nil {
				reports[r].Failed = fmt.Sprintf("%v: %s", err, out.Bytes())
			}
		})
	}
	wg.Wait()
	for r, w := range where {
		want := placedReport{Hosts: []int{3, 2}, Links: map[string]int{"shm": 2, "tcp": 2}, Algorithm: "hierarchy"}
		if w == 1 {
			want.Links = map[string]int{"shm": 1, "tcp": 3}
		}
		if !reflect.DeepEqual(reports[r], want) {
			t.Errorf("rank %d: %+v, want %+v", r, reports[r], want)
		}
	}
}

// Several connections between two ranks carry the same stream, whatever the sizes; a rank that counts them
// differently is refused.
func TestConnections(t *testing.T) {
	for _, n := range []int{2, 3, 16} {
		groups := form(t, 3, func(c *allreduce.Config) { c.Connections, c.Transport = n, "tcp" })
		for range 3 {
			if err := firstOf(all(groups, sums)); err != nil {
				t.Fatalf("%d connections: %v", n, err)
			}
		}
		if got := groups[1].Transports(); got["tcp"] != 2 {
			t.Errorf("links %v, want 2 tcp", got)
		}
	}
	groups := form(t, 2, func(c *allreduce.Config) { c.Connections = 4 })
	if got := groups[0].Transports(); got["tcp"] == 0 && got["shm"]+got["unix"] != 1 {
		t.Errorf("links %v: connections are TCP's", got)
	}
	if err := firstOf(all(groups, sums)); err != nil {
		t.Error(err)
	}
	errs := make([]error, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r := range 2 {
		cfg := allreduce.Config{Rank: r, Size: 2, Rendezvous: l.Addr().String(), Connections: 1 + r, DialTimeout: time.Second, Log: slog.New(slog.DiscardHandler)}
		if r == 0 {
			cfg.Listener = l
		}
		wg.Go(func() {
			g, err := allreduce.Dial(context.Background(), cfg)
			if err == nil {
				g.Close()
			}
			errs[r] = err
		})
	}
	wg.Wait()
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "rank 0 has 1 as number of connections, rank 1 has 2") {
		t.Errorf("2 connections to a rank with 1: %v", errs[1])
	}
}

// A rank that dies is found at the connection that is next in turn.
func TestConnectionsEnd(t *testing.T) {
	groups := form(t, 3, func(c *allreduce.Config) { c.Connections, c.Transport = 3, "tcp" })
	groups[2].Close()
	for r, err := range all(groups[:2], func(g *allreduce.Group) error {
		return g.AllReduce(t.Context(), allreduce.Sum, make([]float32, 1<<20))
	}) {
		var e *allreduce.Error
		if !errors.As(err, &e) || e.Rank != 2 {
			t.Errorf("rank %d: %v, want rank 2 to be named", r, err)
		}
	}
}
