package allreduce_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"sync"

	"star/allreduce"
)

// Three ranks, which would be three processes, average their gradients.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0") // in real life rank 0 listens at Rendezvous itself
	if err != nil {
		log.Fatal(err)
	}
	rank := func(rank int) []float32 {
		cfg := allreduce.Config{Rank: rank, Size: 3, Rendezvous: l.Addr().String(), Log: slog.New(slog.DiscardHandler)}
		if rank == 0 {
			cfg.Listener = l
		}
		g, err := allreduce.Dial(context.Background(), cfg)
		if err != nil {
			log.Fatal(err)
		}
		defer g.Close()
		gradient := []float32{float32(rank), 10}
		if err := g.AllReduce(context.Background(), allreduce.Mean, gradient); err != nil {
			log.Fatal(err)
		}
		return gradient
	}
	results := make([][]float32, 3)
	var wg sync.WaitGroup
	for r := range results {
		wg.Go(func() { results[r] = rank(r) })
	}
	wg.Wait()
	fmt.Println(results)
	// Output: [[1 10] [1 10] [1 10]]
}
