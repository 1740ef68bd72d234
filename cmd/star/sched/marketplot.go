package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"star/bench"
	"star/sched/market"
)

// marketCurve is how the accuracy of a run of the study grew under a learning rate.
type marketCurve struct {
	Config string         `json:"config"`
	Points []market.Point `json:"points"`
}

// serverCurves are steps/s over the number of workers, one curve for each kind of machine and number of parameter
// servers, of the jobs that compare these.
func serverCurves(r *marketReport, s *market.Study) (curves []bench.Curve) {
	rates := map[string]float64{}
	for _, row := range r.Configs {
		rates[row.Config] = row.Rate
	}
	points := map[string][][2]float64{}
	for _, c := range s.Configs {
		servers, rate := c.Machines[market.Server], rates[c.Name]
		if len(c.Machines) != 2 || servers == 0 || rate == 0 || !strings.Contains(c.Name, "ps") {
			continue
		}
		for m, workers := range c.Machines {
			if m != market.Server {
				name := fmt.Sprintf("%s, %d server", m, servers)
				if servers > 1 {
					name += "s"
				}
				points[name] = append(points[name], [2]float64{float64(workers), rate})
			}
		}
	}
	for name, of := range points {
		slices.SortFunc(of, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
		c := bench.Curve{Name: name}
		for _, p := range of {
			c.X, c.Y = append(c.X, p[0]), append(c.Y, p[1])
		}
		curves = append(curves, c)
	}
	slices.SortFunc(curves, func(a, b bench.Curve) int { return cmp.Compare(a.Name, b.Name) })
	return curves
}

// lifeCurves returns the percentage of the machines of each kind that have ended, by hours of life.
func lifeCurves(s *market.Study) (curves []bench.Curve) {
	for _, l := range s.Lifetimes {
		c := bench.Curve{Name: string(l.Machine), X: []float64{0}, Y: []float64{0}}
		for i, h := range l.Hours {
			c.X = append(c.X, h, h)
			c.Y = append(c.Y, c.Y[len(c.Y)-1], 100*float64(i+1)/float64(len(l.Hours)))
		}
		curves = append(curves, c)
	}
	return curves
}

// plot draws the study's curves into a folder, which it makes. What the study has no data of is left out.
func (r *marketReport) plot(dir string, s *market.Study) error {
	var learning []bench.Curve
	for _, c := range r.Curves {
		curve := bench.Curve{Name: c.Config}
		for _, p := range c.Points {
			if !math.IsNaN(p.Accuracy) {
				curve.X, curve.Y = append(curve.X, p.Seconds/3600), append(curve.Y, 100*p.Accuracy)
			}
		}
		learning = append(learning, curve)
	}
	return drawPictures(dir, []picture{
		{"lifetimes.svg", "Machines that were taken away, or ended", "time since their start (h)", "machines (%)", false, 100, lifeCurves(s)},
		{"servers.svg", "Workers and parameter servers", "workers", "steps/s", false, 0, serverCurves(r, s)},
		{"learning-rates.svg", "Accuracy under three learning rates", "time (h)", "accuracy (%)", false, 100, learning},
	})
}
