package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"star"
	"star/coord"
	"star/coord/session"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// CoordConfig configures Coord. The zero value is 8 workers.
type CoordConfig struct {
	Workers []int // empty means 8
	Rounds  int   // zero means 2,000
	Mode    string
}

// CoordResult is one row: the time from a worker's Arrive to its Release, over
// loopback TCP, with workers that compute nothing.
type CoordResult struct {
	Ranks     int     `json:"ranks"`
	Mode      string  `json:"mode"`
	Transport string  `json:"transport"`
	Rounds    int     `json:"rounds"`
	Median    float64 `json:"median_s"` // from the last Arrive of an update to a Release of it
	P10       float64 `json:"p10_s"`
	P90       float64 `json:"p90_s"`
	CPU       float64 `json:"cpu_s_per_update"` // both ends
}

// Coord measures the control plane alone: a job without shards and with workers that arrive as soon as they are
// released. In SSGD all releases follow the last arrival, so the round trip of the last worker is the cost of an update
// besides computing and moving bytes.
func Coord(ctx context.Context, cfg CoordConfig) ([]CoordResult, error) {
	if len(cfg.Workers) == 0 {
		cfg.Workers = []int{8}
	}
	if cfg.Rounds == 0 {
		cfg.Rounds = 2000
	}
	if cfg.Mode == "" {
		cfg.Mode = "ssgd"
	}
	var out []CoordResult
	for _, n := range cfg.Workers {
		r, err := coordOnce(ctx, n, cfg)
		if err != nil {
			return out, fmt.Errorf("bench: coordinator with %d workers: %w", n, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func coordOnce(ctx context.Context, n int, cfg CoordConfig) (CoordResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	plan, err := modes.Parse(cfg.Mode, n)
	if err != nil {
		return CoordResult{}, err
	}
	tcp := transport.NewTCP(transport.Config{})
	l, err := tcp.Listen("127.0.0.1:0")
	if err != nil {
		return CoordResult{}, err
	}
	c, err := coord.New(coord.Config{Job: "bench", MaxWorkers: n, Plan: plan, Batch: 1, Steps: int64(cfg.Rounds)})
	if err != nil {
		return CoordResult{}, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { transport.Serve(ctx, l, tcp.Config, c.Accept) })

	// A server without shards completes the job.
	hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "bench", Rank: 0, Addr: l.Addr()}
	failed := make(chan error, n+2)
	wg.Go(func() {
		_, err := c.Run(ctx)
		failed <- err
	})
	s, err := session.Join(ctx, session.MemberConfig{Network: tcp, Addr: l.Addr(), Hello: hello})
	if err != nil {
		return CoordResult{}, err
	}
	defer s.Close()

	// Workers record the times of arrival and release by version; the last arrival before a release is its cause.
	arrived := make([][]time.Time, n)
	released := make([][]time.Time, n)
	cpu := cpuTime()
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() {
			hello := hello
			hello.Role, hello.Rank, hello.Params, hello.ModelHash = wire.RoleWorker, i, 1, "bench"
			m, err := session.Join(ctx, session.MemberConfig{Network: tcp, Addr: l.Addr(), Hello: hello,
				Enrol: &session.Enrolment{Data: "none", Samples: 1 << 30}})
			if err == nil {
				err = drive(m, &arrived[i], &released[i])
				m.Close()
			}
			if err != nil {
				failed <- fmt.Errorf("worker %d: %w", i, err)
				cancel()
			}
		})
	}
	workers.Wait()
	used := (cpuTime() - cpu)
	s.Close()
	if err := <-failed; err != nil {
		return CoordResult{}, err
	}
	var times []float64
	for k := range min(len(arrived[0]), cfg.Rounds-1) {
		var last time.Time
		whole := true
		for w := range n {
			if k >= len(arrived[w]) || k+1 >= len(released[w]) {
				whole = false
				break
			}
			if arrived[w][k].After(last) {
				last = arrived[w][k]
			}
		}
		for w := 0; whole && w < n; w++ {
			times = append(times, released[w][k+1].Sub(last).Seconds())
		}
	}
	if len(times) == 0 {
		return CoordResult{}, fmt.Errorf("no round was completed")
	}
	slices.Sort(times)
	at := func(q float64) float64 { return times[int(q*float64(len(times)-1))] }
	return CoordResult{Ranks: n, Mode: plan.String(), Transport: "tcp", Rounds: cfg.Rounds,
		Median: at(.5), P10: at(.1), P90: at(.9), CPU: used / float64(cfg.Rounds)}, nil
}

// drive is a worker without computation.
func drive(m *session.Member, arrived, released *[]time.Time) error {
	w := star.Worker(m.Welcome.Rank)
	if err := session.Say(m, wire.Joined{Worker: w}, nil); err != nil {
		return err
	}
	for step := int64(0); ; step++ {
		r, err := m.Next()
		if err != nil {
			return err
		}
		*released = append(*released, time.Now())
		switch r.Action {
		case wire.Stop:
			return nil
		case wire.Finish:
			if err := session.Say(m, wire.EvalResult{Worker: w, Eval: r.Eval, Version: r.Version}, nil); err != nil {
				return err
			}
			continue
		}
		*arrived = append(*arrived, time.Now())
		if err := session.Say(m, wire.Arrive{Record: star.Record{Worker: w, Step: step, Basis: r.Version, Samples: r.Count}}, nil); err != nil {
			return err
		}
	}
}
