package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// cluster makes hosts of 32 cores, 10 Gbit/s, 256 GiB and 10 GPUs, and jobs of eight
// workers and one to four servers.
func cluster(hosts, jobs int, seed uint64) ([]Host, []Job) {
	r := rand.New(rand.NewPCG(seed, 3))
	const gib = 1 << 30
	var hs []Host
	for h := range hosts {
		hs = append(hs, Host{Name: fmt.Sprint("host", h), Capacity: Resources{32, 1.25e9, 1.25e9, 256 * gib}, GPUs: []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}})
	}
	var js []Job
	ms := func(least, most int) time.Duration { return time.Duration(least+r.IntN(most-least)) * time.Millisecond }
	for j := range jobs {
		job := Job{Name: fmt.Sprint("job", j)}
		servers := 1 + r.IntN(4)
		rate := 4e6 + 40e6*r.Float64() // of each worker, both ways
		worker := Task{Demand: Resources{1 + 0.8*r.Float64(), rate, rate, 8 * gib}, GPU: 1, Phases: Phases{Active: ms(50, 300), Idle: ms(50, 500), GPU: ms(50, 300)}}
		server := Task{Demand: Resources{0.3 + 2*r.Float64(), 8 * rate / float64(servers), 8 * rate / float64(servers), 2 * gib},
			Phases: Phases{Active: ms(50, 300), Idle: ms(50, 500)}, State: 2 * gib}
		for range servers {
			job.Servers = append(job.Servers, server)
		}
		for range 8 {
			job.Workers = append(job.Workers, worker)
		}
		js = append(js, job)
	}
	return hs, js
}

func BenchmarkPlace(b *testing.B) {
	for _, c := range []struct{ hosts, jobs int }{{4, 5}, {40, 50}} {
		hosts, jobs := cluster(c.hosts, c.jobs, 1)
		b.Run(fmt.Sprintf("hosts=%d/jobs=%d", c.hosts, c.jobs), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := Place(hosts, jobs, Options{})
				if err != nil || len(r.Infeasible) > 0 {
					b.Fatal(err, r.Infeasible)
				}
				b.ReportMetric(r.MaxLoad, "load")
			}
		})
	}
}
