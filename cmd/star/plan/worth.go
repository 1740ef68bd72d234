package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"star"
	"star/cmd/internal/cli"
	"star/modes"
	"star/runlog"
)

// worthOf reports whether the workers of a recorded job are faster together than the fastest of them alone: by the
// means of each worker's last iterations.
func worthOf(out io.Writer, path string, asJSON bool) error {
	f, err := cli.OpenRun(path)
	if err != nil {
		return err
	}
	defer f.Close()
	last := map[star.Worker][]star.Record{}
	read, err := runlog.Read(f, f.Name(), func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Record:
			of := append(last[e.Worker], e.Record)
			last[e.Worker] = of[max(0, len(of)-lastIterations):]
		case runlog.Leave:
			delete(last, e.Worker)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var own, iteration []time.Duration
	var samples []int
	for _, of := range last {
		if len(of) < 2 {
			continue
		}
		var o, i time.Duration
		n := 0
		for _, r := range of {
			o, i, n = o+r.Own(), i+r.Iteration(), n+r.Samples
		}
		own, iteration, samples = append(own, o), append(iteration, i), append(samples, n)
	}
	s := modes.ScalingOf(own, iteration, samples)
	if s.Ideal == 0 {
		return &runlog.Error{Name: f.Name(), Line: 1, Err: fmt.Errorf("no worker has two iterations: there is nothing to compare")}
	}
	if asJSON {
		return json.NewEncoder(out).Encode(struct {
			Workers    int     `json:"workers"`
			All        float64 `json:"samples_per_s"`
			Alone      float64 `json:"fastest_alone_samples_per_s"`
			Efficiency float64 `json:"scaling_efficiency"`
			Worth      bool    `json:"worth"`

			Missing runlog.Missing `json:"missing,omitzero"`
		}{len(own), s.All, s.Alone, s.Efficiency(), s.Worth(), read.Missing})
	}
	answer := fmt.Sprintf("the answer is of the last iterations that it has, at most %d of each worker", lastIterations)
	if lacks := read.Missing.Means(answer); lacks != "" {
		fmt.Fprintln(out, lacks)
	}
	verdict := fmt.Sprintf("together they are %.1f times as fast", s.All/s.Alone)
	if !s.Worth() {
		verdict = fmt.Sprintf("one alone would be %.1f times as fast: fewer workers, larger batches, compression or a faster link", s.Alone/s.All)
	}
	_, err = fmt.Fprintf(out, "%d workers make %.0f samples/s, the fastest of them alone would make %.0f: %s\nscaling efficiency %.0f %%\n", len(own), s.All, s.Alone, verdict, 100*s.Efficiency())
	return err
}

// lastIterations of each worker are looked at.
const lastIterations = 50
