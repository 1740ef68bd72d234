package transport_test

import (
	"context"
	"fmt"
	"time"

	"star/transport"
	"star/transport/wire"
)

// A worker joins, receives its rank, and pushes a slice of a gradient; the shard reads it into its own memory.
func Example() {
	network := new(transport.Pipe) // or transport.NewTCP(transport.Config{…})
	l, err := network.Listen("shard:7070")
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() {
		defer cancel()
		c, _, _, err := transport.Open(ctx, network, l.Addr(), wire.Hello{Service: wire.ServiceShard, Role: wire.RoleWorker, Rank: -1}, nil)
		if err != nil {
			panic(err)
		}
		defer c.Close()
		gradient := []float32{1, -2, 0.5}
		transport.Send(c, wire.Push{Worker: 3, Step: 41, Basis: 40, Samples: 64}, transport.Floats(gradient))
		c.Recv() // until the shard closes
	}()
	transport.Serve(ctx, l, transport.Config{}, func(c transport.Conn, h wire.Hello, _ []byte) {
		defer c.Close()
		transport.Send(c, wire.Welcome{Rank: 3, Workers: 4}, nil)
		f, err := c.Recv()
		if err != nil {
			panic(err)
		}
		m, err := wire.ParsePush(f.Header)
		if err != nil {
			panic(err)
		}
		slice := make([]float32, 3)
		if err := c.ReadPayload(transport.Floats(slice)); err != nil {
			panic(err)
		}
		fmt.Println(f.Kind, m.Worker, m.Step, slice)
	})
	// Output: push 3 41 [1 -2 0.5]
}
