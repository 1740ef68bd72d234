package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	gonet "net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"star/train"
	"star/train/net"
	"star/transport"
)

// BareJobConfig says what BareJob runs.
type BareJobConfig struct {
	// Command starts a process of the job: a program that calls BareMain with the
	// variable BareVariable. Its standard output is ours.
	Command []string

	Model   string // as net.Parse takes it
	Input   train.Input
	Batch   int // samples of a worker
	Workers int
	Servers int
	Steps   int
}

// bareWarm steps of a job are not counted.
const bareWarm = 10

// BareVariable holds what a process of a bare job is, as JSON.
const BareVariable = "STAR_BENCH_BARE"

// bareProcess is one process of a bare job.
type bareProcess struct {
	BareJobConfig
	Params int      // elements
	Server int      // which one; -1: a worker
	Addrs  []string // a worker's: of all servers
}

// BareJob is the least that a synchronous job of that shape costs on this machine, and
// returns the time between its updates. The same number of processes compute the same gradients and
// exchange the same bytes: a worker writes to each server its part of the gradient, a server that has
// those of all workers writes the parameters to all of them. There is nothing else:
// no update, no checksum, no coordinator, no data set, no record. The connections have the socket options of
// STAR's.
//
// So it holds the slowest computation and the transport of the bytes as they are where the processes
// share processors: a worker that is ready to compute and must wait for a processor does so here as well.
func BareJob(ctx context.Context, cfg BareJobConfig) ([]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, turnTime, fmt.Errorf("a bare job was not done after %v", turnTime))
	defer cancel()
	spec, err := bareSpec(cfg)
	if err != nil {
		return nil, err
	}
	model, err := net.Build(spec)
	if err != nil {
		return nil, err
	}
	p := bareProcess{BareJobConfig: cfg, Params: len(model.Params())}
	model.Close()
	var started []*exec.Cmd
	stderr := make([]bytes.Buffer, cfg.Servers+cfg.Workers)
	start := func() (io.Reader, error) {
		text, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, cfg.Command[0], cfg.Command[1:]...)
		cmd.Env = append(os.Environ(), BareVariable+"="+string(text))
		cmd.Stderr = &stderr[len(started)]
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		started = append(started, cmd)
		return out, nil
	}
	times, err := func() ([]float64, error) {
		outs := make([]*bufio.Reader, cfg.Servers)
		for i := range cfg.Servers {
			p.Server = i
			out, err := start()
			if err != nil {
				return nil, err
			}
			outs[i] = bufio.NewReader(out)
			addr, err := outs[i].ReadString('\n')
			if err != nil {
				return nil, fmt.Errorf("server %d said no address: %w", i, err)
			}
			p.Addrs = append(p.Addrs, strings.TrimSpace(addr))
		}
		p.Server = -1
		for range cfg.Workers {
			if _, err := start(); err != nil {
				return nil, err
			}
		}
		var times []float64
		if err := json.NewDecoder(outs[0]).Decode(&times); err != nil {
			return nil, fmt.Errorf("server 0 said no times: %w", err)
		}
		return times[min(bareWarm, len(times)-1):], nil
	}()
	if err != nil {
		cancel()
	}
	for i, c := range started {
		if e := c.Wait(); e != nil && stderr[i].Len() > 0 {
			err = errors.Join(err, fmt.Errorf("%w: %s", e, bytes.TrimSpace(stderr[i].Bytes())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bench: bare job of %s: %w", cfg.Model, err)
	}
	return times, nil
}

func bareSpec(cfg BareJobConfig) (net.Spec, error) {
	spec, err := net.Parse(cfg.Model)
	if err != nil {
		return spec, err
	}
	if cfg.Workers < 1 || cfg.Servers < 1 || cfg.Steps < 2 || cfg.Batch < 1 {
		return spec, fmt.Errorf("bench: a bare job of %d workers, %d servers, %d steps and batches of %d: at least 1, 1, 2 and 1", cfg.Workers, cfg.Servers, cfg.Steps, cfg.Batch)
	}
	spec.Input, spec.Batch, spec.Seed = cfg.Input, cfg.Batch, 1
	return spec, nil
}

// BareMain is a process of a bare job. text is the value of BareVariable.
func BareMain(ctx context.Context, text string, out io.Writer) error {
	var p bareProcess
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("%s: %w", BareVariable, err)
	}
	runtime.GOMAXPROCS(min(2, runtime.NumCPU())) // as processes of a job do
	if p.Server >= 0 {
		return p.serve(ctx, out)
	}
	return p.work(ctx)
}

// part is the bytes [from, to) of the vector that server i has.
func (p bareProcess) part(i int) (from, to int) {
	return 4 * (p.Params * i / p.Servers), 4 * (p.Params * (i + 1) / p.Servers)
}

// bareStall bounds every read and write of a bare job.
const bareStall = time.Minute

func (p bareProcess) serve(ctx context.Context, out io.Writer) error {
	tcp := transport.NewTCP(transport.Config{})
	lc := gonet.ListenConfig{Control: tcp.Control}
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	from, to := p.part(p.Server)
	params := make([]byte, to-from)
	var conns []gonet.Conn
	var grads [][]byte
	for range p.Workers {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("%d of %d workers came: %w", len(conns), p.Workers, err)
		}
		defer c.Close()
		conns, grads = append(conns, c), append(grads, make([]byte, to-from))
	}
	// all has every connection do the same, and waits for all.
	all := func(do func(i int) error) error {
		errs := make([]error, len(conns))
		var wg sync.WaitGroup
		for i, c := range conns {
			wg.Go(func() {
				if errs[i] = c.SetDeadline(time.Now().Add(bareStall)); errs[i] == nil {
					errs[i] = do(i)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	var times []float64
	last := time.Now()
	for range p.Steps {
		if err := all(func(i int) error { _, err := io.ReadFull(conns[i], grads[i]); return err }); err != nil {
			return err
		}
		now := time.Now()
		times = append(times, now.Sub(last).Seconds())
		last = now
		if err := all(func(i int) error { _, err := conns[i].Write(params); return err }); err != nil {
			return err
		}
	}
	if p.Server > 0 {
		return nil
	}
	return json.NewEncoder(out).Encode(times)
}

func (p bareProcess) work(ctx context.Context) error {
	spec, err := bareSpec(p.BareJobConfig)
	if err != nil {
		return err
	}
	model, err := net.Build(spec)
	if err != nil {
		return err
	}
	defer model.Close()
	grad := make([]float32, len(model.Params()))
	if g, ok := model.(interface{ Gradient() []float32 }); ok {
		grad = g.Gradient()
	}
	tcp := transport.NewTCP(transport.Config{})
	var conns []gonet.Conn
	for _, addr := range p.Addrs {
		d := gonet.Dialer{Control: tcp.Control}
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer c.Close()
		conns = append(conns, c)
	}
	defer context.AfterFunc(ctx, func() {
		for _, c := range conns {
			c.Close()
		}
	})()
	batch := syntheticBatch(stepModel{input: p.Input, batch: p.Batch})
	there, back := transport.Floats(grad), make([]byte, 4*p.Params)
	for range p.Steps {
		if _, err := model.Grad(ctx, grad, batch); err != nil {
			return err
		}
		for i, c := range conns {
			from, to := p.part(i)
			if err := c.SetDeadline(time.Now().Add(bareStall)); err != nil {
				return err
			}
			if _, err := c.Write(there[from:to]); err != nil {
				return err
			}
		}
		for i, c := range conns {
			from, to := p.part(i)
			if err := c.SetDeadline(time.Now().Add(bareStall)); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, back[from:to]); err != nil {
				return err
			}
		}
	}
	return nil
}
