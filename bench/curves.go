package bench

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Curve is points that are joined by a line.
type Curve struct {
	Name string
	X, Y []float64
}

// PlotCurves draws curves over one another to path, whose end says in which format. With logX the axis of x is logarithmic, and points that are not above 0 are
// left out.
func PlotCurves(path, title, x, y string, logX bool, curves []Curve) error {
	format, err := PlotFormat(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Min, p.Legend.Top = 0, true
	p.Add(plotter.NewGrid())
	drawn := false
	for i, c := range curves {
		var points plotter.XYs
		for k := range c.X {
			if !logX || c.X[k] > 0 {
				points = append(points, plotter.XY{X: c.X[k], Y: c.Y[k]})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("bench: plot %s: %s: %w", path, c.Name, err)
		}
		line.Color, line.Width = lineColours[i%len(lineColours)], vg.Points(1.2)
		if i >= len(lineColours) {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		p.Add(line)
		p.Legend.Add(c.Name, line)
		drawn = true
	}
	if !drawn {
		return fmt.Errorf("bench: plot %s: there is nothing to draw", path)
	}
	p.Y.Max *= 1 + .06*float64(len(curves)+1) // room for the names
	if logX && p.X.Max > p.X.Min {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.BackgroundColor = color.White
	return drawPlots(path, format, [][]*plot.Plot{{p}})
}
