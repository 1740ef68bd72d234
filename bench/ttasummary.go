package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"star/sim"
)

// TTAGroup is the runs of one method in one scenario, which differ in their seeds.
type TTAGroup struct {
	TTAResult // of the first seed

	Runs    int
	Arrived int       // runs that reached the target
	Times   []float64 // by run, seconds; NaN: not reached

	// Mean and Half are of the time to the target, with its 95 % confidence interval; Mean is +Inf where a run did not
	// reach it, since the mean of those that did would flatter.
	Mean, Half               float64
	Accuracies               []float64
	Accuracy, AccuracyHalf   float64
	Updates, Bytes, Switches float64
	Staleness                float64

	runs []TTAResult
}

// leastRuns is how many runs an interval is given for: of two it is 12.7 times the standard error, of five 2.8 times.
const leastRuns = 5

// interval is Interval if the number of runs suffices; else the half is NaN.
func interval(xs []float64) (mean, half float64) {
	if mean, half = Interval(xs); len(xs) < leastRuns {
		half = math.NaN()
	}
	return mean, half
}

// TTAGroups puts runs together by method, in the order in which they come.
func TTAGroups(rs []TTAResult) []TTAGroup {
	var out []TTAGroup
	for len(rs) > 0 {
		k := 1
		for k < len(rs) && rs[k].Method == rs[0].Method && rs[k].sameCase(rs[0]) {
			k++
		}
		g := TTAGroup{TTAResult: rs[0], Runs: k, runs: rs[:k]}
		for _, r := range rs[:k] {
			t := math.NaN()
			if r.Reached {
				t = *r.TTA
				g.Arrived++
			}
			g.Times = append(g.Times, t)
			g.Accuracies = append(g.Accuracies, r.Accuracy)
			g.Updates += float64(r.Updates) / float64(k)
			g.Bytes += float64(r.Bytes) / float64(k)
			g.Switches += float64(r.Switches) / float64(k)
			g.Staleness += r.Staleness / float64(k)
		}
		g.Mean, g.Half = math.Inf(1), math.NaN()
		if g.Arrived == k {
			g.Mean, g.Half = interval(g.Times)
		}
		g.Accuracy, g.AccuracyHalf = interval(g.Accuracies)
		out, rs = append(out, g), rs[k:]
	}
	return out
}

func (r TTAResult) sameCase(o TTAResult) bool {
	return r.Task == o.Task && r.Arch == o.Arch && r.Scenario == o.Scenario
}

// TTAMeasures are the numbers of TTA: the mean time to the target of each method, where all its runs reached it.
func TTAMeasures(rs []TTAResult) (ms []Measure) {
	for _, g := range TTAGroups(rs) {
		if math.IsInf(g.Mean, 1) {
			continue
		}
		m := Measure{Name: fmt.Sprintf("%s, %s, %s, %s", g.Task, g.Arch, g.Scenario, g.Method), Value: g.Mean}
		if !math.IsNaN(g.Half) {
			m.Low, m.High = max(0, g.Mean-g.Half), g.Mean+g.Half
		}
		ms = append(ms, m)
	}
	return ms
}

// TTACase is a task in a scenario: what auto made of it.
type TTACase struct {
	Task, Arch, Scenario string
	Bound                float64
	SSGD, Auto           *TTAGroup // nil: not measured
	Fixed                *TTAGroup // the best fixed mode in hindsight, SSGD among them
	// the least of the baselines with the rule of all; chance alone makes it sooner than each
	Baseline *TTAGroup
	All      []TTAGroup
}

// Saved is the part of SSGD's time that auto saves; NaN where one of them is missing or did not arrive.
func (c TTACase) Saved() float64 { return 1 - ratio(c.Auto, c.SSGD) }

// Capture is Saved as a part of the bound.
func (c TTACase) Capture() float64 { return c.Saved() / c.Bound }

// BySSGD is the time of g to levels of the loss, and that for all samples, by SSGD's with the same seed; NaN where one
// is missing.
func (c TTACase) BySSGD(g *TTAGroup) (levels, samples float64) {
	if g == nil || c.SSGD == nil {
		return math.NaN(), math.NaN()
	}
	p := NewTTAPairs(slices.Concat(g.runs, c.SSGD.runs))
	return p.Against(g.Method, c.SSGD.Method, p.Scenarios, byLevels).Ratio, p.Against(g.Method, c.SSGD.Method, p.Scenarios, bySamples).Ratio
}

// exchangesLess reports whether auto exchanges less often than SSGD: the bound is of waiting, and has no place for what
// that saves.
func (c TTACase) exchangesLess() bool {
	return c.SSGD != nil && c.Auto != nil && fewer(c.Auto.Bytes, c.SSGD.Bytes)
}

// fewer reports whether a sends clearly fewer bytes than b.
func fewer(a, b float64) bool { return a < 0.9*b }

// ratio is a's mean over b's: NaN where one is missing or neither arrived; +Inf where a did not, 0 where b did not.
func ratio(a, b *TTAGroup) float64 {
	if a == nil || b == nil || math.IsInf(a.Mean, 1) && math.IsInf(b.Mean, 1) {
		return math.NaN()
	}
	return a.Mean / b.Mean
}

// paired is the mean difference of the accuracies of two groups, seed by seed, and its 95 % confidence interval.
func paired(a, b *TTAGroup) (mean, half float64) {
	if a == nil || b == nil {
		return math.NaN(), math.NaN()
	}
	var ds []float64
	for i := range min(len(a.Accuracies), len(b.Accuracies)) {
		ds = append(ds, a.Accuracies[i]-b.Accuracies[i])
	}
	return interval(ds)
}

// uncertain is half the width of the 95 % confidence interval of the ratio of two groups' times, seed by seed; NaN
// where it is not known.
func uncertain(a, b *TTAGroup) float64 {
	var logs []float64
	for i := range min(len(a.Times), len(b.Times)) {
		logs = append(logs, math.Log(a.Times[i]/b.Times[i]))
	}
	_, half := interval(logs)
	return half
}

// TTACases are the cases of a result.
func TTACases(rs []TTAResult) []TTACase {
	var out []TTACase
	groups := TTAGroups(rs)
	for len(groups) > 0 {
		k := 1
		for k < len(groups) && groups[k].sameCase(groups[0].TTAResult) {
			k++
		}
		c := TTACase{Task: groups[0].Task, Arch: groups[0].Arch, Scenario: groups[0].Scenario, Bound: groups[0].Bound, All: groups[:k]}
		for i := range c.All {
			g := &c.All[i]
			better := func(p **TTAGroup) {
				if *p == nil || g.Mean < (*p).Mean {
					*p = g
				}
			}
			name, own := apart(g.Method)
			name, _, _ = strings.Cut(name, ":")
			switch {
			case own != "": // each compared with auto
			case g.Method == "auto":
				c.Auto = g
			case sim.IsBaseline(name):
				better(&c.Baseline)
			default:
				if g.Method == "ssgd" {
					c.SSGD = g
				}
				better(&c.Fixed)
			}
		}
		out, groups = append(out, c), groups[k:]
	}
	return out
}

// Goal is a goal and whether it is met.
type Goal struct {
	Name     string
	Measured bool
	Met      bool
	Detail   string
}

// calm is the scenario without stragglers.
const calm = "calm"

// TTAGoals evaluates the goals of STAR for a result. Goals without data are not measured.
func TTAGoals(rs []TTAResult) []Goal {
	cases := TTACases(rs)
	where := func(c TTACase) string {
		task, _, _ := strings.Cut(c.Task, " ")
		return fmt.Sprintf("%s %s %s", task, c.Arch, c.Scenario)
	}
	// each holds a number of every case against a limit. half, if not nil, is by how much it is uncertain.
	each := func(name string, in func(TTACase) bool, number func(TTACase) float64, ok func(float64) bool, show func(float64) string, half func(TTACase) float64) Goal {
		g := Goal{Name: name, Met: true}
		n := 0
		var failed []string
		for _, c := range cases {
			if !in(c) || c.Auto == nil {
				continue
			}
			x := number(c)
			if math.IsNaN(x) {
				continue
			}
			n++
			if !ok(x) {
				text := where(c) + " " + show(x)
				if half != nil {
					if h := half(c); h > 0 {
						text += fmt.Sprintf(" ± %.1f", 100*h)
					}
				}
				failed = append(failed, text)
			}
		}
		g.Measured, g.Met = n > 0, len(failed) == 0
		g.Detail = fmt.Sprintf("%d of %d cases", n-len(failed), n)
		if len(failed) > 0 {
			g.Detail += "; not in: " + strings.Join(failed, ", ")
		}
		return g
	}
	percent := func(x float64) string {
		if math.IsInf(x, 0) {
			return "(not reached)"
		}
		return fmt.Sprintf("%.0f %%", 100*x)
	}
	signed := func(x float64) string {
		if math.IsInf(x, 0) {
			return "(not reached)"
		}
		return fmt.Sprintf("%+.1f %%", 100*x)
	}
	straggling := func(c TTACase) bool {
		return c.Scenario != calm && c.SSGD != nil && !(c.Capture() > 1 && c.exchangesLess())
	}
	goals := []Goal{
		each("auto saves at least 70 % of the first-order bound (cases with more than all of it by fewer exchanges do not count)", straggling, TTACase.Capture, func(x float64) bool { return x >= 0.7 }, percent, nil),
	}
	logs, n := 0.0, 0
	lost := ""
	for _, c := range cases {
		if c.Bound < 0.3 || c.Auto == nil || c.Baseline == nil {
			continue
		}
		switch r := ratio(c.Auto, c.Baseline); {
		case math.IsNaN(r):
		case math.IsInf(r, 1):
			lost = "; auto did not reach " + where(c)
		default:
			if r == 0 { // no baseline arrived: as if the best had, at the end
				r = c.Auto.Mean / c.Baseline.Seconds
			}
			logs, n = logs+math.Log(r), n+1
		}
	}
	geo := math.Exp(logs / float64(max(n, 1)))
	goals = append(goals, Goal{Name: "auto needs at least 15 % less time than the best baseline, geometric mean where the bound is 0.30 or more", Measured: n > 0 || lost != "",
		Met: n > 0 && geo <= 0.85 && lost == "", Detail: fmt.Sprintf("%.3f of its time over %d cases%s", geo, n, lost)})
	goals = append(goals,
		each("auto is never more than 3 % behind the best baseline", func(c TTACase) bool { return c.Baseline != nil }, func(c TTACase) float64 { return ratio(c.Auto, c.Baseline) - 1 },
			func(x float64) bool { return x <= 0.03 }, signed, func(c TTACase) float64 { return uncertain(c.Auto, c.Baseline) }),
		each("auto's accuracy at the end is at most 0.5 points below SSGD's", func(c TTACase) bool { return c.SSGD != nil }, func(c TTACase) float64 { d, _ := paired(c.Auto, c.SSGD); return d },
			func(x float64) bool { return x > -0.00501 }, func(x float64) string { return fmt.Sprintf("%+.2f points", 100*x) },
			func(c TTACase) float64 { _, h := paired(c.Auto, c.SSGD); return h }),
		each("without stragglers auto is at most 1 % slower than SSGD", func(c TTACase) bool { return c.Scenario == calm && c.SSGD != nil }, func(c TTACase) float64 { return ratio(c.Auto, c.SSGD) - 1 },
			func(x float64) bool { return x <= 0.01 }, signed, func(c TTACase) float64 { return uncertain(c.Auto, c.SSGD) }),
		each("auto needs at most 5 % more time than the best fixed mode in hindsight", func(c TTACase) bool { return c.Fixed != nil }, func(c TTACase) float64 { return ratio(c.Auto, c.Fixed) - 1 },
			func(x float64) bool { return x <= 0.05 }, signed, func(c TTACase) float64 { return uncertain(c.Auto, c.Fixed) }),
	)
	return goals
}

// PlotTTA draws, for each task and architecture, the time to the target as a part of SSGD's over scenarios: auto, the
// best fixed mode in hindsight, the baselines, and what the first-order bound leaves.
func PlotTTA(path string, rs []TTAResult) error {
	format, err := PlotFormat(path)
	if err != nil {
		return fmt.Errorf("bench: plot: %w", err)
	}
	var panels [][]TTACase
	for _, c := range TTACases(rs) {
		if c.SSGD == nil || math.IsInf(c.SSGD.Mean, 1) {
			continue
		}
		if n := len(panels); n > 0 && panels[n-1][0].Task == c.Task && panels[n-1][0].Arch == c.Arch {
			panels[n-1] = append(panels[n-1], c)
		} else {
			panels = append(panels, []TTACase{c})
		}
	}
	if len(panels) == 0 {
		return fmt.Errorf("bench: plot %s: SSGD reached the target in no scenario, so there is nothing to compare with", path)
	}
	columns := min(2, len(panels))
	rows := make([][]*plot.Plot, (len(panels)+columns-1)/columns)
	for i, cases := range panels {
		p, err := plotCases(cases)
		if err != nil {
			return fmt.Errorf("bench: plot %s: %w", path, err)
		}
		rows[i/columns] = append(rows[i/columns], p)
	}
	for last := len(rows) - 1; len(rows[last]) < columns; {
		rows[last] = append(rows[last], nil)
	}
	return drawPlots(path, format, rows)
}

func plotCases(cases []TTACase) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = cases[0].Task + ", " + cases[0].Arch
	p.Y.Label.Text = "time to the target, of SSGD's"
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	var names []string
	for _, c := range cases {
		names = append(names, c.Scenario)
	}
	p.NominalX(names...)
	p.X.Tick.Label.Rotation = math.Pi / 8
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	type series struct {
		name string
		of   func(c TTACase) (value, half float64, ok bool)
	}
	group := func(pick func(c TTACase) *TTAGroup) func(c TTACase) (float64, float64, bool) {
		return func(c TTACase) (float64, float64, bool) {
			g := pick(c)
			if g == nil || math.IsInf(g.Mean, 1) {
				return 0, 0, false
			}
			half := g.Half / c.SSGD.Mean
			if math.IsNaN(half) {
				half = 0
			}
			return g.Mean / c.SSGD.Mean, half, true
		}
	}
	all := []series{
		{"STAR, auto", group(func(c TTACase) *TTAGroup { return c.Auto })},
		{"best fixed mode in hindsight", group(func(c TTACase) *TTAGroup { return c.Fixed })},
	}
	for _, name := range TTABaselines {
		all = append(all, series{name, group(func(c TTACase) *TTAGroup {
			i := slices.IndexFunc(c.All, func(g TTAGroup) bool { n, _, _ := strings.Cut(g.Method, ":"); return n == name })
			if i < 0 {
				return nil
			}
			return &c.All[i]
		})})
	}
	all = append(all, series{"1 − bound", func(c TTACase) (float64, float64, bool) { return 1 - c.Bound, 0, true }})
	shapes := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}, draw.CrossGlyph{}}
	most := 1.0
	for k, s := range all {
		var points errorPoints
		for i, c := range cases {
			if v, half, ok := s.of(c); ok {
				points.XYs = append(points.XYs, plotter.XY{X: float64(i) + (float64(k)-float64(len(all)-1)/2)*0.1, Y: v})
				points.YErrors = append(points.YErrors, struct{ Low, High float64 }{min(half, v), half}) // no time is below 0
				most = max(most, v+half)
			}
		}
		if len(points.XYs) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(points)
		if err != nil {
			return nil, err
		}
		scatter.Color, scatter.Shape, scatter.Radius = lineColours[k%len(lineColours)], shapes[k%len(shapes)], vg.Points(3)
		bars.Color = scatter.Color
		p.Add(bars, scatter)
		p.Legend.Add(s.name, scatter)
	}
	p.Y.Min, p.Y.Max = 0, 1.6*min(most, 2) // the legend is above
	p.X.Min, p.X.Max = -0.5, float64(len(cases))-0.5
	return p, nil
}
