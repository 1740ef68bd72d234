package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"star/allreduce"
	"star/internal/vector"
)

//go:embed peers/mpi_allreduce.c
var mpiAllReduce []byte

//go:embed peers/congestion.c
var peerCongestion []byte

//go:embed peers/gloo_allreduce.py
var glooAllReduce []byte

// AllReduceConfig configures AllReduce.
type AllReduceConfig struct {
	// Command starts one rank: a program that calls RankMain with the value of RankVariable. Its standard output is ours.
	Command []string

	Ranks      []int                 // empty means 2 and 4
	Sizes      []int64               // bytes of the vector; empty means 4 B to 100 MB
	Transports []string              // of allreduce.Config; empty means tcp and shm
	Algorithms []allreduce.Algorithm // each is a separate side; empty means that of Rank
	Checksums  []string              // of Rank, likewise
	Rounds     int                   // turns of each side. Zero means 5

	// Peers to measure in turns: openmpi-tcp, openmpi-shm, gloo. They need
	// mpicc and mpirun, or Python with PyTorch.
	Peers  []string
	Python string // empty means /usr/bin/python3

	// Congestion is the congestion control of all sides, or "kernel" for what
	// the machine gives. Empty means cubic.
	Congestion string

	// Rank holds settings of our side: Algorithm, Segment, buffers, Poll.
	Rank RankConfig
}

// AllReduceResult is one row: an operation is an all-reduce of Bytes. Runs are turns, Median is the median of their
// medians, and BusBW counts the 2(n-1)/n·Bytes that each rank must send at least. CPU is per 1e9 bytes of the vector;
// Allocs is the maximum over the ranks.
type AllReduceResult = Row

// RankVariable holds the RankConfig of a rank's process, as JSON.
const RankVariable = "STAR_BENCH_ALLREDUCE_RANK"

// RankConfig is one rank of the benchmark.
type RankConfig struct {
	Rank, Size int
	Rendezvous string
	Inherited  bool // rank 0: the listener is file descriptor 3
	Work       []Work

	Transport                 string
	Algorithm                 allreduce.Algorithm
	Congestion                string
	Checksum, ZeroCopy        string
	Segment                   int
	SendBuffer, ReceiveBuffer int
	Poll                      bool
	Model                     *allreduce.Model

	// Late is how much later than the others the last rank calls each operation. Times are from its call on.
	Late time.Duration

	// Tune or Exchange, if not nil, is measured in place of Work.
	Tune     *allreduce.TuneConfig
	Exchange *exchangeRank
}

// Work is Samples measurements of Inner operations in a row.
type Work struct {
	Bytes          int64
	Inner, Samples int
}

// measured is the result of one turn of one side for one size.
type measured struct {
	Bytes     int64     `json:"bytes"`
	Times     []float64 `json:"times"`
	Ops       int       `json:"ops"`
	CPU       float64   `json:"cpu"`
	Allocs    float64   `json:"allocs"`
	Algorithm string    `json:"algorithm"`
	Transport string    `json:"transport"`
}

// workFor is the number of measurements of an operation of that size in one turn. A turn should take 50 ms or more: in
// its first ten milliseconds a process still shares its processor with its parent.
func workFor(size int64) Work {
	switch {
	case size >= 32<<20:
		return Work{size, 1, 4}
	case size >= 4<<20:
		return Work{size, 1, 30}
	case size >= 512<<10:
		return Work{size, 4, 75}
	case size >= 16<<10:
		return Work{size, 20, 150}
	}
	return Work{size, 100, 150}
}

// patientSamples limits the samples of Gloo in a turn: it takes 50 to 200 times as long for short vectors.
const patientSamples = 15

// RankMain runs one rank; text is its RankConfig. Rank 0 writes its results to out.
func RankMain(ctx context.Context, text string, out io.Writer) error {
	var c RankConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("%s: %w", RankVariable, err)
	}
	cfg := allreduce.Config{
		Rank: c.Rank, Size: c.Size, Rendezvous: c.Rendezvous, Transport: c.Transport, Algorithm: c.Algorithm, Congestion: c.Congestion, Checksum: c.Checksum, ZeroCopy: c.ZeroCopy,
		Segment: c.Segment, SendBuffer: c.SendBuffer, ReceiveBuffer: c.ReceiveBuffer, Poll: c.Poll, Model: c.Model,
		Log: slog.New(slog.DiscardHandler),
	}
	if c.Inherited {
		f := os.NewFile(3, "rendezvous")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("file descriptor 3: %w", err)
		}
		cfg.Listener = l
	}
	g, err := allreduce.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	if c.Exchange != nil {
		return runExchange(ctx, c, g, out)
	}
	enc := json.NewEncoder(out)
	if c.Tune != nil {
		m, err := allreduce.Tune(ctx, g, *c.Tune)
		if err != nil || c.Rank != 0 {
			return err
		}
		return enc.Encode(m)
	}
	for _, w := range c.Work {
		m, err := measureRank(ctx, g, w, c.Late)
		if err != nil {
			return err
		}
		for kind := range g.Transports() {
			m.Transport = kind
		}
		m.Algorithm = g.Algorithm(w.Bytes).String()
		if c.Rank == 0 {
			if err := enc.Encode(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func measureRank(ctx context.Context, g *allreduce.Group, w Work, late time.Duration) (measured, error) {
	m := measured{Bytes: w.Bytes, Ops: w.Inner * w.Samples}
	v := vector.Make[float32](int(w.Bytes / 4))
	clear(v)
	slowest, slept, total := make([]float64, 1), make([]float64, 1), make([]float64, 1)
	m.Times = make([]float64, 0, w.Samples)
	var before, after runtime.MemStats
	warm := 1
	if late > 0 {
		warm = 20 // the ranks learn which one is late
	}
	for s := -warm; s < w.Samples; s++ {
		// once: it stops the world, and afterwards Go's monitor wakes every 20 µs on a processor that a rank needs
		if s == 0 {
			runtime.ReadMemStats(&before)
		}
		if err := g.Barrier(ctx); err != nil {
			return m, err
		}
		cpu, t := cpuTime(), time.Now()
		slept[0] = 0
		for range w.Inner {
			if late > 0 && g.Rank() == g.Size()-1 {
				begun := time.Now()
				time.Sleep(late)
				slept[0] += time.Since(begun).Seconds() / float64(w.Inner)
			}
			if err := g.AllReduce(ctx, allreduce.Sum, v); err != nil {
				return m, err
			}
		}
		slowest[0] = time.Since(t).Seconds() / float64(w.Inner)
		used := cpuTime() - cpu
		if err := allreduce.AllReduce(ctx, g, allreduce.Max, slowest); err != nil {
			return m, err
		}
		if late > 0 {
			if err := allreduce.AllReduce(ctx, g, allreduce.Max, slept); err != nil {
				return m, err
			}
			slowest[0] -= slept[0]
		}
		if s >= 0 {
			m.Times = append(m.Times, slowest[0])
			total[0] += used
		}
	}
	runtime.ReadMemStats(&after)
	most := []float64{float64(after.Mallocs-before.Mallocs) / float64(m.Ops)}
	if err := allreduce.AllReduce(ctx, g, allreduce.Max, most); err != nil {
		return m, err
	}
	if err := allreduce.AllReduce(ctx, g, allreduce.Sum, total); err != nil {
		return m, err
	}
	m.Allocs, m.CPU = most[0], total[0]
	return m, nil
}

// AllReduce measures all-reduces of separate processes, and those of peers in turns.
func AllReduce(ctx context.Context, cfg AllReduceConfig) ([]AllReduceResult, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("bench: all-reduce: no command to start a rank")
	}
	if len(cfg.Ranks) == 0 {
		cfg.Ranks = []int{2, 4}
	}
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = []int64{4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 100e6}
	}
	if len(cfg.Transports) == 0 {
		cfg.Transports = []string{"tcp", "shm"}
	}
	dir, err := os.MkdirTemp("", "star-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p, err := preparePeers(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}
	var rows []AllReduceResult
	for _, n := range cfg.Ranks {
		var work []Work
		for _, size := range cfg.Sizes {
			work = append(work, workFor(size))
		}
		type side struct {
			name, transport string
			run             func() ([]measured, error)
		}
		var sides []side
		algorithms := cfg.Algorithms
		if len(algorithms) == 0 {
			algorithms = []allreduce.Algorithm{cfg.Rank.Algorithm}
		}
		sums := cfg.Checksums
		if len(sums) == 0 {
			sums = []string{cfg.Rank.Checksum}
		}
		for _, k := range cfg.Transports {
			for _, a := range algorithms {
				for _, sum := range sums {
					transport := k
					if sum == allreduce.ChecksumAll && k == "tcp" {
						transport = "tcp, CRC"
					}
					sides = append(sides, side{"", transport, func() ([]measured, error) {
						c := cfg
						c.Rank.Algorithm, c.Rank.Checksum = a, sum
						return ourTurn(ctx, c, n, k, work)
					}})
				}
			}
		}
		for _, name := range cfg.Peers {
			transport := "tcp"
			if name == "openmpi-shm" {
				transport = "shm"
			}
			sides = append(sides, side{name, transport, func() ([]measured, error) { return p.turn(ctx, name, n, work) }})
		}
		turns := make([][][]measured, len(sides)) // by side and size
		for i := range turns {
			turns[i] = make([][]measured, len(work))
		}
		for range cmp.Or(cfg.Rounds, 5) {
			for i, s := range sides {
				ms, err := s.run()
				if err == nil && len(ms) != len(work) {
					err = fmt.Errorf("%d results for %d sizes", len(ms), len(work))
				}
				if err != nil {
					return nil, fmt.Errorf("bench: all-reduce of %d ranks: %s: %w", n, cmp.Or(s.name, s.transport), err)
				}
				for j, m := range ms {
					turns[i][j] = append(turns[i][j], m)
				}
			}
		}
		for j := range work {
			for i, s := range sides {
				rows = append(rows, allReduceRow(n, s.name, s.transport, turns[i][j]))
			}
		}
	}
	return rows, nil
}

func allReduceRow(n int, name, transport string, turns []measured) AllReduceResult {
	var medians, times []float64
	r := AllReduceResult{Ranks: n, Bytes: turns[0].Bytes, Transport: cmp.Or(transport, turns[0].Transport), Algorithm: cmp.Or(name, turns[0].Algorithm), Runs: len(turns), Allocs: -1}
	ops, cpu := 0, 0.0
	for _, m := range turns {
		slices.Sort(m.Times)
		medians = append(medians, m.Times[len(m.Times)/2])
		times = append(times, m.Times...)
		ops, cpu = ops+m.Ops, cpu+m.CPU
		if name == "" {
			r.Allocs = max(r.Allocs, m.Allocs)
		}
	}
	slices.Sort(medians)
	slices.Sort(times)
	r.Median, r.P10, r.P90 = medians[len(medians)/2], times[len(times)/10], times[len(times)*9/10]
	r.AlgBW = float64(r.Bytes) / r.Median
	r.BusBW = r.AlgBW * 2 * float64(n-1) / float64(n)
	r.CPU = cpu / (float64(r.Bytes) * float64(ops)) * 1e9
	return r
}

// ourTurn starts n ranks and reads what rank 0 has measured.
func ourTurn(ctx context.Context, cfg AllReduceConfig, n int, transport string, work []Work) ([]measured, error) {
	c := cfg.Rank
	c.Transport, c.Work, c.Congestion = transport, work, cfg.Congestion
	out, err := ourRanks(ctx, cfg.Command, n, c)
	if err != nil {
		return nil, err
	}
	return parseMeasured(bytes.NewReader(out))
}

// ourRanks starts n ranks and returns the output of rank 0.
func ourRanks(ctx context.Context, command []string, n int, c RankConfig) ([]byte, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return together(ctx, n, func(ctx context.Context, rank int) *exec.Cmd {
		c := c
		c.Rank, c.Size, c.Rendezvous, c.Inherited = rank, n, l.Addr().String(), rank == 0
		text, err := json.Marshal(c)
		if err != nil {
			panic("bench: " + err.Error())
		}
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Env = append(os.Environ(), RankVariable+"="+string(text))
		if rank == 0 {
			cmd.ExtraFiles = []*os.File{f}
		}
		return cmd
	})
}

// turnTime bounds one turn.
const turnTime = 5 * time.Minute

// together starts n processes and returns the output of the first one.
func together(ctx context.Context, n int, command func(ctx context.Context, rank int) *exec.Cmd) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, turnTime, fmt.Errorf("not done after %v", turnTime))
	defer cancel()
	var out bytes.Buffer
	cmds, stderr := make([]*exec.Cmd, n), make([]bytes.Buffer, n)
	var failed error
	for r := range n {
		cmds[r] = command(ctx, r)
		cmds[r].Stderr = &stderr[r]
		if r == 0 {
			cmds[r].Stdout = &out
		}
		if failed = cmds[r].Start(); failed != nil {
			cancel()
			cmds = cmds[:r]
			break
		}
	}
	for r, c := range cmds {
		if err := c.Wait(); err != nil {
			cancel() // the others would wait for it
			if failed == nil {
				failed = fmt.Errorf("rank %d: %w: %s", r, err, bytes.TrimSpace(stderr[r].Bytes()))
			}
		}
	}
	if failed != nil && ctx.Err() != nil && context.Cause(ctx) != context.Canceled {
		failed = fmt.Errorf("%w: %w", context.Cause(ctx), failed)
	}
	return out.Bytes(), failed
}

func measuredBy(out []byte, err error) ([]measured, error) {
	if err != nil {
		return nil, err
	}
	return parseMeasured(bytes.NewReader(out))
}

func parseMeasured(r io.Reader) ([]measured, error) {
	var ms []measured
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if !bytes.HasPrefix(lines.Bytes(), []byte("{")) {
			continue
		}
		var m measured
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return nil, err
		}
		if len(m.Times) == 0 {
			return nil, fmt.Errorf("no times in %s", lines.Bytes())
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// peers has what the peers need to run.
type peers struct {
	mpi, gloo, python string
	env               []string
}

func preparePeers(ctx context.Context, cfg AllReduceConfig, dir string) (*peers, error) {
	p := &peers{python: cmp.Or(cfg.Python, "/usr/bin/python3"), env: os.Environ()}
	if len(cfg.Peers) == 0 {
		return p, nil
	}
	build := func(name string, source []byte, compiler string, args ...string) (string, error) {
		src, dst := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
		if err := os.WriteFile(src, source, 0o600); err != nil {
			return "", err
		}
		out, err := exec.CommandContext(ctx, compiler, append([]string{"-O2", "-o", dst, src}, args...)...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("bench: cannot compile %s with %s: %w\n%s", name, compiler, err, out)
		}
		return dst, nil
	}
	if congestion := cmp.Or(cfg.Congestion, "cubic"); congestion != "kernel" {
		shim, err := build("congestion.so", peerCongestion, "cc", "-shared", "-fPIC", "-ldl")
		if err != nil {
			return nil, err
		}
		p.env = append(p.env, "LD_PRELOAD="+shim, "PEER_CONGESTION="+congestion)
	}
	for _, name := range cfg.Peers {
		switch name {
		case "openmpi-tcp", "openmpi-shm":
			if p.mpi != "" {
				continue
			}
			var err error
			if p.mpi, err = build("mpi_allreduce", mpiAllReduce, "mpicc"); err != nil {
				return nil, err
			}
		case "gloo":
			p.gloo = filepath.Join(dir, "gloo_allreduce.py")
			if err := os.WriteFile(p.gloo, glooAllReduce, 0o600); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("bench: no peer %q: there are openmpi-tcp, openmpi-shm and gloo", name)
		}
	}
	return p, nil
}

// turn runs a peer once.
func (p *peers) turn(ctx context.Context, name string, n int, work []Work) ([]measured, error) {
	var words []string
	for _, w := range work {
		if name == "gloo" {
			w.Samples = min(w.Samples, patientSamples)
		}
		words = append(words, fmt.Sprintf("%d:%d:%d", w.Bytes, w.Inner, w.Samples))
	}
	if name == "gloo" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		return measuredBy(together(ctx, n, func(ctx context.Context, rank int) *exec.Cmd {
			cmd := exec.CommandContext(ctx, p.python, append([]string{p.gloo, strconv.Itoa(rank), strconv.Itoa(n), strconv.Itoa(port)}, words...)...)
			cmd.Env = append(slices.Clone(p.env), "GLOO_SOCKET_IFNAME=lo")
			return cmd
		}))
	}
	args := []string{"--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(n)}
	if name == "openmpi-tcp" {
		args = append(args, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self")
	}
	args = append(append(args, p.mpi), words...)
	return measuredBy(together(ctx, 1, func(ctx context.Context, _ int) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "mpirun", args...)
		cmd.Env = p.env
		return cmd
	}))
}
