package workload

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"gonum.org/v1/gonum/stat/distuv"

	"star/sched"
)

// GenerateOptions configure Generate.
type GenerateOptions struct {
	Like       string // one of Likes
	Jobs       int
	Every      float64 // mean time between submissions, s; 0: as in the trace Like
	Slack      float64 // mean time from submission to deadline, in durations
	Spread     float64 // relative spread of Slack; ElasticFlow has .5
	BestEffort float64 // fraction of jobs without a deadline
	Rates      Throughputs
	Random     func() float64 // in [0, 1)
	// Compat generates exactly the jobs that ElasticFlow's generator makes of Seed, without Random. It needs Like
	// elasticflow, and Rates.
	Compat bool
	Seed   uint64
}

// like describes the jobs of a cluster, as far as studies do.
type like struct {
	every    float64   // mean time between submissions, s
	shares   []float64 // fractions of jobs with 1, 2, 4, … GPUs; the rest has twice as many GPUs as the last
	duration func(random func() float64) float64
}

// likes are the traces that Generate imitates. Durations of helios and philly are lognormal (an assumption, the studies
// do not say), independent of the GPUs, and at most as long as the longest of the trace; so the spread follows from the
// median and the mean.
//
//   - elasticflow: one of five durations is between 5.3 and 167 hours, the others are between 10 minutes and 5.3 hours,
//     uniform in the logarithm; 83 % of the jobs have one GPU; 3, 3, 10 and 1 % have 2, 4, 8 and 16. With Rates all models
//     that run on up to 16 are equally likely, whatever the GPUs. Source: Gu et al., ElasticFlow, ASPLOS 2023, the
//     generator of its simulator; TestGenerateElasticFlow compares all 1,800 jobs of five of its traces.
//   - helios: 1.58 million GPU jobs in six months, durations with median 206 s and mean 6,652 s, at most 50 days; 3.72
//     GPUs
//     on average, and more than half of the jobs have one. Source: Hu et al., Characterization and Prediction of Deep
//     Learning Workloads, SC 2021. Assumed: the fractions of 2, 4, … 64 GPUs (there are jobs with up to 2,048), which give
//     that average.
//   - philly: 103,467 jobs in 83 days, durations with mean 28,329 s, at most 60 days; 1.75 GPUs on average. Source: the
//     comparison in the same study. Assumed: a median of 13 minutes, with which .9 % of the jobs take more than a week
//     (Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, ATC 2019, have .5 %), and the fractions.
//   - allox: see alloxJobs.
var likes = map[string]like{
	"elasticflow": {900, []float64{.83, .03, .03, .10}, func(random func() float64) float64 {
		low := 1.
		if random() >= .8 {
			low = 2.5
		}
		return 60 * math.Pow(10, low+1.5*random())
	}},
	"helios": {10, []float64{.55, .15, .10, .1505, .03, .0145}, lognormal(206, 6652, 50*86400)},
	"philly": {70, []float64{.841, .05, .05, .045, .012}, lognormal(780, 28329, 60*86400)},
	"allox":  {every: 8},
}

// Likes lists the names of likes.
func Likes() []string { return slices.Sorted(maps.Keys(likes)) }

// lognormal returns a function that draws durations with this median and mean, in s, up to most.
func lognormal(median, mean, most float64) func(func() float64) float64 {
	low, high := 0., 10.
	for range 50 {
		s := (low + high) / 2
		at := math.Log(most/median) / s
		if median*math.Exp(s*s/2)*distuv.UnitNormal.CDF(at-s)+most*distuv.UnitNormal.CDF(-at) < mean {
			low = s
		} else {
			high = s
		}
	}
	return func(random func() float64) float64 {
		return min(most, median*math.Exp(low*distuv.UnitNormal.Quantile(random())))
	}
}

// alloxJobs makes jobs for two kinds of machines: each takes 20 to 300 s without a GPU, and is .8 to 10 times faster
// with one, both uniform; the standard deviation of estimates is 10 %. Five jobs are submitted at a time, for ten users
// in turn. These are the numbers of the 600 jobs of the trace of TestAlloX, which were made for AlloX's simulator;
// AlloX (Le et al., EuroSys 2020) does not publish its own.
func alloxJobs(n int, every float64, from streams) []*sched.Job {
	random := from.duration
	off := func() float64 { return max(-.9, .1*math.Sqrt2*math.Erfinv(2*random()-1)) }
	now, jobs := 0., make([]*sched.Job, n)
	for i := range jobs {
		if i > 0 && i%5 == 0 {
			now += exponential(from.arrival, 5*every)
		}
		plain := math.Round(20 + 280*random())
		gpu := max(1, math.Round(plain/(.8+9.2*random())))
		jobs[i] = &sched.Job{ID: strconv.Itoa(i + 1), Submit: math.Round(now), GPUs: 1, Duration: gpu, Deadline: never, User: "queue" + strconv.Itoa(i%10),
			Either: &sched.Either{Duration: [2]float64{gpu, plain}, Error: [2]float64{off(), off()}}}
	}
	return jobs
}

// streams are the sources of numbers in [0, 1) from which jobs are made.
type streams struct{ arrival, duration, gpus, deadline, model func() float64 }

// originals lists the models and batch sizes of ElasticFlow's generator, in its order.
var originals = []throughput{{"resnet50", 64}, {"resnet50", 128}, {"resnet50", 256}, {"vgg16", 64}, {"vgg16", 128}, {"vgg16", 256}, {"inception3", 64}, {"inception3", 128},
	{"gpt2", 128}, {"gpt2", 256}, {"bert", 128}, {"bert", 64}, {"deepspeech2", 64}, {"deepspeech2", 32}}

// streams returns one stream for all, or the five streams of ElasticFlow's generator. Its stream of deadlines is not
// seeded; here it has the seed of the traces that TestGenerateElasticFlow compares, which were made with a seed.
func (g GenerateOptions) streams() streams {
	if !g.Compat {
		return streams{g.Random, g.Random, g.Random, g.Random, g.Random}
	}
	stream := func(i uint64) func() float64 { return newTwister(g.Seed + i).float64 }
	n := len(originals)
	choice := newTwister(g.Seed)
	model := func() float64 { return (float64(choice.below(uint32(n))) + .5) / float64(n) }
	return streams{stream(1), stream(2), stream(3), stream(4), model}
}

// runs reports whether a model runs on that many GPUs, with at least a sample on each.
func (g GenerateOptions) runs(m throughput, gpus int) bool {
	r, level := g.Rates[m], bits.Len(uint(gpus))-1
	return level < len(r) && r[level] > 0 && m.batch >= gpus
}

// models returns the models that jobs may use.
func (g GenerateOptions) models() ([]throughput, error) {
	if g.Compat {
		for _, m := range originals {
			for gpus := 1; gpus <= 16; gpus *= 2 {
				if !g.runs(m, gpus) {
					return nil, Bad("no iterations/s of model %s with batch size %d on %d GPUs, which ElasticFlow's generator uses: give its tables for A100", m.model, m.batch, gpus)
				}
			}
		}
		return originals, nil
	}
	all := slices.SortedFunc(maps.Keys(g.Rates), func(a, b throughput) int { return cmp.Or(cmp.Compare(a.model, b.model), a.batch-b.batch) })
	if g.Like == "elasticflow" {
		most := 1 << len(likes[g.Like].shares)
		if some := slices.DeleteFunc(slices.Clone(all), func(m throughput) bool { return !g.runs(m, most) }); len(some) > 0 {
			return some, nil
		}
	}
	return all, nil
}

// model selects, by at in [0, 1), a model that can run on a job's GPUs, or on half of them, …, if there is one. It
// returns the model's rate on these GPUs, iterations/s.
func (g GenerateOptions) model(j *sched.Job, models []throughput, at float64) (rate float64) {
	for ; j.GPUs > 0; j.GPUs /= 2 {
		can := slices.DeleteFunc(slices.Clone(models), func(m throughput) bool { return !g.runs(m, j.GPUs) })
		if len(can) > 0 {
			m := can[int(at*float64(len(can)))]
			j.Model, j.Batch, j.Rates, j.Batches = m.model, m.batch, g.Rates[m], g.Rates.batches(m.model)
			return j.Rates[bits.Len(uint(j.GPUs))-1]
		}
	}
	j.GPUs = 1
	return 0
}

// Generate makes jobs that are submitted as a Poisson process, without daily variation. Times are whole seconds. With
// Rates each job has a model that can run on its GPUs. It returns an error if Compat needs a model that Rates lack.
func Generate(g GenerateOptions) ([]*sched.Job, error) {
	models, err := g.models()
	if err != nil {
		return nil, err
	}
	from, of := g.streams(), likes[g.Like]
	every := cmp.Or(g.Every, of.every)
	if g.Like == "allox" {
		return alloxJobs(g.Jobs, every, from), nil
	}
	whole, up, first := math.Round, math.Ceil, 1
	if g.Compat { // it truncates, and its first job is job 0, at 0 s
		whole, up, first = math.Trunc, math.Trunc, 0
	}
	now, jobs := 0., make([]*sched.Job, g.Jobs)
	for i := range jobs {
		if i+first > 0 {
			now += exponential(from.arrival, every)
		}
		j := &sched.Job{ID: strconv.Itoa(i + first), Submit: whole(now), GPUs: 1}
		jobs[i] = j
		took := of.duration(from.duration)
		if !g.Compat {
			took = max(1, math.Round(took))
		}
		j.Duration = whole(took)
		share := from.gpus()
		for _, p := range of.shares {
			if share -= p; share < 0 {
				break
			}
			j.GPUs *= 2
		}
		slack, effort, model := g.Slack*(1-g.Spread+2*g.Spread*from.deadline()), from.deadline(), from.model()
		if j.Deadline = j.Submit + whole(slack*took); effort < g.BestEffort {
			j.BestEffort, j.Deadline = true, never
		}
		if len(models) > 0 {
			j.Iterations = up(took * g.model(j, models, model))
		}
	}
	return jobs, nil
}

// exponential draws the time until the next event of a Poisson process with this mean time between events.
func exponential(random func() float64, mean float64) float64 { return -math.Log(1-random()) * mean }

// WriteElasticFlow writes jobs in ElasticFlow's format.
func WriteElasticFlow(w io.Writer, jobs []*sched.Job) error {
	out := csv.NewWriter(w)
	out.Write([]string{"job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration", "best_effort"})
	for _, j := range jobs {
		effort, deadline := "0", number(j.Deadline)
		if j.BestEffort {
			effort, deadline = "1", number(j.Submit)
		}
		out.Write([]string{j.ID, number(j.Submit), number(j.Iterations), j.Model, deadline, strconv.Itoa(j.Batch), strconv.Itoa(j.GPUs), number(j.Duration), effort})
	}
	out.Flush()
	return out.Error()
}

// WriteAlloX writes jobs with Either in the format of AlloX's simulator.
func WriteAlloX(w io.Writer, jobs []*sched.Job) error {
	b := bufio.NewWriter(w)
	for _, j := range jobs {
		e := j.Either
		fmt.Fprintf(b, "# %s\n1 %s 1 %s %s\nstage -1 32 16 %s 1 2 %s 1 %s %s\n0\n", j.ID, j.ID, number(j.Submit), j.User,
			number(e.Duration[1]), number(e.Duration[0]), number(e.Error[1]), number(e.Error[0]))
	}
	return b.Flush()
}
