package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
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
}

// grown is a process that was there for long enough to be judged: what it held in the second quarter of its life, and in the last.
type grown struct {
	Name        string   `json:"name"`
	Age         float64  `json:"age_s"`
	Memory      [2]int64 `json:"memory_bytes"`
	Descriptors [2]int64 `json:"descriptors"`
}

const (
	growthEvery = 500 * time.Millisecond
	growthLeast = 40 // looks
)

// watchGrowth begins to watch the processes of r.
func (r *launch) watchGrowth() *growth {
	g := &growth{stop: make(chan struct{}), seen: map[string]*held{}}
	g.done.Go(func() {
		tick := time.NewTicker(growthEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-g.stop:
				return
			}
			r.live.Range(func(name, c any) bool {
				if p := c.(*child).cmd.Process; p != nil {
					g.look(name.(string), p.Pid)
				}
				return true
			})
		}
	})
	return g
}

// look notes what a process holds now. One that has ended holds nothing and is not noted.
func (g *growth) look(name string, pid int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := bytes.Fields(text)
	if err != nil || len(fields) < 2 {
		return
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	open, e := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil || e != nil || pages == 0 {
		return
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
}

// end stops watching, and says what processes held that were there for long enough.
func (g *growth) end() (out []grown) {
	close(g.stop)
	g.done.Wait()
	for _, h := range g.seen {
		if n := len(h.memory); n >= growthLeast {
			out = append(out, grown{h.name, (time.Duration(n) * growthEvery).Seconds(), quarters(h.memory), quarters(h.descriptors)})
		}
	}
	slices.SortFunc(out, func(a, b grown) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return out
}

// quarters are the medians of the second and of the last quarter: the first is for coming up.
func quarters(xs []int64) [2]int64 {
	n := len(xs)
	median := func(xs []int64) int64 {
		xs = slices.Sorted(slices.Values(xs))
		return xs[len(xs)/2]
	}
	return [2]int64{median(xs[n/4 : n/2]), median(xs[3*n/4:])}
}
