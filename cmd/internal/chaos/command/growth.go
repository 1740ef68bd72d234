package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"star/cmd/internal/chaos"
	"star/internal/settings"
)

// growth samples the resources of a job's processes while it runs (on Linux only).
type growth struct {
	stop chan struct{}
	done sync.WaitGroup
	mu   sync.Mutex
	seen map[string]*held // by name and process
}

// held are the samples of a process.
type held struct {
	name        string
	memory      []int64 // resident bytes
	descriptors []int64
	goroutines  []int64 // as the process reported, at each request; 0: no answer
}

// grown is a process that ran long enough to be judged: its resources in the first quarter after its start, and in the
// last.
type grown struct {
	Name        string   `json:"name"`
	Age         float64  `json:"age_s"`
	Memory      [2]int64 `json:"memory_bytes"`
	Descriptors [2]int64 `json:"descriptors"`
	Goroutines  [2]int64 `json:"goroutines"`
}

const (
	growthEvery = 500 * time.Millisecond
	growthLeast = 40  // samples
	growthUp    = 120 // samples that count as the start, at most
	growthAsk   = 4   // samples between two requests to the process
	growthWait  = time.Second
)

// watchGrowth starts to watch the processes of r.
func (r *breaker) watchGrowth() *growth {
	g := &growth{stop: make(chan struct{}), seen: map[string]*held{}}
	g.done.Go(func() {
		tick := time.NewTicker(growthEvery)
		defer tick.Stop()
		for looks := 0; ; looks++ {
			select {
			case <-tick.C:
			case <-g.stop:
				return
			}
			var asked sync.WaitGroup
			r.Each(func(name string, pid int, http string) {
				if h := g.look(name, pid); h != nil && looks%growthAsk == 0 {
					asked.Go(func() { g.ask(h, http) })
				}
			})
			asked.Wait()
		}
	})
	return g
}

// look samples the resources of a process. A process that has ended is skipped.
func (g *growth) look(name string, pid int) *held {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := bytes.Fields(text)
	if err != nil || len(fields) < 2 {
		return nil
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	open, e := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil || e != nil || pages == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := fmt.Sprint(name, " ", pid)
	h := g.seen[key]
	if h == nil {
		h = &held{name: name}
		g.seen[key] = h
	}
	h.memory = append(h.memory, pages*int64(os.Getpagesize()))
	h.descriptors = append(h.descriptors, int64(len(open)))
	return h
}

// ask requests the number of goroutines from a process.
func (g *growth) ask(h *held, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), growthWait)
	defer cancel()
	n, err := goroutines(ctx, addr)
	if err != nil {
		n = 0 // stopped, not ready yet, or gone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h.goroutines = append(h.goroutines, n)
}

// goroutines is the number of goroutines that the process reports at /metrics of an address of --http.
func goroutines(ctx context.Context, addr string) (int64, error) {
	network, at, url := "tcp", addr, "http://"+addr
	if path, ok := strings.CutPrefix(addr, settings.UnixSocket); ok {
		network, at, url = "unix", path, "http://process"
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}}
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	r, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(r.Body, 1<<20))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			n, err := strconv.ParseFloat(text, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("%s: no go_goroutines in /metrics", addr)
}

// end stops watching, and returns the processes that ran long enough.
func (g *growth) end() (out []grown) {
	close(g.stop)
	g.done.Wait()
	for _, h := range g.seen {
		if n := len(h.memory); n >= growthLeast {
			said := slices.DeleteFunc(h.goroutines, func(n int64) bool { return n == 0 })
			p := grown{h.name, (time.Duration(n) * growthEvery).Seconds(), chaos.Quarters(h.memory, growthUp), chaos.Quarters(h.descriptors, growthUp), [2]int64{}}
			if len(said) >= growthLeast/growthAsk/2 {
				p.Goroutines = chaos.Quarters(said, growthUp/growthAsk)
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b grown) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// flat checks that no process has grown, in a job with that number of workers.
func flat(ps []grown, workers int) chaos.Invariant {
	var held []chaos.Holding
	for _, p := range ps {
		held = append(held, chaos.Holding{Name: p.Name, Age: time.Duration(p.Age * float64(time.Second)), Memory: p.Memory, Descriptors: p.Descriptors, Goroutines: p.Goroutines})
	}
	return chaos.Flat(held, workers)
}
