package bench

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Curve is a line through points.
type Curve struct {
	Name string
	X, Y []float64
}

// roundTicks are at most eleven marks at multiples of 1, 2 or 5 times a power of ten.
type roundTicks struct{}

// Ticks are the marks from min to max, the ends of the axis.
func (roundTicks) Ticks(min, max float64) (ticks []plot.Tick) {
	if !(max > min) {
		return []plot.Tick{{Value: min, Label: strconv.FormatFloat(min, 'g', 6, 64)}}
	}
	step := math.Pow(10, math.Ceil(math.Log10((max-min)/10)))
	for _, part := range []float64{5, 2} {
		if (max-min)/step*part <= 10 {
			step /= part
			break
		}
	}
	for i := math.Ceil(min/step - 1e-9); i*step <= max+step*1e-9; i++ {
		ticks = append(ticks, plot.Tick{Value: i*step + 0, Label: strconv.FormatFloat(i*step+0, 'g', 6, 64)})
	}
	return ticks
}

// PlotCurves draws curves into one plot, with a legend, and writes it to path in the format of its suffix. With logX
// the axis of x is logarithmic, and points that are not above 0 are skipped. The axis of y ends at most; 0: at the
// largest y. Linear axes begin at 0 or below.
func PlotCurves(path, title, x, y string, logX bool, most float64, curves []Curve) error {
	format, err := PlotFormat(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Min = 0
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, roundTicks{}
	names := plot.NewLegend()
	names.Top, names.Left, names.YOffs = true, true, -p.Title.TextStyle.Font.Size*2
	names.Padding = vg.Points(3)
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
		names.Add(c.Name, line)
		drawn = true
	}
	if !drawn {
		return fmt.Errorf("bench: plot %s: there is nothing to draw", path)
	}
	if most > 0 {
		p.Y.Max = most
	}
	if !logX {
		p.X.Min = min(p.X.Min, 0)
	}
	if logX && p.X.Max > p.X.Min {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.BackgroundColor = color.White
	canvas, err := draw.NewFormattedCanvas(8*vg.Inch, 4.8*vg.Inch, format)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	all := draw.New(canvas)
	beside := names.Rectangle(all)
	width := beside.Max.X - beside.Min.X + vg.Points(12)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, vg.Points(4), -width-vg.Points(8), vg.Points(4), -vg.Points(4)))
	names.Draw(draw.Crop(all, all.Max.X-all.Min.X-width, -vg.Points(4), 0, 0))
	return WritePlot(path, canvas)
}
