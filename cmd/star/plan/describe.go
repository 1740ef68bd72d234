package plan

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	nouns "star"
	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/runlog"
)

// described has a job's demands, from the log of a run.
type described struct {
	name    string
	train   runlog.Train
	skipped map[nouns.Worker]int
	cpu     []float64                  // of every record
	in, out map[nouns.Worker][]float64 // bytes per second
	active  []time.Duration
	whole   []time.Duration // iterations
	gpu     []float64       // share of the time
	gpuMem  float64         // most, as a share
	fires   int
	fired   int // gradients in them
}

// warmUp is how many iterations of each worker do not count: the first ones are not like the others.
const warmUp = 2

// observe processes a line.
func (d *described) observe(l runlog.Line) {
	switch e := l.Entry.(type) {
	case runlog.Start:
		d.name = e.Job
	case runlog.Train:
		d.train = e
	case runlog.Fire:
		if len(e.Workers) > 0 {
			d.fires++
			d.fired += len(e.Workers)
		}
	case runlog.Record:
		it := e.Iteration()
		if d.skipped == nil {
			d.skipped, d.in, d.out = map[nouns.Worker]int{}, map[nouns.Worker][]float64{}, map[nouns.Worker][]float64{}
		}
		if d.skipped[e.Worker] < warmUp || it <= 0 {
			d.skipped[e.Worker]++
			return
		}
		s := it.Seconds()
		add := func(to []float64, v float64) []float64 {
			if v >= 0 && !math.IsInf(v, 1) {
				to = append(to, v)
			}
			return to
		}
		d.cpu = add(d.cpu, e.CPU)
		d.in[e.Worker] = add(d.in[e.Worker], e.NetIn/s)
		d.out[e.Worker] = add(d.out[e.Worker], e.NetOut/s)
		d.whole = append(d.whole, it)
		d.active = append(d.active, max(0, e.Load+e.Compute-e.Injected))
		if use, ok := e.Telemetry.Get(nouns.GPUUse); ok {
			d.gpu = add(d.gpu, min(use, 1))
		}
		if m, ok := e.Telemetry.Get(nouns.GPUMemory); ok {
			d.gpuMem = max(d.gpuMem, m)
		}
	}
}

// sum adds up what the workers have in the typical: they may differ.
func sum(rates map[nouns.Worker][]float64) (s float64) {
	for _, w := range slices.Sorted(maps.Keys(rates)) {
		s += cli.Typical(rates[w])
	}
	return s
}

// leastGPU is the use of a GPU below which it counts as another job's.
const leastGPU = 0.01

// yaml is the job for a file of jobs.
func (d *described) yaml(w io.Writer) error {
	n := len(d.in) // the ranks that worked: train.Workers counts those that --max-workers allows
	if len(d.whole) == 0 {
		return fmt.Errorf("job %s: the log has no iteration after the first %d of each worker: let it run longer", d.name, warmUp)
	}
	it := cli.Typical(d.whole)
	active := min(cli.Typical(d.active), it)
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	rate := func(x float64) string { return number(x/1e6) + "MB/s" }
	short := func(t time.Duration) string { return t.Round(10 * time.Microsecond).String() }
	var b strings.Builder
	fmt.Fprintf(&b, "  # %d iterations of %d workers, %s each; memory is not measured\n", len(d.whole), n, short(it))
	fmt.Fprintf(&b, "  - name: %s\n", strconv.Quote(d.name))
	if s := d.train.Shards; s > 0 {
		quorum := 1
		if d.fires > 0 {
			quorum = max(1, int(math.Round(float64(d.fired)/float64(d.fires))))
		}
		size := inventory.Size{Params: 4 * float64(d.train.Params), Iteration: it, Servers: s, Workers: n, Quorum: quorum}
		server, _ := size.Tasks()
		in, out := sum(d.out)/float64(s), sum(d.in)/float64(s) // what workers send servers get
		busy := min(it, time.Duration(server.Demand.CPU*float64(it)))
		fmt.Fprintf(&b, "    servers: {count: %d, cpu: %s, net-in: %s, net-out: %s, memory: %.0f, state: %.0f, active: %s, idle: %s}\n",
			s, number(server.Demand.CPU), rate(in), rate(out), server.Demand.Memory, server.State, short(busy), short(it-busy))
	}
	fmt.Fprintf(&b, "    workers: {count: %d, cpu: %s, net-in: %s, net-out: %s, active: %s, idle: %s", n, number(cli.Typical(d.cpu)), rate(sum(d.in)/float64(n)), rate(sum(d.out)/float64(n)), short(active), short(it-active))
	if use := cli.Typical(d.gpu); use >= leastGPU {
		fmt.Fprintf(&b, ", gpu: %s, gpu-active: %s", number(use), short(time.Duration(use*float64(it))))
	}
	b.WriteString("}\n")
	if d.gpuMem > 0 && cli.Typical(d.gpu) >= leastGPU {
		fmt.Fprintf(&b, "    # of its GPU's memory %s was taken at most: give workers gpu-memory\n", percent(d.gpuMem))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describe prints the jobs of run logs as a file of jobs.
func describe(w io.Writer, files []string) error {
	var text strings.Builder
	text.WriteString("jobs:\n")
	from := map[string]string{}
	for _, name := range files {
		d := new(described)
		if err := cli.ReadRunLog(name, "the demands are those of the other iterations", d.observe); err != nil {
			return err
		}
		if other, ok := from[d.name]; ok {
			return fmt.Errorf("%s and %s are both of a job %s: describe one of them, or run them with --job", other, name, d.name)
		}
		from[d.name] = name
		if err := d.yaml(&text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
