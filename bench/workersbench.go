package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"star"
	"star/coord/session"
	"star/internal/defaults"
	"star/ps"
	"star/transport"
	"star/transport/wire"
)

// WorkersConfig says what Workers measures.
type WorkersConfig struct {
	// Programs are star programs: their coordinators are measured, in turns.
	Programs []string

	Workers []int // numbers of simulated workers
	// of the parameters, on one server beside the coordinator
	Shards int
	Params int    // of the model
	Mode   string // as --mode
	// computing time of an iteration; each worker varies it by up to a tenth
	Pace      time.Duration
	Updates   int           // updates of one turn that are measured
	For       time.Duration // instead of Updates: how long to measure
	Turns     int           // of each program
	Telemetry bool          // records hold all metrics
	// how often /metrics of the coordinator is asked; zero: at the end only
	Scrape time.Duration
	// MiB, as --log-max of the coordinator; zero: no bound
	LogMax  int
	Reserve func(host string, taken ...string) (addr string, err error) // an address on which no process listens
	Log     io.Writer                                                   // gets a line for each sample; nil: none
}

// WorkersSample is the state of the coordinator's process at one moment.
type WorkersSample struct {
	At          float64 `json:"at_s"` // since the measurement began
	Updates     int64   `json:"updates"`
	CPU         float64 `json:"cpu_s"` // processor time since the process began
	Memory      uint64  `json:"memory_bytes"`
	Goroutines  int     `json:"goroutines"` // 0: not asked, or no answer
	Descriptors int     `json:"descriptors"`
	LogBytes    int64   `json:"log_bytes"`
}

// WorkersResult is one turn.
type WorkersResult struct {
	Program string  `json:"program"`
	Ranks   int     `json:"ranks"`
	Shards  int     `json:"shards"`
	Mode    string  `json:"mode"`
	Updates int64   `json:"updates"`
	Seconds float64 `json:"wall_s"`

	Join  float64 `json:"join_s"` // until the last worker was welcome; all dial at once
	Dials int64   `json:"dials"`  // of the coordinator: more than workers where some had to come again

	CPU    float64 `json:"cpu_s_per_worker_update"`        // of the coordinator's process
	Server float64 `json:"server_cpu_s_per_worker_update"` // of the server that has the shards

	LogBytes float64 `json:"log_bytes_per_worker_update"`

	Samples []WorkersSample `json:"samples"`
}

// Workers measures what the coordinator of a job takes by the number of workers. The coordinator is a
// process of its own (star ps --shards 0), beside a server that has all shards, and both are the
// real ones. The workers are simulated in this process: they join and push over TCP as real ones
// do, and sleep where real ones compute.
func Workers(ctx context.Context, cfg WorkersConfig) ([]WorkersResult, error) {
	var out []WorkersResult
	for _, n := range cfg.Workers {
		for range max(cfg.Turns, 1) {
			for _, program := range cfg.Programs {
				r, err := crowdJob(ctx, program, n, cfg)
				if err != nil {
					return out, fmt.Errorf("bench: %d workers of %s: %w", n, program, err)
				}
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// child is a process of the job.
type child struct {
	cmd    *exec.Cmd
	proc   *process.Process
	stderr tail
	ended  chan struct{}
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text = append(t.text, b...); len(t.text) > most {
		t.text = t.text[len(t.text)-most:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

func startChild(ctx context.Context, argv ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), ended: make(chan struct{})}
	c.cmd.Stderr = &c.stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // what it said is in stderr
		close(c.ended)
	}()
	var err error
	c.proc, err = process.NewProcess(int32(c.cmd.Process.Pid))
	return c, err
}

// cpu is the processor time that the process has taken, s.
func (c *child) cpu() (float64, error) {
	t, err := c.proc.Times()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, c.stderr.String())
	}
	return t.User + t.System, nil
}

// crowd is the simulated workers of one job.
type crowd struct {
	cfg     WorkersConfig
	n       int
	addr    string
	dials   atomic.Int64
	version atomic.Int64  // newest that a worker was released with
	halt    chan struct{} // closed: the job is to end
	joining sync.WaitGroup
}

// counted counts the dials of the coordinator.
type counted struct {
	*transport.TCP
	dials *atomic.Int64
}

func (c counted) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c.dials.Add(1)
	return c.TCP.Dial(ctx, addr)
}

const crowdBatch = 1 // samples

func crowdJob(ctx context.Context, program string, n int, cfg WorkersConfig) (r WorkersResult, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dir, err := os.MkdirTemp("", "star-bench-workers")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	var addrs []string
	for range 3 {
		a, err := cfg.Reserve("127.0.0.1", addrs...)
		if err != nil {
			return r, err
		}
		addrs = append(addrs, a)
	}
	job := []string{program, "ps", "--job", "bench", "--coordinator", addrs[0], "--workers", strconv.Itoa(n), "--servers", "2", "--steps", "1000000000",
		"--batch", strconv.Itoa(crowdBatch), "--mode", cfg.Mode, "--optimizer", "sgd", "--lr", "1e-6", "--checkpoint-every", "0s", "--log-level", "warn"}
	start := func(more ...string) (*child, error) {
		return startChild(ctx, append(job[:len(job):len(job)], more...)...)
	}
	coordinator, err := start("--rank", "0", "--shards", "0", "--listen", addrs[0], "--http", addrs[1], "--out", filepath.Join(dir, "0"),
		"--log-max", strconv.Itoa(cfg.LogMax))
	if err != nil {
		return r, err
	}
	server, err := start("--rank", "1", "--shards", strconv.Itoa(cfg.Shards), "--listen", addrs[2], "--http", "off", "--out", filepath.Join(dir, "1"))
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nthe coordinator said: %s\nthe server said: %s", err, coordinator.stderr.String(), server.stderr.String())
		}
	}()
	defer func() { <-coordinator.ended; <-server.ended }()
	defer cancel(nil)

	if err := listens(ctx, addrs[0]); err != nil {
		return r, err
	}
	r = WorkersResult{Program: program, Ranks: n, Shards: cfg.Shards, Mode: cfg.Mode}
	c := &crowd{cfg: cfg, n: n, addr: addrs[0], halt: make(chan struct{})}
	begun := time.Now()
	var workers sync.WaitGroup
	c.joining.Add(n)
	for w := range n {
		workers.Go(func() {
			if err := c.worker(ctx, w); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("worker %d: %w", w, err))
			}
		})
	}
	defer workers.Wait()
	defer cancel(nil)
	welcome := make(chan struct{})
	go func() { c.joining.Wait(); close(welcome) }()
	select {
	case <-welcome:
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	r.Join, r.Dials = time.Since(begun).Seconds(), c.dials.Load()

	// The first updates allocate what later ones use again.
	const warm = 5
	if err := c.reach(ctx, warm); err != nil {
		return r, err
	}
	begun = time.Now()
	sample := func(ask bool) (s WorkersSample, err error) {
		s.At, s.Updates = time.Since(begun).Seconds(), c.version.Load()
		if s.CPU, err = coordinator.cpu(); err != nil {
			return s, err
		}
		m, err := coordinator.proc.MemoryInfo()
		if err != nil {
			return s, err
		}
		fds, err := coordinator.proc.NumFDs()
		if err != nil {
			return s, err
		}
		if s.LogBytes, err = logBytes(filepath.Join(dir, "0", "run.jsonl")); err != nil {
			return s, err
		}
		s.Memory, s.Descriptors = m.RSS, int(fds)
		if ask { // after the rest, which the question would be part of
			var e error
			if s.Goroutines, e = goroutines(ctx, addrs[1]); e != nil && cfg.Log != nil {
				fmt.Fprintln(cfg.Log, "no answer of the coordinator's metrics:", e)
			}
		}
		if cfg.Log != nil {
			fmt.Fprintf(cfg.Log, "%7.1f s: %d updates, %.1f s of a processor, %.1f MB, %d goroutines, %d descriptors, %.1f MB of log\n",
				s.At, s.Updates, s.CPU, float64(s.Memory)/1e6, s.Goroutines, s.Descriptors, float64(s.LogBytes)/1e6)
		}
		return s, nil
	}
	first, err := sample(cfg.Scrape > 0)
	if err != nil {
		return r, err
	}
	if cfg.Scrape > 0 {
		var scrapes sync.WaitGroup
		defer scrapes.Wait()
		enough, stop := context.WithCancel(ctx)
		defer stop()
		scrapes.Go(func() {
			tick := time.NewTicker(cfg.Scrape)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_, _ = goroutines(enough, addrs[1]) // the samples say what is wrong
				case <-enough.Done():
					return
				}
			}
		})
	}
	serverBefore, err := server.cpu()
	if err != nil {
		return r, err
	}
	r.Samples = append(r.Samples, first)
	const pieces = 10
	for k := range int64(pieces) {
		if cfg.For > 0 {
			select {
			case <-time.After(time.Until(begun.Add(cfg.For * time.Duration(k+1) / pieces))):
			case <-ctx.Done():
				return r, context.Cause(ctx)
			}
		} else if err := c.reach(ctx, first.Updates+int64(cfg.Updates)*(k+1)/pieces); err != nil {
			return r, err
		}
		s, err := sample(cfg.Scrape > 0 || k == pieces-1)
		if err != nil {
			return r, err
		}
		r.Samples = append(r.Samples, s)
	}
	last := r.Samples[pieces]
	serverAfter, err := server.cpu()
	if err != nil {
		return r, err
	}
	r.Updates, r.Seconds = last.Updates-first.Updates, last.At-first.At
	each := 1 / float64(r.Updates*int64(n))
	r.CPU, r.Server = (last.CPU-first.CPU)*each, (serverAfter-serverBefore)*each
	r.LogBytes = float64(last.LogBytes-first.LogBytes) * each
	close(c.halt)
	workers.Wait()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	for _, p := range []*child{coordinator, server} {
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			return r, errors.New("the job did not end within a minute")
		}
	}
	return r, nil
}

// logBytes is what a run log takes with all of its parts.
func logBytes(path string) (sum int64, err error) {
	files, err := filepath.Glob(path + "*")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		i, err := os.Stat(f)
		switch {
		case err == nil:
			sum += i.Size()
		case !errors.Is(err, os.ErrNotExist): // a part that was replaced meanwhile
			return 0, err
		}
	}
	return sum, nil
}

// listens waits until a process listens at an address.
func listens(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("no process listened at %s within a minute", addr))
	defer cancel()
	var d net.Dialer
	for {
		if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// goroutines asks the metrics of a process.
func goroutines(ctx context.Context, addr string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), "\ngo_goroutines ")
	if !ok {
		return 0, errors.New("no go_goroutines in /metrics")
	}
	number, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(number, 64)
	return int(n), err
}

// reach waits until a worker was released with that version.
func (c *crowd) reach(ctx context.Context, version int64) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for c.version.Load() < version {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// worker is one simulated worker, until the job is over.
func (c *crowd) worker(ctx context.Context, rank int) error {
	params, grad := make([]float32, c.cfg.Params), make([]float32, c.cfg.Params)
	norm2 := 0.0
	for i := range grad {
		grad[i] = 0.01 * float32(1+(i+rank)%3)
		norm2 += float64(grad[i]) * float64(grad[i])
	}
	tcp := transport.NewTCP(transport.Config{})
	hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "bench", Rank: rank, Model: "bench", ModelHash: "bench", Params: int64(c.cfg.Params)}
	m, err := session.Join(ctx, session.MemberConfig{Network: counted{tcp, &c.dials}, Addr: c.addr, Hello: hello, JoinTimeout: 5 * time.Minute, DeadAfter: defaults.DeadAfter,
		Enrol: &session.Enrolment{Data: "bench", Samples: 1 << 30, Tests: 1}})
	c.joining.Done()
	if err != nil {
		return err
	}
	defer m.Close()
	defer context.AfterFunc(ctx, func() { m.Close() })()
	hello.Pass = m.Welcome.Pass
	l, err := ps.Dial(ctx, ps.LinkConfig{Network: tcp, Shards: m.Welcome.Shards, Hello: hello, Params: params, JoinTimeout: 5 * time.Minute, Stall: 5 * time.Minute,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer l.Close()
	if m.Welcome.Seed {
		if err := l.Init(ctx); err != nil {
			return err
		}
	}
	w := star.Worker(rank)
	if err := session.Say(m, wire.Joined{Worker: w}, nil); err != nil {
		return err
	}
	m.Beat()
	rng := rand.New(rand.NewPCG(1, uint64(rank)))
	halted := false
	pushed := time.Now()
	for step := int64(0); ; {
		rel, err := m.Next()
		if err != nil {
			return err
		}
		released := time.Now()
		if rel.Action == wire.Stop {
			return nil
		}
		if rel.Pull {
			_, err = l.Pull(ctx, rel.Version)
		} else {
			_, err = l.Wait(ctx, rel.Version)
		}
		if err != nil {
			return err
		}
		for v := c.version.Load(); rel.Version > v && !c.version.CompareAndSwap(v, rel.Version); v = c.version.Load() {
		}
		if rel.Action != wire.Continue {
			if err := session.Say(m, wire.EvalResult{Worker: w, Eval: rel.Eval, Version: rel.Version, Count: (rel.To - rel.From) / 10_000}, nil); err != nil {
				return err
			}
		}
		if rel.Action == wire.Finish {
			continue
		}
		if rank == 0 && !halted {
			select {
			case <-c.halt:
				halted = true
				if err := session.Say(m, wire.Halt{Worker: w, Reason: "enough was measured"}, nil); err != nil {
					return err
				}
			default:
			}
		}
		pulled := time.Now()
		select {
		case <-time.After(time.Duration(float64(c.cfg.Pace) * (0.9 + 0.2*rng.Float64()))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r := star.Record{Worker: w, Step: step, Basis: rel.Version, Samples: rel.Count, At: m.Elapsed(), Compute: time.Since(pulled),
			Wait: max(released.Sub(pushed), 0), Pull: pulled.Sub(released), Loss: 1 + rng.Float64(), Norm2: norm2, CPU: rng.Float64(),
			NetIn: float64(4 * c.cfg.Params), NetOut: float64(4 * c.cfg.Params)}
		if c.cfg.Telemetry {
			for k := range star.NumMetrics {
				r.Telemetry.Set(k, rng.Float64())
			}
		}
		before := time.Now()
		if err := l.Push(ctx, step, rel.Version, rel.Count, grad); err != nil {
			return err
		}
		pushed = time.Now()
		r.Push = pushed.Sub(before)
		if err := session.Say(m, wire.Arrive{Record: r}, nil); err != nil {
			return err
		}
		step++
	}
}
