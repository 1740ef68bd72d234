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

// growth watches what the processes of a job hold while it runs (Linux; elsewhere nothing is seen).
type growth struct {
	stop chan struct{}
	done sync.WaitGroup
	mu   sync.Mutex
	seen map[string]*held // by name and process
}

// held is what a process held, look by look.
type held struct {
	name        string
	memory      []int64 // bytes that are resident
	descriptors []int64
	goroutines  []int64 // as it says itself, each time it was asked; 0: it did not answer
}

// grown is a process that was there for long enough to be judged: what it held once it had come up, in the first quarter of its life, and in the last.
type grown struct {
	Name        string   `json:"name"`
	Age         float64  `json:"age_s"`
	Memory      [2]int64 `json:"memory_bytes"`
	Descriptors [2]int64 `json:"descriptors"`
	Goroutines  [2]int64 `json:"goroutines"`
}

const (
	growthEvery = 500 * time.Millisecond
	growthLeast = 40  // looks
	growthUp    = 120 // looks at most that are of coming up
	growthAsk   = 4   // every so many looks a process is asked itself
	growthWait  = time.Second
)

// watchGrowth begins to watch the processes of r.
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

// look notes what a process holds now. One that has ended holds nothing and is not noted.
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

// ask has a process say how many goroutines it has.
func (g *growth) ask(h *held, addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), growthWait)
	defer cancel()
	n, err := goroutines(ctx, addr)
	if err != nil {
		n = 0 // it is stopped, or not up yet, or gone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h.goroutines = append(h.goroutines, n)
}

// goroutines are those of the process that answers /metrics at an address of --http.
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

// end stops watching, and says what processes held that were there for long enough.
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

// flat says whether none of these has grown, in a job of so many workers.
func flat(ps []grown, workers int) chaos.Invariant {
	var held []chaos.Holding
	for _, p := range ps {
		held = append(held, chaos.Holding{Name: p.Name, Age: time.Duration(p.Age * float64(time.Second)), Memory: p.Memory, Descriptors: p.Descriptors, Goroutines: p.Goroutines})
	}
	return chaos.Flat(held, workers)
}
