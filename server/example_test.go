package server_test

import (
	"context"
	"fmt"
	"os"

	"star/internal/ports"
	"star/job"
	"star/runlog"
	"star/server"
	"star/train/data"
	"star/train/net"
	"star/worker"
)

// The server of rank 0 hosts the shards of a job and coordinates it. The first worker says what is trained; an update
// takes the gradients of both workers.
func ExampleRun() {
	ctx := context.Background()
	out, err := os.MkdirTemp("", "star") // for the run log and the checkpoint
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(out)
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		fmt.Println(err)
		return
	}
	network := job.Network{Listen: addr, Coordinator: addr}

	errs := make(chan error)
	for range 2 {
		go func() { errs <- work(ctx, addr) }() // star-worker
	}
	err = server.Run(ctx, server.Config{
		Job:      job.Job{Workers: 2, Network: network, Files: job.Files{Out: out}},
		Shards:   2,
		Training: server.Training{Epochs: 1},
		Policy:   server.Policy{Mode: "ssgd"},
		Report: func(r runlog.Result) error {
			fmt.Println(r.Workers, "workers,", r.Shards, "shards:", r.Updates, "updates of", r.Samples, "samples")
			return nil
		},
	})
	fmt.Println("server:", err)
	fmt.Println("workers:", <-errs, <-errs)
	// Output:
	// 2 workers, 2 shards: 10 updates of 640 samples
	// server: <nil>
	// workers: <nil> <nil>
}

// work is a worker of the job. The server chooses its rank.
func work(ctx context.Context, coordinator string) error {
	digits, _, err := data.Open("digits:n=640,test=100", data.Options{})
	if err != nil {
		return err
	}
	model, err := net.Build(net.Spec{Name: "softmax", Input: digits.Input()})
	if err != nil {
		return err
	}
	defer model.Close()
	return worker.Run(ctx, worker.Config{
		Job:   job.Job{Rank: -1, Network: job.Network{Coordinator: coordinator}},
		Model: model, Data: digits,
	})
}
