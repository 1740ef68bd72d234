package bench

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"star/allreduce"
	"star/internal/kernel"
	"star/train"
	models "star/train/net"
)

//go:embed gloo_exchange.py
var glooExchange []byte

// ExchangeConfig configures Exchanges. Only Command has no default.
type ExchangeConfig struct {
	Command []string // starts one rank: a program that calls RankMain

	Models     []string // of ExchangeModels; empty means all
	Ranks      []int    // empty means 2 and 4
	Transports []string // of allreduce.Config, for our side; empty means tcp and shm
	Against    string   // "gloo", or empty for no peer
	Python     string   // empty means /usr/bin/python3
	Congestion string   // of all sides; empty means cubic
	Steps      int      // of one turn. Zero means as many as take about two seconds
	Rounds     int      // turns of each side. Zero means 5
	Bucket     float64  // MB of the gradient that are exchanged at once. Zero means 25
	Model      *allreduce.Model
}

// ExchangeResult is one row: steps of data-parallel training, in which each rank computes the gradient of its own
// batch, in buckets that are summed over all ranks while the rest is computed, and updates its parameters.
type ExchangeResult struct {
	Model     string  `json:"model"`
	Params    int     `json:"params"`
	Batch     int     `json:"batch"` // samples of one rank
	Ranks     int     `json:"ranks"`
	Buckets   int     `json:"buckets"`
	Exchange  string  `json:"exchange"`  // star, gloo, or none: ranks do not exchange
	Transport string  `json:"transport"` // tcp, unix, shm; empty for none
	Runs      int     `json:"runs"`      // turns
	Steps     int     `json:"steps"`     // of all turns
	Median    float64 `json:"step_s"`    // of the turns' medians
	P10       float64 `json:"p10_s"`     // of all steps
	P90       float64 `json:"p90_s"`
	Rate      float64 `json:"samples_per_s"` // of all ranks, by the median
	Exposed   float64 `json:"exposed_s"`     // median time from the end of the computation to that of the exchange
	CPU       float64 `json:"cpu_s_per_step"`

	// Doorbell is the cost of a request to the peer's process, per bucket. It is not a cost of the peer. Zero without a
	// peer.
	Doorbell float64 `json:"doorbell_s"`

	// Ratio is Rate over that of the peer, for the same model and ranks; zero without a peer.
	Ratio float64 `json:"ratio"`
}

type exchangeModel struct {
	name, spec string
	input      train.Input
	batch      int
}

var exchangeModels = []exchangeModel{
	{"lenet", "lenet", train.Input{Shape: []int{1, 28, 28}, Classes: 10}, 64},
	{"mlp25m", "mlp:hidden=4096-4096-1200", train.Input{Shape: []int{784}, Classes: 10}, 64},
}

// ExchangeModels are the names of the models of Exchanges: LeNet with 62 thousand parameters and a perceptron with 25
// million.
func ExchangeModels() []string {
	var names []string
	for _, m := range exchangeModels {
		names = append(names, m.name)
	}
	return names
}

// exchangeRank is one rank of Exchanges, in RankConfig.
type exchangeRank struct {
	Model    int // index in exchangeModels
	Exchange string
	Steps    int
	Seconds  float64 // where Steps is zero
	Bucket   int     // elements
	Memory   string  // folder of the memory shared with the peer's process

	Python, Script string
	Port           int
	Env            []string // of the peer's process
}

// exchanged is rank 0's result of a turn.
type exchanged struct {
	Times    []float64 `json:"times"`
	Exposed  []float64 `json:"exposed"`
	CPU      float64   `json:"cpu"`
	Doorbell float64   `json:"doorbell"`
	Params   int       `json:"params"`
	Norm     float64   `json:"norm"` // of the parameters after warmUp steps
}

// warmUp is the number of steps that are not counted.
const warmUp = 3

// Exchanges measures training steps with gradients that we sum and, in turns, that the peer sums. All sides are the
// same program with the same computation in the same memory; only the sum of the buckets differs. The peer's all-reduce
// runs in a process beside each rank, on the memory that the gradient is computed into, and gets a message per bucket
// through a pipe: Doorbell is the cost of that. After a few steps the parameters of all sides must agree, else it
// returns an error.
func Exchanges(ctx context.Context, cfg ExchangeConfig) ([]ExchangeResult, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("bench: exchange: no command to start a rank")
	}
	if len(cfg.Models) == 0 {
		cfg.Models = ExchangeModels()
	}
	if len(cfg.Ranks) == 0 {
		cfg.Ranks = []int{2, 4}
	}
	if len(cfg.Transports) == 0 {
		cfg.Transports = []string{"tcp", "shm"}
	}
	if cfg.Against != "" && cfg.Against != "gloo" {
		return nil, fmt.Errorf("bench: exchange: unknown peer %q; there is: gloo", cfg.Against)
	}
	// Files in this folder are in memory.
	place := "/dev/shm"
	if i, err := os.Stat(place); err != nil || !i.IsDir() {
		place = ""
	}
	dir, err := os.MkdirTemp(place, "star-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	base := exchangeRank{Bucket: int(cmp.Or(cfg.Bucket, 25) * 1e6 / 4), Steps: cfg.Steps, Seconds: 2, Memory: dir, Python: cmp.Or(cfg.Python, "/usr/bin/python3")}
	if base.Bucket < 1 {
		return nil, fmt.Errorf("bench: exchange: buckets of %v MB: too short", cfg.Bucket)
	}
	if cfg.Against == "gloo" {
		p, err := preparePeers(ctx, AllReduceConfig{Peers: []string{"gloo"}, Congestion: cfg.Congestion}, dir)
		if err != nil {
			return nil, err
		}
		base.Script = filepath.Join(dir, "gloo_exchange.py")
		if err := os.WriteFile(base.Script, glooExchange, 0o600); err != nil {
			return nil, err
		}
		for _, v := range p.env {
			if strings.HasPrefix(v, "LD_PRELOAD=") || strings.HasPrefix(v, "PEER_CONGESTION=") {
				base.Env = append(base.Env, v)
			}
		}
	}
	var rows []ExchangeResult
	for _, name := range cfg.Models {
		i := slices.IndexFunc(exchangeModels, func(m exchangeModel) bool { return m.name == name })
		if i < 0 {
			return rows, fmt.Errorf("bench: exchange: unknown model %q; there are: %v", name, ExchangeModels())
		}
		for _, n := range cfg.Ranks {
			some, err := exchangeSides(ctx, cfg, base, i, n)
			if err != nil {
				return rows, fmt.Errorf("bench: exchange: %s by %d ranks: %w", name, n, err)
			}
			rows = append(rows, some...)
		}
	}
	return rows, nil
}

func exchangeSides(ctx context.Context, cfg ExchangeConfig, base exchangeRank, model, n int) ([]ExchangeResult, error) {
	rows := []ExchangeResult{{Exchange: "none"}}
	for _, k := range cfg.Transports {
		rows = append(rows, ExchangeResult{Exchange: "star", Transport: k})
	}
	if cfg.Against != "" {
		rows = append(rows, ExchangeResult{Exchange: cfg.Against, Transport: "tcp"})
	}
	turns := make([][]exchanged, len(rows))
	for range cmp.Or(cfg.Rounds, 5) {
		for i, r := range rows {
			e := base
			e.Model, e.Exchange = model, r.Exchange
			c := RankConfig{Transport: r.Transport, Congestion: cfg.Congestion, Model: cfg.Model, Exchange: &e}
			if r.Exchange == "gloo" {
				port, err := freePort()
				if err != nil {
					return nil, err
				}
				e.Port = port
			}
			if r.Exchange != "star" {
				c.Transport = "" // of the group that only agrees on the number of steps
			}
			text, err := ourRanks(ctx, cfg.Command, n, c)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", r.Exchange, r.Transport, err)
			}
			var t exchanged
			if err := json.Unmarshal(text, &t); err != nil || len(t.Times) == 0 {
				return nil, fmt.Errorf("%s %s: rank 0 said %q: %w", r.Exchange, r.Transport, text, cmp.Or(err, errors.New("no times")))
			}
			turns[i] = append(turns[i], t)
		}
	}
	m := exchangeModels[model]
	peer := 0.0
	for i := range rows {
		r := &rows[i]
		var medians, times, exposed, doorbell []float64
		for _, t := range turns[i] {
			medians = append(medians, median(t.Times))
			times = append(times, t.Times...)
			exposed = append(exposed, t.Exposed...)
			doorbell = append(doorbell, t.Doorbell)
			r.CPU += t.CPU / float64(len(turns[i]))
		}
		slices.Sort(times)
		r.Model, r.Params, r.Batch, r.Ranks = m.name, turns[i][0].Params, m.batch, n
		r.Buckets = (r.Params + base.Bucket - 1) / base.Bucket
		r.Runs, r.Steps, r.Median = len(turns[i]), len(times), median(medians)
		r.P10, r.P90 = times[len(times)/10], times[len(times)*9/10]
		r.Rate = float64(n*m.batch) / r.Median
		r.Exposed, r.Doorbell = median(exposed), median(doorbell)
		if r.Exchange == "gloo" {
			peer = r.Rate
		}
	}
	for i := range rows {
		if rows[i].Exchange != "none" && peer > 0 {
			rows[i].Ratio = rows[i].Rate / peer
		}
	}
	return rows, agree(rows, turns)
}

// agree checks that all sides that exchange have the same parameters. Sums in another order differ in their last bits.
func agree(rows []ExchangeResult, turns [][]exchanged) error {
	first, norm := ExchangeResult{}, 0.0
	for i, r := range rows {
		for _, t := range turns[i] {
			switch {
			case r.Exchange == "none":
			case norm == 0:
				first, norm = r, t.Norm
			case !(math.Abs(t.Norm/norm-1) < 1e-4):
				return fmt.Errorf("after %d steps the parameters of %s %s have the norm %v, those of %s %s %v: they have not done the same",
					warmUp, r.Exchange, r.Transport, t.Norm, first.Exchange, first.Transport, norm)
			}
		}
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// exchanger sums a part of the gradient over all ranks. begin does not wait for the result; finish waits for all parts.
type exchanger interface {
	begin(ctx context.Context, from, to int) error
	finish(ctx context.Context) error
	cpu() float64 // seconds, of processes beside this one
}

// runExchange is one rank of Exchanges. g is a group of all ranks.
func runExchange(ctx context.Context, c RankConfig, g *allreduce.Group, out io.Writer) (err error) {
	e := c.Exchange
	// One thread computes, and one exchanges.
	runtime.GOMAXPROCS(2)
	m := exchangeModels[e.Model]
	spec, err := models.Parse(m.spec)
	if err != nil {
		return err
	}
	spec.Input, spec.Batch, spec.Seed = m.input, m.batch, 1
	built, err := models.Build(spec)
	if err != nil {
		return err
	}
	defer built.Close()
	model, ok := built.(train.Streamer)
	if !ok {
		return fmt.Errorf("%s does not compute its gradient in parts", m.name)
	}
	params := model.Params()
	path := filepath.Join(e.Memory, strconv.Itoa(c.Rank))
	grad, unmap, err := sharedFloats(path, len(params))
	if err != nil {
		return err
	}
	defer unmap()
	batch := syntheticBatch(stepModel{input: m.input, batch: m.batch})
	for i := range batch.X { // each rank has its own samples
		batch.X[i] *= 1 + float32(c.Rank)/8
	}

	var x exchanger = noExchange{}
	said := exchanged{Params: len(params)}
	switch e.Exchange {
	case "none":
	case "star":
		x = &ourExchanger{g: g, grad: grad}
	case "gloo":
		s, err := startSidecar(ctx, c, path, len(params))
		if err != nil {
			return err
		}
		defer func() {
			if e := s.close(); err == nil {
				err = e
			}
		}()
		if said.Doorbell, err = s.ring(ctx); err != nil {
			return err
		}
		x = s
	default:
		return fmt.Errorf("no exchange %q", e.Exchange)
	}

	buckets := &bucketing{size: e.Bucket, grad: grad, weight: 1 / float32(c.Size), news: make(chan struct{}, 1)}
	step := func() (all, exposed float64, err error) {
		start := time.Now()
		buckets.low = len(grad)
		step, cancel := context.WithCancel(ctx)
		defer cancel()
		sent := make(chan error, 1)
		go func() { sent <- buckets.run(step, x) }()
		_, err = model.GradStream(ctx, grad, batch, buckets.ready)
		if err != nil {
			cancel()
			<-sent
			return 0, 0, err
		}
		computed := time.Now()
		if err := <-sent; err != nil {
			return 0, 0, err
		}
		exposed = time.Since(computed).Seconds()
		kernel.Axpy(-0.01, grad, params)
		return time.Since(start).Seconds(), exposed, nil
	}
	var last float64
	for range warmUp {
		if last, _, err = step(); err != nil {
			return err
		}
	}
	said.Norm = math.Sqrt(kernel.SumSq(params))
	steps := []int64{int64(e.Steps)}
	if e.Steps == 0 {
		steps[0] = int64(max(5, min(1000, e.Seconds/last)))
		if err := allreduce.AllReduce(ctx, g, allreduce.Min, steps); err != nil {
			return err
		}
	}
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	cpu := cpuTime() + x.cpu()
	for range steps[0] {
		all, exposed, err := step()
		if err != nil {
			return err
		}
		said.Times, said.Exposed = append(said.Times, all), append(said.Exposed, exposed)
	}
	used := []float64{(cpuTime() + x.cpu() - cpu) / float64(steps[0])}
	// The slowest rank counts, per step, and the processor time of all ranks.
	for _, v := range [][]float64{said.Times, said.Exposed} {
		if err := allreduce.AllReduce(ctx, g, allreduce.Max, v); err != nil {
			return err
		}
	}
	if err := allreduce.AllReduce(ctx, g, allreduce.Sum, used); err != nil {
		return err
	}
	said.CPU = used[0]
	if c.Rank == 0 {
		return json.NewEncoder(out).Encode(said)
	}
	return nil
}

// bucketing exchanges a gradient from its end to its beginning while it is computed, as workers of a ring do.
type bucketing struct {
	size   int // elements
	grad   []float32
	weight float32

	mu   sync.Mutex
	low  int // computed from here on
	news chan struct{}
}

func (b *bucketing) ready(from, _ int) {
	b.mu.Lock()
	b.low = from
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *bucketing) computed(from int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.low <= from
}

func (b *bucketing) run(ctx context.Context, x exchanger) error {
	for to := len(b.grad); to > 0; {
		from := max(0, to-b.size)
		for !b.computed(from) {
			select {
			case <-b.news:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		part := b.grad[from:to]
		if _, bad := kernel.FiniteSumSq(part); bad >= 0 {
			return fmt.Errorf("element %d of the gradient is not finite", from+bad)
		}
		kernel.Scale(b.weight, part)
		if err := x.begin(ctx, from, to); err != nil {
			return err
		}
		to = from
	}
	return x.finish(ctx)
}

// noExchange exchanges nothing: only the computation is left.
type noExchange struct{}

func (noExchange) begin(context.Context, int, int) error { return nil }
func (noExchange) finish(context.Context) error          { return nil }
func (noExchange) cpu() float64                          { return 0 }

// ourExchanger is allreduce.
type ourExchanger struct {
	noExchange
	g    *allreduce.Group
	grad []float32
}

func (x *ourExchanger) begin(ctx context.Context, from, to int) error {
	return x.g.AllReduce(ctx, allreduce.Sum, x.grad[from:to])
}

// sidecar is the process with Gloo beside a rank.
type sidecar struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	stderr strings.Builder
	asked  int
	buf    [16]byte
}

func startSidecar(ctx context.Context, c RankConfig, path string, elements int) (*sidecar, error) {
	e := c.Exchange
	buckets := (elements + e.Bucket - 1) / e.Bucket
	s := new(sidecar)
	s.cmd = exec.CommandContext(ctx, e.Python, e.Script, strconv.Itoa(c.Rank), strconv.Itoa(c.Size), strconv.Itoa(e.Port), path, strconv.Itoa(elements), strconv.Itoa(buckets))
	s.cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	s.cmd.Env = append(s.cmd.Env, e.Env...)
	s.cmd.Stderr = &s.stderr
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if s.out, err = s.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w (Debian: python3-torch; --python names another interpreter)", e.Python, err)
	}
	if err := s.read(1); err != nil {
		return nil, err
	}
	return s, nil
}

// read reads an answer of n bytes.
func (s *sidecar) read(n int) error {
	if _, err := io.ReadFull(s.out, s.buf[:n]); err != nil {
		s.in.Close()
		_ = s.cmd.Wait()
		return fmt.Errorf("the process with Gloo: %w: %s (Debian: python3-torch; --python names another interpreter)", err, strings.TrimSpace(s.stderr.String()))
	}
	return nil
}

func (s *sidecar) ask(from, to int) error {
	binary.LittleEndian.PutUint64(s.buf[:], uint64(from))
	binary.LittleEndian.PutUint64(s.buf[8:], uint64(to))
	if _, err := s.in.Write(s.buf[:]); err != nil {
		s.in.Close()
		_ = s.cmd.Wait()
		return fmt.Errorf("the process with Gloo: %w: %s", err, s.stderr.String())
	}
	return nil
}

func (s *sidecar) begin(_ context.Context, from, to int) error {
	s.asked++
	return s.ask(from, to)
}

func (s *sidecar) finish(context.Context) error {
	for ; s.asked > 0; s.asked-- {
		if err := s.read(1); err != nil {
			return err
		}
	}
	return nil
}

// ring is the median time of an empty request.
func (s *sidecar) ring(ctx context.Context) (float64, error) {
	var times []float64
	for range 201 {
		t := time.Now()
		if err := errors.Join(s.begin(ctx, 0, 0), s.finish(ctx)); err != nil {
			return 0, err
		}
		times = append(times, time.Since(t).Seconds())
	}
	return median(times), nil
}

// cpu is zero when the process does not answer; then a step fails, too.
func (s *sidecar) cpu() float64 {
	if s.ask(1, 0) != nil || s.read(8) != nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(s.buf[:]))
}

func (s *sidecar) close() error {
	s.in.Close()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the process with Gloo: %w: %s", err, s.stderr.String())
	}
	return nil
}

// sharedFloats makes a file of n zeros and maps it into memory.
func sharedFloats(path string, n int) ([]float32, func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := f.Truncate(4 * int64(n)); err != nil {
		return nil, nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, os.NewSyscallError("mmap", err))
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n), func() { _ = syscall.Munmap(b) }, nil
}
