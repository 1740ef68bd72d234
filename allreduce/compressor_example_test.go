package allreduce_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"star/allreduce"
)

// Two ranks add up gradients, sending only the largest value of each. The compressor keeps the remaining values and
// sends them later.
func ExampleCompressor() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	train := func(rank int) (sums [][]float32, err error) {
		ctx := context.Background()
		g, err := allreduce.Dial(ctx, allreduce.Config{Rank: rank, Size: 2, Rendezvous: l.Addr().String(), Listener: map[int]net.Listener{0: l}[rank], Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		defer g.Close()
		c, err := allreduce.NewCompressor(allreduce.CompressorConfig{Len: 3, Codec: "topk=1"})
		if err != nil {
			return nil, err
		}
		if _, err := c.Join(ctx, g); err != nil {
			return nil, err
		}
		for range 3 {
			grad := []float32{1, 2, 3}
			if err := c.AllReduce(ctx, grad, 0); err != nil {
				return nil, err
			}
			c.Keep()
			sums = append(sums, grad)
		}
		return sums, g.Barrier(ctx)
	}
	var wg sync.WaitGroup
	wg.Go(func() { train(1) })
	fmt.Println(train(0))
	wg.Wait()
	// Output: [[0 0 6] [0 8 0] [0 0 12]] <nil>
}
