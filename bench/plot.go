package bench

import (
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"slices"
	"star/internal/durable"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgimg" // png
	_ "gonum.org/v1/plot/vg/vgpdf"
	_ "gonum.org/v1/plot/vg/vgsvg"
)

// PlotFormat is svg, pdf or png, by the suffix of the file.
func PlotFormat(path string) (string, error) {
	switch f := strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), "."); f {
	case "svg", "pdf", "png":
		return f, nil
	}
	return "", fmt.Errorf("%q: the name of a plot must end in .svg, .pdf or .png", path)
}

// Colours of lines that the colour-blind can distinguish (M. Okabe, K. Ito: Color Universal Design, 2008), and thick
// lines for our own.
var lineColours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{0, 0, 0, 255}, color.RGBA{120, 120, 120, 255},
}

// Plot draws time over bytes, both logarithmic, one plot per number of ranks, and writes them to path in the format of
// its suffix. Our rows over one transport are one line, with any algorithms, unless there are several for a size.
func Plot(path, title string, rows []Row) error {
	format, err := PlotFormat(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	var ranks []int
	for _, r := range rows {
		if !slices.Contains(ranks, r.Ranks) {
			ranks = append(ranks, r.Ranks)
		}
	}
	if len(ranks) == 0 {
		return fmt.Errorf("bench: plot %s: there are no rows", path)
	}
	slices.Sort(ranks)
	var plots []*plot.Plot
	for _, n := range ranks {
		p, err := plotRanks(title, n, rows)
		if err != nil {
			return fmt.Errorf("bench: plot %s: %w", path, err)
		}
		plots = append(plots, p)
	}
	return drawPlots(path, format, [][]*plot.Plot{plots})
}

// drawPlots writes plots of the same size, in rows, to a file. Nil: an empty place.
func drawPlots(path, format string, plots [][]*plot.Plot) error {
	const width, height = 6.4 * vg.Inch, 4.8 * vg.Inch
	rows, columns := vg.Length(len(plots)), vg.Length(len(plots[0]))
	canvas, err := draw.NewFormattedCanvas(width*columns, height*rows, format)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	tiles := draw.Tiles{Rows: len(plots), Cols: len(plots[0]), PadX: vg.Millimeter * 4, PadY: vg.Millimeter * 4, PadTop: vg.Millimeter * 2, PadBottom: vg.Millimeter * 2, PadLeft: vg.Millimeter * 2, PadRight: vg.Millimeter * 4}
	for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
		for k, c := range row {
			if plots[i][k] != nil {
				plots[i][k].Draw(c)
			}
		}
	}
	return WritePlot(path, canvas)
}

// PlotMeasures draws numbers and writes the plot to path in the format of its suffix: lines over x, the name of the
// axis, where the numbers have an X, otherwise one line per name. Old numbers are grey.
func PlotMeasures(path, title, x string, now, old []Measure) error {
	format, err := PlotFormat(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	if len(now) == 0 {
		return fmt.Errorf("bench: plot %s: there are no numbers", path)
	}
	p := plot.New()
	p.Title.Text = title
	p.Add(plotter.NewGrid())
	if now[0].X > 0 {
		err = plotLines(p, x, now, old)
	} else {
		err = plotNames(p, now, old)
	}
	if err != nil {
		return fmt.Errorf("bench: plot %s: %w", path, err)
	}
	return drawPlots(path, format, [][]*plot.Plot{{p}})
}

// plotLines draws time over X, a line per series.
func plotLines(p *plot.Plot, x string, now, old []Measure) error {
	p.X.Label.Text, p.Y.Label.Text = x, "time"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = plot.ConstantTicks(timeTicks())
	p.Legend.Top, p.Legend.Left = true, true
	draws := func(ms []Measure, before bool) error {
		lines := map[string]*errorPoints{}
		var names []string
		for _, m := range slices.SortedStableFunc(slices.Values(ms), func(a, b Measure) int { return cmp.Compare(a.X, b.X) }) {
			if lines[m.Series] == nil {
				names = append(names, m.Series)
				lines[m.Series] = new(errorPoints)
			}
			lines[m.Series].add(m.X, m.Value, m.Low, m.High)
		}
		for i, name := range names {
			line, points, bars, err := lines[name].draw()
			if err != nil {
				return err
			}
			line.Color, line.Width = lineColours[i%len(lineColours)], vg.Points(1.5)
			points.Shape, points.Radius = draw.CircleGlyph{}, vg.Points(2)
			if before {
				line.Color, line.Dashes = color.Gray{170}, []vg.Length{vg.Points(4), vg.Points(2)}
				points.Shape = draw.RingGlyph{}
				name = "before"
			}
			points.Color, bars.Color = line.Color, line.Color
			p.Add(bars, line, points)
			if !before || i == 0 {
				p.Legend.Add(name, line, points)
			}
		}
		return nil
	}
	if err := draws(old, true); err != nil {
		return err
	}
	if err := draws(now, false); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(p.Y.Min))), math.Pow(10, math.Ceil(math.Log10(p.Y.Max)+0.5))
	var ticks []plot.Tick
	for _, m := range now {
		ticks = append(ticks, plot.Tick{Value: m.X, Label: fmt.Sprint(m.X)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	if p.X.Min == p.X.Max {
		p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	}
	return nil
}

// plotNames draws a dot with its scatter per number, beside its name.
func plotNames(p *plot.Plot, now, old []Measure) error {
	p.X.Label.Text = "time"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(timeTicks())
	p.Legend.Top = true
	var names []string
	for _, m := range now {
		names = append(names, m.Name)
	}
	slices.Reverse(names) // the first at the top
	draws := func(ms []Measure, before bool) error {
		var points horizontal
		for _, m := range ms {
			i := slices.Index(names, m.Name)
			if i < 0 {
				continue
			}
			points.XYs = append(points.XYs, plotter.XY{X: m.Value, Y: float64(i)})
			points.XErrors = append(points.XErrors, reach(m.Value, m.Low, m.High))
		}
		if len(points.XYs) == 0 {
			return nil
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		bars, err := plotter.NewXErrorBars(points)
		if err != nil {
			return err
		}
		scatter.Color, scatter.Shape, scatter.Radius = lineColours[0], draw.CircleGlyph{}, vg.Points(3)
		name := "now"
		if before {
			scatter.Color, scatter.Shape, name = color.Gray{150}, draw.RingGlyph{}, "before"
		}
		bars.Color = scatter.Color
		p.Add(bars, scatter)
		if len(old) > 0 {
			p.Legend.Add(name, scatter)
		}
		return nil
	}
	if err := draws(old, true); err != nil {
		return err
	}
	if err := draws(now, false); err != nil {
		return err
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(p.X.Min))), math.Pow(10, math.Ceil(math.Log10(p.X.Max)))
	return nil
}

type horizontal struct {
	plotter.XYs
	plotter.XErrors
}

// reach is the length of an error bar below and above a value with the range low to high; high 0: unknown. On
// logarithmic axes it ends above 0.
func reach(value, low, high float64) struct{ Low, High float64 } {
	if high == 0 {
		return struct{ Low, High float64 }{}
	}
	return struct{ Low, High float64 }{min(max(value-low, 0), 0.99*value), max(high-value, 0)}
}

// errorPoints are points with error bars.
type errorPoints struct {
	plotter.XYs
	plotter.YErrors
}

// add adds a point with the usual range low to high; high 0: unknown.
func (e *errorPoints) add(x, y, low, high float64) {
	e.XYs, e.YErrors = append(e.XYs, plotter.XY{X: x, Y: y}), append(e.YErrors, reach(y, low, high))
}

// draw returns a line with points and error bars.
func (e *errorPoints) draw() (*plotter.Line, *plotter.Scatter, *plotter.YErrorBars, error) {
	line, points, err := plotter.NewLinePoints(e.XYs)
	if err != nil {
		return nil, nil, nil, err
	}
	bars, err := plotter.NewYErrorBars(e)
	return line, points, bars, err
}

// WritePlot writes a plot to path, atomically.
func WritePlot(path string, canvas io.WriterTo) error {
	f, err := durable.Create(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	if _, err = canvas.WriteTo(f); err != nil {
		f.Discard()
	} else {
		err = f.Commit(0o644)
	}
	if err != nil {
		return fmt.Errorf("bench: plot %s: %w", path, err)
	}
	return nil
}

func plotRanks(title string, n int, rows []Row) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s, %d ranks", title, n)
	p.X.Label.Text, p.Y.Label.Text = "vector", "median time"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(byteTicks()), plot.ConstantTicks(timeTicks())
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())

	// Several of our rows for one size and transport are separate lines.
	several := map[string]bool{}
	seen := map[string]string{}
	for _, r := range rows {
		key := fmt.Sprint(r.Ranks, r.Bytes, r.Transport)
		if r.Ours() && seen[key] != "" && seen[key] != r.Algorithm {
			several[r.Transport] = true
		}
		if r.Ours() {
			seen[key] = r.Algorithm
		}
	}
	lines := map[string]*errorPoints{}
	ours := map[string]bool{}
	var names []string
	for _, r := range slices.SortedStableFunc(slices.Values(rows), func(a, b Row) int { return cmp.Compare(a.Bytes, b.Bytes) }) {
		if r.Ranks != n {
			continue
		}
		name := r.Algorithm
		if r.Ours() {
			name = "STAR " + r.Transport
			if several[r.Transport] {
				name += " " + r.Algorithm
			}
		}
		if lines[name] == nil {
			names = append(names, name)
			lines[name] = new(errorPoints)
		}
		lines[name].add(float64(r.Bytes), r.Median, r.P10, r.P90)
		ours[name] = r.Ours()
	}
	for i, name := range names {
		line, points, bars, err := lines[name].draw()
		if err != nil {
			return nil, err
		}
		line.Color = lineColours[i%len(lineColours)]
		line.Width = vg.Points(1)
		if ours[name] {
			line.Width = vg.Points(2)
		} else {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		points.Color, points.Shape, points.Radius = line.Color, draw.CircleGlyph{}, vg.Points(2)
		bars.Color = line.Color
		p.Add(bars, line, points)
		p.Legend.Add(name, line, points)
	}
	// Whole decades, so that there is a named tick at either end.
	p.Y.Min = math.Pow(10, math.Floor(math.Log10(p.Y.Min)))
	p.Y.Max = math.Pow(10, math.Ceil(math.Log10(p.Y.Max)))
	return p, nil
}

// timeTicks are the powers of ten, named, and 2 to 9 times them.
func timeTicks() []plot.Tick {
	units := []string{"ns", "µs", "ms", "s"}
	var ticks []plot.Tick
	for e := -9; e <= 2; e++ {
		for k := 1; k <= 9; k++ {
			t := plot.Tick{Value: float64(k) * math.Pow10(e)}
			if k == 1 {
				t.Label = fmt.Sprintf("%.0f %s", math.Pow10((e+9)%3), units[(e+9)/3])
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// byteTicks are the powers of 16, named.
func byteTicks() []plot.Tick {
	var ticks []plot.Tick
	for e := 0; e <= 40; e += 2 {
		t := plot.Tick{Value: math.Exp2(float64(e))}
		if e%4 == 2 {
			n := int64(1) << e
			switch {
			case n >= 1<<30:
				t.Label = fmt.Sprintf("%d GiB", n>>30)
			case n >= 1<<20:
				t.Label = fmt.Sprintf("%d MiB", n>>20)
			case n >= 1<<10:
				t.Label = fmt.Sprintf("%d KiB", n>>10)
			default:
				t.Label = fmt.Sprintf("%d B", n)
			}
		}
		ticks = append(ticks, t)
	}
	return ticks
}
