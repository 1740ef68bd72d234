package allreduce_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"star/allreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// form makes a group of n ranks in this process; set changes a rank's settings.
func form(t testing.TB, n int, set func(*allreduce.Config)) []*allreduce.Group {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := make([]*allreduce.Group, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		cfg := allreduce.Config{Rank: r, Size: n, Rendezvous: l.Addr().String(), DialTimeout: 20 * time.Second, Log: slog.New(slog.DiscardHandler)}
		if r == 0 {
			cfg.Listener = l
		}
		if set != nil {
			set(&cfg)
		}
		wg.Go(func() { groups[r], errs[r] = allreduce.Dial(context.Background(), cfg) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, g := range groups {
			if g != nil {
				g.Close()
			}
		}
	})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return groups
}

// all runs f on all ranks at once and returns their errors.
func all(groups []*allreduce.Group, f func(g *allreduce.Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() { errs[r] = f(g) })
	}
	wg.Wait()
	return errs
}

func firstOf(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

var transports = []string{"tcp", "unix", "shm"}

func TestAllReduce(t *testing.T) {
	for _, kind := range transports {
		for _, n := range []int{1, 2, 3, 4, 7} {
			for _, a := range []allreduce.Algorithm{allreduce.AlgorithmAuto, allreduce.AlgorithmRing, allreduce.AlgorithmDoubling,
				allreduce.AlgorithmHalving, allreduce.AlgorithmTree, allreduce.AlgorithmDoubleTree} {
				t.Run(fmt.Sprintf("%s/%d/%v", kind, n, a), func(t *testing.T) {
					groups := form(t, n, func(c *allreduce.Config) { c.Algorithm, c.Transport = a, kind })
					for _, count := range []int{0, 1, 5, 1000, 300_001} {
						err := firstOf(all(groups, func(g *allreduce.Group) error {
							v := make([]float32, count)
							for i := range v {
								v[i] = float32(i%1000 + g.Rank())
							}
							if err := g.AllReduce(t.Context(), allreduce.Sum, v); err != nil {
								return err
							}
							for i, x := range v {
								if want := float32(n*(i%1000) + n*(n-1)/2); x != want {
									return fmt.Errorf("rank %d: element %d of %d is %v, want %v", g.Rank(), i, count, x, want)
								}
							}
							return nil
						}))
						if err != nil {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}
