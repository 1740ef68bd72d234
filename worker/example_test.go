package worker_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"star/internal/ports"
	"star/job"
	"star/runlog"
	"star/server"
	"star/train"
	"star/train/data"
	"star/train/net"
	"star/worker"
)

// A worker trains a built-in model on drawn digits until the job is over. A train.Model and train.Data of the caller's
// own take their places. Of the job the worker knows only the address of the coordinator.
func ExampleRun() {
	ctx := context.Background()
	coordinator, ended := serve(ctx, 200) // star-ps --steps 200

	digits, test, err := data.Open("digits:n=2000,test=100", data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	model, err := net.Build(net.Spec{Name: "mlp", Input: digits.Input(), Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	err = worker.Run(ctx, worker.Config{
		Job:   job.Job{Network: job.Network{Coordinator: coordinator}},
		Model: model, Data: digits, Test: test,
	})
	fmt.Println("worker:", err)

	result := <-ended
	fmt.Println(result.Updates, "updates of", result.Samples, "samples; more than 80 % right:", result.TestAccuracy > 0.8)
	// Output:
	// worker: <nil>
	// 200 updates of 6400 samples; more than 80 % right: true
}

// A session leaves the loop to the caller: each step is a batch to compute the gradient of. Here two parameters learn
// whether a number is positive.
func ExampleJoin() {
	ctx := context.Background()
	coordinator, ended := serve(ctx, 100)

	params := make([]float32, 2)
	score := func(x float32) float64 { return float64(params[0]*x + params[1]) }
	s, err := worker.Join(ctx, worker.Config{
		Job:  job.Job{Network: job.Network{Coordinator: coordinator}},
		Name: "sign", Data: numbers{}, Test: numbers{},
	}, worker.Vectors{Params: params, Layout: []train.TensorSpec{{Name: "slope", Shape: []int{1}}, {Name: "bias", Shape: []int{1}, Offset: 1}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	for {
		step, err := s.Next()
		if err == io.EOF {
			break // the job is over
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		var r train.Result
		clear(step.Gradient)
		for i, x := range step.Batch.X {
			positive := 1 / (1 + math.Exp(-score(x)))
			y := float64(step.Batch.Y[i])
			r.LossSum -= y*math.Log(positive) + (1-y)*math.Log(1-positive)
			if (positive > 0.5) == (y == 1) {
				r.Correct++
			}
			r.Count++
			if !step.Evaluation {
				slope := float32(positive-y) / float32(step.Batch.Samples)
				step.Gradient[0] += slope * x
				step.Gradient[1] += slope
			}
		}
		if step.Evaluation {
			s.Evaluated(r)
		} else {
			s.Exchange(r.LossSum / float64(r.Count))
		}
	}
	result := <-ended
	fmt.Println("worker", s.Rank, "of", s.Workers, "used", result.Samples, "samples; more than 95 % right:", result.TestAccuracy > 0.95)
	// Output:
	// worker 0 of 1 used 3200 samples; more than 95 % right: true
}

// numbers are 200 numbers from -1 to 1, of class 1 if they are positive.
type numbers struct{}

func (numbers) Len() int { return 200 }

func (numbers) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Samples = b.X[:0], b.Y[:0], len(indices)
	for _, i := range indices {
		b.X, b.Y = append(b.X, (float32(i)-99.5)/100), append(b.Y, int32(i/100))
	}
	return nil
}

// serve runs the server of a job of one worker in this process, and returns its address. ended gets the result of the
// job.
func serve(ctx context.Context, steps int64) (addr string, ended <-chan runlog.Result) {
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		panic(err)
	}
	out, err := os.MkdirTemp("", "star")
	if err != nil {
		panic(err)
	}
	result := make(chan runlog.Result, 1)
	go func() {
		defer os.RemoveAll(out)
		err := server.Run(ctx, server.Config{
			Job:      job.Job{Workers: 1, Network: job.Network{Listen: addr, Coordinator: addr}, Files: job.Files{Out: out}},
			Shards:   1,
			Training: server.Training{Steps: steps},
			Report: func(r runlog.Result) error {
				result <- r
				return nil
			},
		})
		if err != nil {
			panic(err)
		}
	}()
	return addr, result
}
