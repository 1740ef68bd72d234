package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"star/allreduce"
	"star/transport"
)

// TuneConfig says what Tune measures. The zero value of all but Command works.
type TuneConfig struct {
	Command []string // see AllReduceConfig

	Ranks      []int    // empty means 2 and 4
	Transports []string // empty means tcp and shm

	// Of allreduce.TuneConfig, where empty means its defaults.
	Sizes      []int64
	Algorithms []allreduce.Algorithm
	Segments   []int

	// What TCP sockets are tried with. Empty means all the congestion controls that
	// this machine allows all users, and buffers of 256 KiB, 1 MiB, 4 MiB and -1, the
	// kernel's own choice.
	Congestion []string
	Buffers    []int

	Rounds int // turns of each kind of sockets. Zero means 3

	// Base is what has been measured before, of other numbers of ranks and links. May be
	// nil.
	Base *allreduce.Model

	Log *slog.Logger // logs each measurement. Nil: no log
}

// Tuned is what Tune has found.
type Tuned struct {
	Sockets []Sockets          `json:"sockets"` // best first
	Choices []allreduce.Sample `json:"choices"` // the best algorithm and segment for ranks, link and size
	Model   *allreduce.Model   `json:"model"`
}

// Sockets is a kind of sockets and how slow it is: 1 is as fast as the best kind for each number
// of ranks and size, in the geometric mean.
type Sockets struct {
	allreduce.TCPOptions
	Slower float64 `json:"slower"`
}

// socketSizes are what kinds of sockets are compared by: short vectors do not fill any buffer.
var socketSizes = []int64{64 << 10, 1 << 20, 16 << 20}

// Tune measures what an allreduce.Model should say on this machine. First all kinds of TCP sockets
// in turns, with vectors of 64 KiB to 16 MiB by the ring and by halving; then, with the best kind, all algorithms
// with all segments and sizes, for each number of ranks and each link. All ranks are processes of
// their own.
func Tune(ctx context.Context, cfg TuneConfig) (*Tuned, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("bench: tune: no command to start a rank")
	}
	if len(cfg.Ranks) == 0 {
		cfg.Ranks = []int{2, 4}
	}
	if len(cfg.Transports) == 0 {
		cfg.Transports = []string{"tcp", "shm"}
	}
	if len(cfg.Congestion) == 0 {
		cfg.Congestion = congestionControls()
	}
	if len(cfg.Buffers) == 0 {
		cfg.Buffers = []int{256 << 10, 1 << 20, 4 << 20, -1}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	out := &Tuned{Model: &allreduce.Model{}}
	if cfg.Base != nil {
		*out.Model = *cfg.Base
	}
	if slices.Contains(cfg.Transports, "tcp") {
		var err error
		if out.Sockets, err = tuneSockets(ctx, cfg); err != nil {
			return nil, err
		}
		best := out.Sockets[0].TCPOptions
		out.Model.TCP = &best
	}
	for _, n := range cfg.Ranks {
		for _, kind := range cfg.Transports {
			cfg.Log.Info("measuring algorithms and segments", "ranks", n, "transport", kind)
			c := RankConfig{Transport: kind, Model: out.Model, Tune: &allreduce.TuneConfig{Sizes: cfg.Sizes, Algorithms: cfg.Algorithms, Segments: cfg.Segments}}
			m, err := tuneTurn(ctx, cfg.Command, n, c)
			if err != nil {
				return nil, fmt.Errorf("bench: tune: %d ranks over %s: %w", n, kind, err)
			}
			out.Model = m
		}
	}
	out.Choices = choices(out.Model)
	return out, nil
}

func tuneTurn(ctx context.Context, command []string, n int, c RankConfig) (*allreduce.Model, error) {
	text, err := ourRanks(ctx, command, n, c)
	if err != nil {
		return nil, err
	}
	m := new(allreduce.Model)
	return m, json.Unmarshal(text, m)
}

// tuneSockets compares kinds of TCP sockets.
func tuneSockets(ctx context.Context, cfg TuneConfig) ([]Sockets, error) {
	var kinds []Sockets
	for _, c := range cfg.Congestion {
		for _, b := range cfg.Buffers {
			kinds = append(kinds, Sockets{TCPOptions: allreduce.TCPOptions{Congestion: c, SendBuffer: b, ReceiveBuffer: b}})
		}
	}
	if len(kinds) == 1 {
		kinds[0].Slower = 1
		return kinds, nil
	}
	type place struct {
		ranks int
		bytes int64
	}
	times := make([]map[place][]float64, len(kinds)) // by kind: of all turns
	for i := range times {
		times[i] = map[place][]float64{}
	}
	for round := range cmp.Or(cfg.Rounds, 3) {
		for _, n := range cfg.Ranks {
			cfg.Log.Info("measuring kinds of sockets", "round", round+1, "ranks", n, "kinds", len(kinds))
			for i, k := range kinds {
				c := RankConfig{Transport: "tcp", Model: &allreduce.Model{TCP: &k.TCPOptions}, Congestion: k.Congestion}
				c.Tune = &allreduce.TuneConfig{Sizes: socketSizes, Algorithms: []allreduce.Algorithm{allreduce.AlgorithmHalving, allreduce.AlgorithmRing}, Segments: []int{512 << 10}}
				m, err := tuneTurn(ctx, cfg.Command, n, c)
				if err != nil {
					return nil, fmt.Errorf("bench: tune: %d ranks with %s and buffers of %d bytes: %w", n, cmp.Or(k.Congestion, "the kernel's congestion control"), k.SendBuffer, err)
				}
				for _, s := range choices(m) {
					p := place{n, s.Bytes}
					times[i][p] = append(times[i][p], s.Seconds)
				}
			}
		}
	}
	best := map[place]float64{}
	for _, t := range times {
		for p, ts := range t {
			if x := median(ts); best[p] == 0 || x < best[p] {
				best[p] = x
			}
		}
	}
	for i := range kinds {
		sum := 0.0
		for p, ts := range times[i] {
			sum += math.Log(median(ts) / best[p])
		}
		kinds[i].Slower = math.Exp(sum / float64(len(times[i])))
	}
	slices.SortStableFunc(kinds, func(a, b Sockets) int { return cmp.Compare(a.Slower, b.Slower) })
	return kinds, nil
}

// choices are the fastest samples for each number of ranks, link and size, in this order.
func choices(m *allreduce.Model) []allreduce.Sample {
	type place struct {
		ranks int
		kind  string
		bytes int64
	}
	best := map[place]allreduce.Sample{}
	for _, s := range m.Samples {
		p := place{s.Ranks, s.Transport, s.Bytes}
		if b, ok := best[p]; !ok || s.Seconds < b.Seconds {
			best[p] = s
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b allreduce.Sample) int {
		return cmp.Or(cmp.Compare(a.Ranks, b.Ranks), strings.Compare(a.Transport, b.Transport), cmp.Compare(a.Bytes, b.Bytes))
	})
}

// congestionControls are what this process may choose, or only "", the default of
// transport.Config, where the system does not say.
func congestionControls() []string {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	var names []string
	for _, name := range strings.Fields(string(text)) {
		if l, err := transport.NewTCP(transport.Config{CongestionControl: name}).Listen("127.0.0.1:0"); err == nil {
			l.Close()
			names = append(names, name)
		}
	}
	if names == nil {
		return []string{""}
	}
	return names
}
