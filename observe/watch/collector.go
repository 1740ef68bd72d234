package watch

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"star"
	"star/cluster/resource/host"
)

//go:embed hook/*.py
var hook embed.FS

// Variables of the watched program's environment.
const (
	SocketVariable = "STAR_WATCH_SOCKET"
	pathVariable   = "PYTHONPATH"
)

// Collector takes the rows of this host's ranks.
type Collector struct {
	dir    string // with the socket and the hook
	l      net.Listener
	host   string
	also   func(*star.Telemetry) // what else is known of the host, such as a GPU's state
	take   func(Row)
	refuse func(error)

	closed context.Context
	close  context.CancelFunc
	begun  sync.Once
	stood  chan struct{} // closed when no file of calls is read any more

	mu        sync.Mutex
	processes map[int]*sender
	standing  map[int]*standing // processes with a file of calls
}

// sender is a process that sends rows.
type sender struct {
	sampler *host.Sampler
	zero    time.Time // of its clock: the earliest time that its rows allow, as some are late
}

// drain is how long rows that were sent may take to be read when a collector is closed.
const drain = 100 * time.Millisecond

// Listen creates a folder with the hook, and a socket in it. take is called with each row, by
// several goroutines, and must not block; refuse with the error of an invalid row.
func Listen(hostname string, also func(*star.Telemetry), take func(Row), refuse func(error)) (*Collector, error) {
	dir, err := os.MkdirTemp("", "star-watch-")
	if err != nil {
		return nil, err
	}
	c := &Collector{dir: dir, host: hostname, also: also, take: take, refuse: refuse, processes: map[int]*sender{}, standing: map[int]*standing{}, stood: make(chan struct{})}
	c.closed, c.close = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

func (c *Collector) open() error {
	files, err := fs.Sub(hook, "hook")
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(c.dir, "hook"), files); err != nil {
		return err
	}
	path := c.socket()
	if len(path) > 100 {
		return fmt.Errorf("%s is too long for a socket: set TMPDIR to a shorter folder", path)
	}
	c.l, err = net.Listen("unix", path)
	return err
}

func (c *Collector) socket() string { return filepath.Join(c.dir, "rows") }

// Hook is the folder of the module star_watch, and the value of [SocketVariable] for it.
func (c *Collector) Hook() (folder, socket string) { return filepath.Join(c.dir, "hook"), c.socket() }

// Env is an environment in which Python programs are measured.
func (c *Collector) Env(env []string) []string {
	path := filepath.Join(c.dir, "hook")
	out := make([]string, 0, len(env)+2)
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case pathVariable:
			if value != "" {
				path += string(os.PathListSeparator) + value
			}
		case SocketVariable:
		default:
			out = append(out, kv)
		}
	}
	return append(out, pathVariable+"="+path, SocketVariable+"="+c.socket())
}

// Run takes rows until ctx is over or the collector is closed, and those that are there then.
func (c *Collector) Run(ctx context.Context) {
	var ranks sync.WaitGroup
	defer ranks.Wait()
	defer context.AfterFunc(ctx, func() { c.l.Close() })()
	c.begun.Do(func() {
		ranks.Go(func() {
			defer close(c.stood)
			c.stand(ctx)
		})
	})
	for {
		conn, err := c.l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				c.refuse(err)
			}
			return
		}
		ranks.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(c.closed, func() { conn.SetReadDeadline(time.Now().Add(drain)) })()
			in := bufio.NewReaderSize(conn, MaxRow)
			for {
				line, err := in.ReadSlice('\n')
				if err != nil {
					if errors.Is(err, bufio.ErrBufferFull) {
						c.refuse(fmt.Errorf("invalid row: more than %d bytes", MaxRow))
					}
					return
				}
				r, err := ParseRow(line)
				if err != nil {
					c.refuse(fmt.Errorf("invalid row: %w", err))
					continue
				}
				switch r.Kind {
				case "stack":
					c.answers(r)
				case "state":
					c.refuse(errors.New("invalid row: a state is the collector's"))
				default:
					c.fill(&r)
					c.take(r)
				}
			}
		})
	}
}

// fill adds the host's values for the row's process.
func (c *Collector) fill(r *Row) {
	r.Host, r.Telemetry = c.host, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[r.PID]
	switch {
	case r.Kind == "note":
		return
	case p == nil && len(c.processes) < MaxWorld:
		p = &sender{sampler: host.Start(host.Config{PID: r.PID, Also: c.also})}
		c.processes[r.PID] = p
	case p == nil:
		return
	}
	if r.Kind != "step" {
		return
	}
	t := *p.sampler.Latest()
	t.Set(star.Stalled, p.stops(r, time.Now()))
	for m := range star.NumMetrics {
		if v, ok := t.Get(m); ok {
			if r.Telemetry == nil {
				r.Telemetry = map[string]float64{}
			}
			r.Telemetry[m.String()] = v
		}
	}
}

// stops takes off the exchange of a row's step what the process was stopped by a signal meanwhile: it did not wait
// then, the others did. It returns which part of the step the process was stopped.
func (p *sender) stops(r *Row, came time.Time) float64 {
	if zero := came.Add(-seconds(r.At)); p.zero.IsZero() || zero.Before(p.zero) {
		p.zero = zero
	}
	end, from := p.zero.Add(seconds(r.At)), p.zero.Add(seconds(r.From))
	begin, to := end.Add(-seconds(r.Took)), from.Add(seconds(r.Wait))
	r.At, r.From = 0, 0
	stopped, exchange := time.Duration(0), time.Duration(0)
	for _, s := range p.sampler.Stops() {
		stopped += within(s, begin, end)
		exchange += within(s, from, to)
	}
	r.Wait = max(r.Wait-exchange.Seconds(), 0)
	return min(stopped.Seconds()/r.Took, 1)
}

// within is how much of a span lies between two times.
func within(s host.Span, from, to time.Time) time.Duration {
	if s.From.After(from) {
		from = s.From
	}
	if s.To.Before(to) {
		to = s.To
	}
	return max(to.Sub(from), 0)
}

// Close ends it and removes its folder; Run returns when it has taken what ranks have sent. Programs that run on
// are not measured any more.
func (c *Collector) Close() {
	c.l.Close()
	c.close()
	c.begun.Do(func() { close(c.stood) }) // it never ran
	<-c.stood                             // the last calls are read before the files go
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		p.sampler.Close()
	}
	clear(c.processes)
	os.RemoveAll(c.dir)
}
