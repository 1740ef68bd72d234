package explain

import (
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgimg" // png
	_ "gonum.org/v1/plot/vg/vgpdf"
	_ "gonum.org/v1/plot/vg/vgsvg"
)

// maxLines is how many workers have a line of their own, as many as there are colours.
const maxLines = 8

// Colours apart also for the colour-blind (M. Okabe, K. Ito: Color Universal Design, 2008).
var colours = [maxLines]color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{230, 159, 0, 255}, {86, 180, 233, 255}, {0, 0, 0, 255}, {120, 120, 120, 255},
}

// bins is how many points a line has at most.
const bins = 400

// Picture draws the story in format svg, pdf or png, over time: each worker's own time of an iteration, with the
// times in which it was slow shaded; the samples applied per second; the noise scale, if it was measured. Changes
// of mode are vertical lines.
func (s *Story) Picture(format string) (io.WriterTo, error) {
	if s.Train == nil || s.Ended <= s.Began {
		return nil, fmt.Errorf("explain: nothing to draw: the training did not begin")
	}
	var panels []*plot.Plot
	for _, draw := range []func() (*plot.Plot, error){s.times, s.speeds, s.noises} {
		p, err := draw()
		if err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
		if p == nil {
			continue
		}
		p.X.Min, p.X.Max = s.Began.Seconds(), s.Ended.Seconds()
		if err := s.modes(p, len(panels) == 0); err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
		panels = append(panels, p)
	}
	if len(panels) == 0 {
		return nil, fmt.Errorf("explain: nothing to draw: no worker finished an iteration")
	}
	panels[0].Title.Text = fmt.Sprintf("%s: %s, %d workers", s.Start.Job, s.Arch, len(s.Workers))
	panels[len(panels)-1].X.Label.Text = "s"

	width, height := 9*vg.Inch, 2.6*vg.Inch*vg.Length(len(panels))
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	rows := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		rows[i] = []*plot.Plot{p}
	}
	mm := vg.Millimeter
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 2 * mm, PadTop: 2 * mm, PadBottom: 2 * mm, PadLeft: 2 * mm, PadRight: 4 * mm}
	for i, c := range plot.Align(rows, tiles, draw.New(canvas)) {
		panels[i].Draw(c[0])
	}
	return canvas, nil
}

// times are the workers' own times.
func (s *Story) times() (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = "own time of an iteration"
	p.Y.Scale = plot.LogScale{}
	ws := make([]int, len(s.Workers))
	for i := range ws {
		ws[i] = i
	}
	if len(ws) > maxLines { // those that were slow for longest; the others together
		slow := s.slowFor()
		slices.SortStableFunc(ws, func(a, b int) int { return cmp.Compare(slow[b], slow[a]) })
	}
	var lines []plotter.XYs
	var names []string
	lo, hi := math.Inf(1), 0.0
	add := func(name string, ws []int) {
		var ps []Point
		for _, w := range ws {
			for _, it := range s.Workers[w].Iterations {
				if it.Busy > 0 {
					ps = append(ps, Point{it.T, it.Busy.Seconds()})
				}
			}
		}
		xys := s.binned(ps)
		for _, xy := range xys {
			lo, hi = min(lo, xy.Y), max(hi, xy.Y)
		}
		lines, names = append(lines, xys), append(names, name)
	}
	own := min(len(ws), maxLines)
	if len(ws) > maxLines {
		own = maxLines - 1
	}
	colour := map[int]color.RGBA{}
	for i, w := range ws[:own] {
		colour[w] = colours[i]
		add(fmt.Sprintf("w%d", w), []int{w})
	}
	if rest := ws[own:]; len(rest) > 0 {
		add(fmt.Sprintf("median of %d others", len(rest)), rest)
	}
	if hi == 0 {
		return nil, nil
	}
	p.Y.Min, p.Y.Max = lo/1.5, hi*1.5
	p.Y.Tick.Marker = plot.ConstantTicks(timeTicks())
	for _, e := range s.Episodes {
		c, ok := colour[int(e.Worker)]
		if !ok {
			continue
		}
		a, z := e.Since.Seconds(), e.Until.Seconds()
		shade, err := plotter.NewPolygon(plotter.XYs{{X: a, Y: p.Y.Min}, {X: z, Y: p.Y.Min}, {X: z, Y: p.Y.Max}, {X: a, Y: p.Y.Max}})
		if err != nil {
			return nil, err
		}
		const alpha = 36
		shade.Color = color.NRGBA{c.R, c.G, c.B, alpha}
		shade.LineStyle.Width = 0
		p.Add(shade)
	}
	for i, xys := range lines {
		if len(xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colours[i], vg.Points(1)
		p.Add(line)
		p.Legend.Add(names[i], line)
	}
	p.Legend.Top = true
	return p, nil
}

// speeds are the samples applied per second.
func (s *Story) speeds() (*plot.Plot, error) {
	var ps []Point
	width := (s.Ended - s.Began) / (bins / 4)
	last, top := Point{T: s.Began}, 0.0
	for i, q := range s.Rate {
		if i == 0 { // a resumed job begins with the samples applied before
			last = q
			continue
		}
		if q.T-last.T >= width && q.T > last.T {
			v := (q.V - last.V) / (q.T - last.T).Seconds()
			ps = append(ps, Point{last.T, v}, Point{q.T, v})
			last, top = q, max(top, v)
		}
	}
	if top == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Y.Label.Text = "samples/s"
	p.Y.Min, p.Y.Max = 0, 1.1*top
	return p, addLine(p, ps)
}

// noises is the noise scale.
func (s *Story) noises() (*plot.Plot, error) {
	if len(s.Noise) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Y.Label.Text = "noise scale, samples"
	top := 0.0
	var ps []Point
	for _, xy := range s.binned(s.Noise) {
		top = max(top, xy.Y)
		ps = append(ps, Point{time.Duration(xy.X * float64(time.Second)), xy.Y})
	}
	p.Y.Min, p.Y.Max = 0, 1.1*top
	return p, addLine(p, ps)
}

func addLine(p *plot.Plot, ps []Point) error {
	var xys plotter.XYs
	for _, q := range ps {
		xys = append(xys, plotter.XY{X: q.T.Seconds(), Y: q.V})
	}
	line, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	line.Color, line.Width = colours[0], vg.Points(1)
	p.Add(line)
	return nil
}

// modes draws changes of mode, with their names if named.
func (s *Story) modes(p *plot.Plot, named bool) error {
	var at plotter.XYLabels
	last, span := math.Inf(-1), (s.Ended - s.Began).Seconds()
	for _, c := range s.Changes {
		x := c.T.Seconds()
		line, err := plotter.NewLine(plotter.XYs{{X: x, Y: p.Y.Min}, {X: x, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Width, line.Dashes = vg.Points(0.7), []vg.Length{vg.Points(3), vg.Points(2)}
		p.Add(line)
		if x-last < span/12 {
			continue // its name would be on top of the one before
		}
		last = x
		name := []rune(c.Plan)
		if len(name) > 12 {
			name = append(name[:11:11], '…')
		}
		at.XYs = append(at.XYs, plotter.XY{X: x, Y: p.Y.Max})
		at.Labels = append(at.Labels, " "+string(name))
	}
	if !named || len(at.XYs) == 0 {
		return nil
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].YAlign = draw.YTop
	}
	p.Add(labels)
	return nil
}

// binned are points over time, in seconds: the median of each of the bins that has any.
func (s *Story) binned(ps []Point) (xys plotter.XYs) {
	var vs [bins][]float64
	span := float64(s.Ended - s.Began)
	for _, q := range ps {
		b := int(float64(q.T-s.Began) / span * bins)
		b = min(max(b, 0), bins-1)
		vs[b] = append(vs[b], q.V)
	}
	for b, v := range vs {
		if len(v) > 0 {
			xys = append(xys, plotter.XY{X: s.Began.Seconds() + (float64(b)+0.5)*span/bins/1e9, Y: middle(v)})
		}
	}
	return xys
}

// timeTicks are the powers of ten, named, with twice and five times them.
func timeTicks() []plot.Tick {
	var ticks []plot.Tick
	for e := -6; e <= 4; e++ {
		for _, k := range []float64{1, 2, 5} {
			v := k * math.Pow10(e)
			ticks = append(ticks, plot.Tick{Value: v, Label: took(time.Duration(v * float64(time.Second)))})
		}
	}
	return ticks
}
