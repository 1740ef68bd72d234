package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// TTAMarkdown writes a result as tables in Markdown: ratios by pairs and pooled, the scenarios that are held out apart;
// then times, a line for each scenario, and the goals.
func TTAMarkdown(w io.Writer, rs []TTAResult) error {
	r := &report{}
	for rest := rs; len(rest) > 0; {
		k := 1
		for k < len(rest) && rest[k].Task == rest[0].Task && rest[k].Arch == rest[0].Arch {
			k++
		}
		var given, judging []TTAResult
		for _, x := range rest[:k] {
			if slices.Contains(TTAHeld(), x.Scenario) {
				judging = append(judging, x)
			} else {
				given = append(given, x)
			}
		}
		if len(judging) > 0 {
			r.printf("\nHeld-out scenarios:\n")
			r.ttaPairs(judging)
		}
		if len(given) > 0 {
			if len(judging) > 0 {
				r.printf("\nThe other scenarios:\n")
			}
			r.ttaPairs(given)
		}
		rest = rest[k:]
	}
	var last TTACase
	for _, c := range TTACases(rs) {
		if c.Task != last.Task || c.Arch != last.Arch {
			r.ttaHead(c)
		}
		last = c
		r.ttaLine(c)
	}
	r.printf("\n")
	for _, g := range TTAGoals(rs) {
		switch {
		case !g.Measured:
			r.printf("- Not measured: %s.\n", g.Name)
		case g.Met:
			r.printf("- **Met**: %s (%s).\n", g.Name, g.Detail)
		default:
			r.printf("- **Not met**: %s (%s).\n", g.Name, g.Detail)
		}
	}
	_, err := io.WriteString(w, r.b.String())
	return err
}

// ttaBaselines are those that an architecture has.
func ttaBaselines(arch string) []string {
	if arch == ArchRing {
		return ringBaselines
	}
	return TTABaselines
}

func (r *report) ttaHead(c TTACase) {
	names := ttaBaselines(c.Arch)
	r.printf("\n**%s, %s**, target %g, %d seeds: seconds of virtual time to the target ± 95 %%.\n\n", c.Task, c.Arch, c.All[0].Target, c.All[0].Runs)
	r.printf("| scenario | bound | SSGD | best fixed in hindsight | auto | auto saves of SSGD's | of the bound | auto by SSGD, levels | all samples |")
	for _, n := range names {
		r.printf(" %s |", n)
	}
	r.printf(" auto, of the least of these | accuracy at the end, SSGD | auto, points more | staleness | changes | MB, auto | SSGD |\n|---|---:|---:|---|---:|---:|---:|---:|---:|%s---:|---:|---:|---:|---:|---:|---:|\n", strings.Repeat("---:|", len(names)))
}

func (r *report) ttaLine(c TTACase) {
	took := func(g *TTAGroup) string {
		switch {
		case g == nil:
			return "–"
		case g.Arrived < g.Runs:
			return fmt.Sprintf("%d of %d", g.Arrived, g.Runs)
		case math.IsNaN(g.Half):
			return fmt.Sprintf("%.0f", g.Mean)
		}
		return fmt.Sprintf("%.0f ± %.0f", g.Mean, g.Half)
	}
	number := func(format string, x float64) string {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "–"
		}
		return fmt.Sprintf(format, x)
	}
	fixed := "–"
	if c.Fixed != nil {
		fixed = fmt.Sprintf("%s, %s", took(c.Fixed), c.Fixed.Method)
	}
	capture := "–"
	if c.Scenario != calm {
		if capture = number("%.0f %%", 100*c.Capture()); c.exchangesLess() {
			capture += ", fewer exchanges"
		}
	}
	levels, samples := c.BySSGD(c.Auto)
	name := c.Scenario
	if c.All[0].Links {
		name += ", links"
	}
	r.printf("| %s | %.2f | %s | %s | %s | %s | %s | %s | %s |", name, c.Bound, took(c.SSGD), fixed, took(c.Auto), number("%.0f %%", 100*c.Saved()), capture, number("%.3f", levels), number("%.3f", samples))
	for _, name := range ttaBaselines(c.Arch) {
		i := slices.IndexFunc(c.All, func(g TTAGroup) bool { n, _, _ := strings.Cut(g.Method, ":"); return n == name })
		if i < 0 {
			r.printf(" – |")
			continue
		}
		r.printf(" %s |", took(&c.All[i]))
	}
	accuracy, gap, stale, changes, mb, ssgdMB := "–", "–", "–", "–", "–", "–"
	if d, half := paired(c.Auto, c.SSGD); !math.IsNaN(d) {
		accuracy, gap = fmt.Sprintf("%.2f %%", 100*c.SSGD.Accuracy), fmt.Sprintf("%+.2f", 100*d)
		if !math.IsNaN(half) {
			gap += fmt.Sprintf(" ± %.2f", 100*half)
		}
	}
	if c.SSGD != nil {
		ssgdMB = fmt.Sprintf("%.0f", c.SSGD.Bytes/1e6)
	}
	if c.Auto != nil {
		stale, changes, mb = fmt.Sprintf("%.1f", c.Auto.Staleness), fmt.Sprintf("%.1f", c.Auto.Switches), fmt.Sprintf("%.0f", c.Auto.Bytes/1e6)
	}
	r.printf(" %s | %s | %s | %s | %s | %s | %s |\n", number("%.2f", ratio(c.Auto, c.Baseline)), accuracy, gap, stale, changes, mb, ssgdMB)
}
