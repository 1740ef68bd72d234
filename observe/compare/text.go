package compare

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"star/runlog"
)

// Text writes the comparison for people.
func (c *Comparison) Text(out io.Writer) error {
	var b strings.Builder
	for _, r := range []struct {
		name string
		run  *Run
	}{{"A", &c.A}, {"B", &c.B}} {
		fmt.Fprintf(&b, "%s  %s\n", r.name, r.run)
		if r.run.Lacks != "" {
			fmt.Fprintf(&b, "   %s\n", r.run.Lacks)
		}
	}
	if len(c.Settings) > 0 {
		b.WriteString("\nsettings\n")
	}
	for _, s := range c.Settings {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	b.WriteByte('\n')
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tA\tB\tB − A\tnoise\t\t")
	for _, cells := range c.Rows() {
		fmt.Fprintln(tw, strings.Join(cells, "\t")+"\t")
	}
	tw.Flush()
	for _, r := range []struct {
		name string
		run  *Run
	}{{"A", &c.A}, {"B", &c.B}} {
		fmt.Fprintf(&b, "\n%s  %s\n", r.name, strings.Join(r.run.Lines(), "\n   "))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// Rows are what is compared, as text: its name, A, B, the change from A to B, its noise, and the verdict: differs,
// noise, or nothing where the noise is unknown.
func (c *Comparison) Rows() (rows [][]string) {
	for _, list := range [][]Difference{c.Quantities, c.Loss, c.Accuracy, c.Reached} {
		for i := range list {
			d := &list[i]
			rows = append(rows, []string{d.title(), d.value(d.A), d.value(d.B), d.change(), d.noise(), d.verdict()})
		}
	}
	return rows
}

// String is the run in a line.
func (r *Run) String() string { return r.Name + ": " + r.summary() }

// Lines are the modes of the run, and its slow workers.
func (r *Run) Lines() []string {
	lines := []string{r.modes()}
	for _, s := range r.Slow {
		lines = append(lines, s.String())
	}
	if len(r.Slow) == 0 {
		lines = append(lines, "no worker was slow")
	}
	return lines
}

func (r *Run) summary() string {
	if r.Model == "" {
		return r.Program + ", the training did not begin"
	}
	model, _, _ := strings.Cut(r.Model, ",")
	text := fmt.Sprintf("%s, %s, %s, %d workers, %d samples in %d updates, %s", r.Program, r.Arch, model, r.Workers, r.Samples, r.Updates, took(r.Wall))
	switch r.Ended {
	case "open":
		text += ", without its end"
	case "failed":
		text += ", failed: " + r.Error
	}
	if r.Lost > 0 {
		text += fmt.Sprintf(", %d times a worker left", r.Lost)
	}
	return text
}

// modes are those of most of the time.
func (r *Run) modes() string {
	const most = 3
	var ms []string
	for i, m := range r.Modes {
		if i == most {
			ms = append(ms, fmt.Sprintf("%d more", len(r.Modes)-most))
			break
		}
		ms = append(ms, fmt.Sprintf("%s %.0f %%", m.Plan, 100*m.Share))
	}
	text := "modes: " + strings.Join(ms, ", ")
	switch {
	case len(ms) == 0:
		text = "no mode"
	case r.Changes == 1:
		text += "; 1 change"
	default:
		text += fmt.Sprintf("; %d changes", r.Changes)
	}
	if w := float64(r.Waited); w == w {
		text += fmt.Sprintf("; workers waited for others %.0f %% of their time", 100*w)
	}
	return text
}

// String is a line of the text.
func (s Slow) String() string {
	name := fmt.Sprintf("w%d", s.Worker)
	if s.Worker < 0 {
		name = "all workers together"
	}
	factor := ""
	if f := float64(s.Slowdown); f == f {
		factor = fmt.Sprintf(" %.1fx", f)
	}
	times := ""
	if s.Times > 1 {
		times = fmt.Sprintf(", %d times", s.Times)
	}
	return fmt.Sprintf("%s%s slow, %.0f %% of the run%s: %s", name, factor, 100*s.Share, times, s.Cause)
}

// title is what is compared.
func (d *Difference) title() string {
	if d.At > 0 {
		return fmt.Sprintf("%s after %.0f samples", d.Name, d.At)
	}
	return d.Name
}

// verdict says whether the runs differ.
func (d *Difference) verdict() string {
	n := float64(d.Noise)
	switch {
	case float64(d.Change) != float64(d.Change):
		return "only one run has it"
	case n != n:
		return ""
	case d.Differs:
		return "differs"
	}
	return "noise"
}

func (d *Difference) value(n runlog.Number) string {
	v := float64(n)
	switch {
	case v != v:
		return "–"
	case d.Unit == "s":
		return took(v)
	case d.Name == "accuracy":
		return fmt.Sprintf("%.2f %%", 100*v)
	}
	return strings.TrimSpace(digits(v) + " " + d.Unit)
}

// change is relative where that says something.
func (d *Difference) change() string {
	v, of := float64(d.Change), math.Abs(float64(d.A))
	switch {
	case v != v:
		return "–"
	case d.Name == "accuracy":
		return fmt.Sprintf("%+.2f points", 100*v)
	case of > 0:
		return fmt.Sprintf("%+.1f %%", 100*v/of)
	}
	return fmt.Sprintf("%+.3g", v)
}

func (d *Difference) noise() string {
	v, of := float64(d.Noise), math.Abs(float64(d.A))
	switch {
	case v != v:
		return "–"
	case d.Name == "accuracy":
		return fmt.Sprintf("±%.2f", 100*v)
	case of > 0:
		return fmt.Sprintf("±%.1f %%", 100*v/of)
	}
	return fmt.Sprintf("±%.3g", v)
}

// digits has three or four digits.
func digits(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// took writes seconds.
func took(s float64) string {
	switch a := math.Abs(s); {
	case a == 0:
		return "0 s"
	case a < 1e-3:
		return digits(1e6*s) + " µs"
	case a < 1:
		return digits(1e3*s) + " ms"
	case a < 120:
		return digits(s) + " s"
	case a < 7200:
		return fmt.Sprintf("%.1f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

// String is the setting in a line.
func (s Setting) String() string { return fmt.Sprintf("%s: %s → %s", s.Name, word(s.A), word(s.B)) }

func word(v any) string {
	switch v := v.(type) {
	case nil:
		return "not there"
	case string:
		if v == "" {
			return "empty"
		}
		return v
	}
	return fmt.Sprint(v)
}
