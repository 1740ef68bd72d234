package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"star"
	"star/cluster/resource/host"
	"star/train/data"
	"star/train/net"
)

// What telemetry costs a step of LeNet: turns of 100 steps with everything on and with everything off, side by
// side in one run. CPU time is the process's, so the sampler's goroutine counts. The metrics are ratios, on over off.
func BenchmarkTelemetry(b *testing.B) {
	set, _, err := data.Open("digits", data.Options{})
	if err != nil {
		b.Fatal(err)
	}
	spec, err := net.Parse("lenet")
	if err != nil {
		b.Fatal(err)
	}
	spec.Input, spec.Batch, spec.Seed = set.Input(), 32, 1
	model, err := net.Build(spec)
	if err != nil {
		b.Fatal(err)
	}
	defer model.Close()
	loader := data.NewLoader(set, data.Stream{Seed: 1})
	defer loader.Close()
	batch, err := loader.Next(0, 32)
	if err != nil {
		b.Fatal(err)
	}
	grad := make([]float32, len(model.Params()))
	turn := func(on bool) (wall, cpu time.Duration) {
		var m *host.Meter
		if on {
			s := host.Start(host.Config{})
			defer s.Close()
			m = host.NewMeter(s)
		}
		var r star.Record
		begin, used := time.Now(), host.Used().CPU
		for range 100 {
			m.Begin()
			if _, err := model.Grad(context.Background(), grad, batch); err != nil {
				b.Fatal(err)
			}
			m.End()
			m.Fill(&r)
		}
		return time.Since(begin), host.Used().CPU - used
	}
	turn(false) // warm
	var walls, cpus, steps []float64
	for b.Loop() {
		w1, c1 := turn(true)
		w0, c0 := turn(false)
		walls, cpus = append(walls, float64(w1)/float64(w0)), append(cpus, float64(c1)/float64(c0))
		steps = append(steps, w0.Seconds()*1e3/100)
	}
	mid := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(mid(walls), "wall-on/off")
	b.ReportMetric(mid(cpus), "cpu-on/off")
	b.ReportMetric(mid(steps), "ms/step")
}
