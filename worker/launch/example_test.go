package launch_test

import (
	"context"
	"fmt"
	"os"

	"star/internal/ports"
	"star/job"
	"star/server"
	"star/train/data"
	"star/train/net"
	"star/worker"
	"star/worker/launch"
)

// A program takes the settings of a worker from its environment, as star run, torchrun, Slurm or MPI set it, and adds
// what is trained. Main does the same, and ends the process with the worker's exit code.
func ExampleWorker() {
	ctx := context.Background()
	coordinator, ended := serve(ctx)
	// os.Environ()
	c, err := launch.Worker([]string{"STAR_COORDINATOR=" + coordinator, "STAR_RANK=0", "STAR_LOG_LEVEL=error"})
	if err != nil {
		fmt.Println(err)
		return
	}
	digits, test, err := data.Open("digits:n=640,test=100", data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	model, err := net.Build(net.Spec{Name: "softmax", Input: digits.Input(), Seed: c.Seed})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	c.Model, c.Data, c.Test = model, digits, test
	c.Joined = func(rank, workers int) { fmt.Println("worker", rank, "of", workers) }
	err = worker.Run(ctx, c)
	fmt.Println("worker:", err, job.ExitCode(err))
	fmt.Println("server:", <-ended)

	_, err = launch.Worker([]string{"STAR_JOIN_TIMEOUT=soon"})
	fmt.Println(err, job.ExitCode(err))
	// Output:
	// worker 0 of 1
	// worker: <nil> 0
	// server: <nil>
	// STAR_JOIN_TIMEOUT: "soon" is not a duration; write a unit, such as 500ms, 30s or 5m 2
}

// serve runs the server of a job of one worker and one epoch in this process, and returns its address.
func serve(ctx context.Context) (addr string, ended <-chan error) {
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		panic(err)
	}
	out, err := os.MkdirTemp("", "star")
	if err != nil {
		panic(err)
	}
	errs := make(chan error, 1)
	go func() {
		err := server.Run(ctx, server.Config{
			Job:      job.Job{Workers: 1, Network: job.Network{Listen: addr, Coordinator: addr}, Files: job.Files{Out: out}},
			Shards:   1,
			Training: server.Training{Epochs: 1},
		})
		os.RemoveAll(out)
		errs <- err
	}()
	return addr, errs
}
