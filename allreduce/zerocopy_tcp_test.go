package allreduce_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"star/allreduce"
	"star/internal/vector"
)

// Over links that are lent memory, no rank receives what another rank writes to its vector after an operation.
func TestVectorsAreFreeAfterAnOperation(t *testing.T) {
	for _, kind := range []string{"lent", "lent-shm"} {
		t.Run(kind, func(t *testing.T) { freeAfterAnOperation(t, kind) })
	}
}

func freeAfterAnOperation(t *testing.T, kind string) {
	for n := 2; n <= 5; n++ {
		if testing.Short() && n > 3 { // the race detector looks at each element of each rank
			break
		}
		for _, a := range []allreduce.Algorithm{allreduce.AlgorithmRing, allreduce.AlgorithmDoubling, allreduce.AlgorithmHalving, allreduce.AlgorithmTree, allreduce.AlgorithmDoubleTree} {
			groups := form(t, n, func(c *allreduce.Config) { c.Algorithm = a; over(c, kind) })
			err := firstOf(all(groups, func(g *allreduce.Group) error {
				whole := make([]int32, 600_000)
				for round := range 8 {
					v := whole[round*17:][:400_000+1000*round] // not where pages begin
					for i := range v {
						v[i] = int32(g.Rank() + i + round)
					}
					if err := allreduce.AllReduce(t.Context(), g, allreduce.Sum, v); err != nil {
						return err
					}
					if round%3 == g.Rank()%3 {
						time.Sleep(time.Millisecond) // the others go on
					}
					for i, x := range v {
						if want := int32(n*(n-1)/2 + n*(i+round)); x != want {
							return fmt.Errorf("%v: rank %d of %d, round %d: element %d is %d, want %d", a, g.Rank(), n, round, i, x, want)
						}
						v[i] = -1
					}
				}
				return nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				g.Close()
			}
		}
	}
}

// The same after an operation that has failed: a rank that receives late what such a rank has sent gets the original
// values.
func TestVectorsAreFreeAfterAFailure(t *testing.T) {
	for _, kind := range []string{"lent", "lent-shm"} {
		t.Run(kind, func(t *testing.T) { freeAfterAFailure(t, kind, make([]int32, 300_000)) })
		t.Run(kind+", huge pages", func(t *testing.T) { freeAfterAFailure(t, kind, vector.Make[int32](1_300_000)) })
	}
}

func freeAfterAFailure(t *testing.T, kind string, mine []int32) {
	for _, a := range []allreduce.Algorithm{allreduce.AlgorithmRing, allreduce.AlgorithmHalving, allreduce.AlgorithmTree} {
		groups := form(t, 2, func(c *allreduce.Config) { c.Algorithm = a; over(c, kind) })
		// Rank 0 gives up while rank 1, which is late, has received nothing.
		for i := range mine {
			mine[i] = 2
		}
		var err error
		var e *allreduce.Error
		// on a busy machine it may be over before it begins
		for end := time.Now().Add(time.Minute); !errors.As(err, &e) && time.Now().Before(end); {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err = allreduce.AllReduce(ctx, groups[0], allreduce.Sum, mine)
			cancel()
		}
		if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v: rank 0: %v", a, err)
		}
		for i := range mine {
			mine[i] = 1000
		}
		theirs := make([]int32, len(mine))
		for i := range theirs {
			theirs[i] = 1
		}
		if err := allreduce.AllReduce(t.Context(), groups[1], allreduce.Sum, theirs); err == nil {
			t.Errorf("%v: rank 1 has a result", a)
		}
		seen := map[int32]int{}
		for _, x := range theirs {
			seen[x]++
		}
		for x := range seen {
			if x != 1 && x != 2 && x != 3 {
				t.Errorf("%v: rank 1 has received what rank 0 has written after its failure: %v", a, seen)
				break
			}
		}
		for _, g := range groups {
			g.Close()
		}
	}
}
