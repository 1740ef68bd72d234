package explain

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// View configures the text of a story.
type View struct {
	Width  int // columns of the timeline; 0: 100
	Colour bool
}

// maxRows is how many workers the timeline and the table show.
const maxRows = 32

// Text writes the story for people.
func (s *Story) Text(out io.Writer, v View) error {
	if v.Width == 0 {
		v.Width = 100
	}
	var b strings.Builder
	s.head(&b)
	if s.Train != nil {
		s.timeline(&b, v)
		s.told(&b)
		s.totals(&b)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (s *Story) head(b *strings.Builder) {
	if s.Train == nil {
		fmt.Fprintf(b, "%s  %s: the training did not begin\n", s.Start.Program, s.Arch)
	} else {
		model, _, _ := strings.Cut(s.Train.Model, ",")
		wall := s.Ended - s.Began
		if s.End != nil {
			wall = s.End.Wall.Duration()
		}
		fmt.Fprintf(b, "%s  %s, %s on %s, %d workers: %s, %s", s.Start.Program, s.Arch, model, s.Train.Data, s.part(), s.done(), took(wall))
		speed := s.speed(s.Began, s.Ended)
		if s.End != nil {
			speed = s.End.SamplesPerS
		}
		if speed > 0 {
			fmt.Fprintf(b, " (%.0f samples/s)", speed)
		}
		if !math.IsNaN(s.Accuracy) {
			fmt.Fprintf(b, ", accuracy %.2f %%", 100*s.Accuracy)
		}
		b.WriteByte('\n')
	}
	for _, n := range s.Start.Notes {
		fmt.Fprintf(b, "on purpose: %s\n", n)
	}
	switch {
	case s.Read.Cut:
		fmt.Fprintf(b, "The log ends in the middle of line %d: the coordinator was killed, or still writes.\n", s.Read.Lines+1)
	case s.End == nil:
		b.WriteString("The log has no summary: the coordinator was killed, or still writes.\n")
	case strings.HasPrefix(s.End.Error, "ended by a signal"): // job.SignalError
		fmt.Fprintf(b, "The job was %s\n", s.End.Error)
	case s.End.Error != "":
		fmt.Fprintf(b, "The job failed: %s\n", s.End.Error)
	}
	if lacks := s.Lacks(); lacks != "" {
		fmt.Fprintln(b, lacks)
	}
	kinds := make([]string, 0, len(s.Read.Unknown))
	for k := range s.Read.Unknown {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d of %q", s.Read.Unknown[k], k)
	}
	if len(kinds) > 0 {
		fmt.Fprintf(b, "Lines of a type that this program does not know were passed over: %s.\n", strings.Join(kinds, ", "))
	}
}

// Lacks describes what the log's size limit dropped, and the consequence for the story; empty if it is complete.
func (s *Story) Lacks() string {
	return s.Read.Missing.Means("samples and updates count, iterations and waits of that time do not, and its slow " +
		"workers are those of the job's own verdicts")
}

// part is how many workers have had a part in the job.
func (s *Story) part() (n int) {
	for i := range s.Workers {
		if !s.Workers[i].Never {
			n++
		}
	}
	return n
}

// shown are the workers that have a row: if there are too many, those that were slow for longest
// and those that left.
func (s *Story) shown() []int {
	var ws []int
	for i := range s.Workers {
		if !s.Workers[i].Never {
			ws = append(ws, i)
		}
	}
	if len(ws) > maxRows {
		slow := s.slowFor()
		slices.SortStableFunc(ws, func(a, b int) int {
			return cmp.Or(cmp.Compare(slow[b], slow[a]), cmp.Compare(s.Workers[b].Left, s.Workers[a].Left))
		})
		ws = ws[:maxRows]
		slices.Sort(ws)
	}
	return ws
}

// slowFor is for how long each worker was slow.
func (s *Story) slowFor() []time.Duration {
	slow := make([]time.Duration, len(s.Workers))
	for _, e := range s.Episodes {
		slow[e.Worker] += e.Until - e.Since
	}
	return slow
}

// Characters of the timeline.
const (
	working, slowly, waiting, nothing = '=', '#', '.', ' '
)

func (s *Story) timeline(b *strings.Builder, v View) {
	rows := s.shown()
	label := 5
	if len(rows) > 0 {
		label = max(label, len(fmt.Sprintf("w%d ", rows[len(rows)-1])))
	}
	cols := max(v.Width-label, 20)
	span := s.Ended - s.Began
	if span <= 0 {
		return
	}
	col := func(t time.Duration) int {
		return min(max(int(float64(t-s.Began)/float64(span)*float64(cols)), 0), cols-1)
	}
	b.WriteByte('\n')

	mode := []rune(strings.Repeat(" ", cols))
	write := func(at, end int, text string) {
		for i, r := range []rune(text) {
			if at+i >= end {
				break
			}
			mode[at+i] = r
		}
	}
	plans := append([]Change{{T: s.Began, Plan: s.plan}}, s.Changes...)
	for i, c := range plans {
		at, end := col(c.T), cols
		if i+1 < len(plans) {
			end = col(plans[i+1].T)
		}
		if i > 0 {
			write(at, cols, "|")
			at++
		}
		write(at, end, c.Plan)
	}
	fmt.Fprintf(b, "%-*s%s\n", label, "mode", strings.TrimRight(string(mode), " "))

	for _, w := range rows {
		fmt.Fprintf(b, "%-*s%s\n", label, fmt.Sprintf("w%d", w), paint(strings.TrimRight(string(s.row(w, cols)), " "), v.Colour))
	}
	if n := s.part() - len(rows); n > 0 {
		fmt.Fprintf(b, "%-*sand %d workers more\n", label, "", n)
	}

	// The axis: a tick every 1, 2 or 5 times a power of ten seconds, 12 columns apart at least.
	step := 1e-3
	for k := 0; step*float64(cols)/span.Seconds() < 12; k++ {
		step *= []float64{2, 2.5, 2}[k%3]
	}
	axis, ticks := []rune(strings.Repeat(" ", cols)), []rune(strings.Repeat("-", cols))
	for x := math.Ceil(s.Began.Seconds()/step) * step; x <= s.Ended.Seconds(); x += step {
		at := col(time.Duration(x * float64(time.Second)))
		ticks[at] = '+'
		text := fmt.Sprintf("%.6g s", x)
		if at+len(text) <= cols {
			copy(axis[at:], []rune(text))
		}
	}
	fmt.Fprintf(b, "%-*s%s\n%-*s%s\n", label, "", string(ticks), label, "t", strings.TrimRight(string(axis), " "))
	fmt.Fprintf(b, "%-*s%c works  %c slow  %c waits for others  blank: neither (evaluates, has not begun, is gone)\n", label, "", working, slowly, waiting)
}

// row is one worker's line of the timeline: what it did for most of each column's time.
func (s *Story) row(w, cols int) []rune {
	width := float64(s.Ended-s.Began) / float64(cols)
	busy, wait := make([]float64, cols), make([]float64, cols)
	spread := func(into []float64, from, to time.Duration) {
		a, z := max(float64(from-s.Began)/width, 0), min(float64(to-s.Began)/width, float64(cols))
		for c := int(a); float64(c) < z; c++ {
			into[c] += min(z, float64(c+1)) - max(a, float64(c))
		}
	}
	for _, it := range s.Workers[w].Iterations {
		began := it.T - it.Busy
		spread(busy, began, it.T)
		spread(wait, began-it.Wait, began)
	}
	row := make([]rune, cols)
	for c := range row {
		switch {
		case busy[c]+wait[c] < 0.1:
			row[c] = nothing
		case busy[c] >= wait[c]:
			row[c] = working
		default:
			row[c] = waiting
		}
	}
	for _, e := range s.Episodes {
		if int(e.Worker) != w {
			continue
		}
		a, z := float64(e.Since-s.Began)/width, float64(e.Until-s.Began)/width
		for c := int(a); c < cols && float64(c) < z; c++ {
			row[c] = slowly
		}
	}
	return row
}

// paint makes slowness red and waiting faint.
func paint(row string, colour bool) string {
	if !colour {
		return row
	}
	var b strings.Builder
	last := ""
	for _, r := range row {
		code := ""
		switch r {
		case slowly:
			code = "\x1b[31m"
		case waiting:
			code = "\x1b[2m"
		}
		if code != last {
			if last != "" {
				b.WriteString("\x1b[0m")
			}
			b.WriteString(code)
			last = code
		}
		b.WriteRune(r)
	}
	if last != "" {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// told writes the slow workers, and the reactions.
func (s *Story) told(b *strings.Builder) {
	b.WriteByte('\n')
	if len(s.Episodes) == 0 {
		b.WriteString("No worker was slow.\n")
	}
	for _, h := range s.Hangs {
		until := "to the end"
		if h.Until > 0 {
			until = "for " + took(h.Until-h.Since)
		}
		fmt.Fprintf(b, "hang at %s, %s: %s\n", took(h.Since), until, h.Text)
	}
	for _, e := range s.Episodes {
		fmt.Fprintf(b, "%s\n", s.line(e))
	}
	for _, e := range s.Together {
		fmt.Fprintf(b, "%s\n", e)
	}
	for _, p := range s.Poison {
		fmt.Fprintf(b, "%s\n", p)
	}
	for _, g := range s.Gone {
		back := ""
		if g.Back > 0 {
			back = ", back at " + took(g.Back)
		}
		after := ""
		if g.Step >= 0 {
			after = fmt.Sprintf(" after it %d,", g.Step)
		}
		fmt.Fprintf(b, "w%d gone%s at %s%s: %s\n", g.Worker, after, took(g.T), back, g.Why)
	}
	for _, a := range s.Aside {
		fmt.Fprintf(b, "put aside samples %d to %d of the stream, which killed w%d, then w%d: %s\n",
			a.Start, a.Start+int64(a.Count)-1, a.Workers[0], a.Workers[1], a.Why)
	}
	for _, c := range s.Came {
		fmt.Fprintf(b, "w%d joined at %s, from %s\n", c.Worker, took(c.T), c.Peer)
	}
	for _, p := range s.Short {
		until := "to the end"
		if p.Until > 0 {
			until = "for " + took(p.Until-p.T)
		}
		fmt.Fprintf(b, "waited for workers at %s, %s: %d were there, at least %d are wanted\n", took(p.T), until, p.Workers, p.Least)
	}
	for i, c := range s.Changes {
		if i == 0 {
			b.WriteString("\nchanges of mode\n")
		}
		fmt.Fprintf(b, "  %8s  %s → %s%s", took(c.T), c.From, c.Plan, gains(c))
		if !math.IsNaN(c.Before) && !math.IsNaN(c.After) {
			fmt.Fprintf(b, ", %.0f → %.0f samples/s", c.Before, c.After)
		}
		fmt.Fprintf(b, ": %s\n", cmp.Or(c.Why, "no reason given"))
	}
	for i, c := range s.Sets {
		if i == 0 {
			b.WriteString("\nchanges of thresholds\n")
		}
		fmt.Fprintf(b, "  %8s  %s: %v → %v: %s\n", took(c.T), c.Name, float64(c.From), float64(c.Value), c.Why)
	}
	for i, c := range s.Shifts {
		if i == 0 {
			b.WriteString("\nmoves of shards\n")
		}
		fmt.Fprintf(b, "  %8s  shard %d, server %d → %d%s", took(c.T), c.Shard, c.From, c.To, gains(Change{Predicted: c.Predicted, Seen: c.Seen, Reverted: c.Back}))
		switch {
		case c.Err != "":
			fmt.Fprintf(b, ", stayed: %s", c.Err)
		case c.Why != "":
			fmt.Fprintf(b, ": %s", c.Why)
		}
		b.WriteByte('\n')
	}
	for i, c := range s.Copies {
		if i == 0 {
			b.WriteString("\ncopies of shards\n")
		}
		fmt.Fprintf(b, "  %8s  %s\n", took(c.T), c)
	}
	for i, o := range s.Odd {
		if i == 0 {
			b.WriteString("\nimpossible measurements\n")
		}
		if i == 5 {
			fmt.Fprintf(b, "  … %d more\n", len(s.Odd)-i)
			break
		}
		fmt.Fprintf(b, "  %s\n", o)
	}
}

// String is a line of the story.
func (c Copied) String() string {
	var what string
	switch c.Event {
	case "promoted":
		what = fmt.Sprintf("server %d is lost, server %d answers in its place", c.Server, c.Primary)
	case "lost":
		what = fmt.Sprintf("server %d is lost, which had a copy", c.Server)
	case "copied":
		what = fmt.Sprintf("server %d has got a copy in %s", c.Server, took(c.Took.Duration()))
	default:
		what = fmt.Sprintf("server %d has no copy", c.Server)
	}
	s := fmt.Sprintf("shard %d: %s (term %d), %d of %d copies", c.Shard, what, c.Term, 1+len(c.Followers), c.Of)
	if c.Pause > 0 {
		s += ", the next update came " + took(c.Pause) + " after the last one"
	}
	if c.Why != "" {
		s += ": " + c.Why
	}
	return s
}

// String is a line of the story.
func (p Poisoned) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "w%d poison, ", p.Worker)
	switch p.Cause {
	case "flipped":
		fmt.Fprintf(&b, "it %d", p.From)
		if p.Over {
			fmt.Fprintf(&b, "–%d", p.To)
		} else {
			b.WriteString(" to the end")
		}
		fmt.Fprintf(&b, ": gradients against all others (mean cosine %.2f)", p.Value)
	case "exploding":
		fmt.Fprintf(&b, "it %d–%d: %d exploding gradients (up to %.3g times the median norm)", p.From, p.To, p.Count, p.Value)
	default:
		fmt.Fprintf(&b, "it %d–%d: %d gradients %s", p.From, p.To, p.Count, strings.ReplaceAll(p.Cause, "-", " "))
	}
	if p.Where != "" {
		b.WriteString(", in " + p.Where)
	}
	if p.Fatal {
		b.WriteString(" → the end of the job")
	} else {
		b.WriteString(" → left out")
	}
	return b.String()
}

// line is one episode.
func (s *Story) line(e Episode) string {
	slowdown := ""
	if !math.IsNaN(e.Slowdown) {
		slowdown = fmt.Sprintf(" %.1fx", e.Slowdown)
	}
	text := e.Cause
	var ts []string
	for _, x := range e.Evidence {
		if x.Text != "" {
			ts = append(ts, x.Text)
		}
	}
	if len(ts) > 0 {
		text = strings.Join(ts, ", ")
		if e.Cause == "unknown" {
			text = "unknown: " + text
		}
	}
	if len(e.Others) > 0 {
		text += " (for a while: " + strings.Join(e.Others, ", ") + ")"
	}
	end := ""
	if e.Open {
		end = ", to the end"
	}
	action := "nothing was done"
	if e.Action >= 0 {
		c := s.Changes[e.Action]
		action = "mode " + c.Plan + gains(c)
	}
	return fmt.Sprintf("w%d%s slow, it %d–%d (%s%s): %s → %s; others waited %s", e.Worker, slowdown, e.From, e.To, took(e.Until-e.Since), end, text, action, took(e.Waited))
}

// String is a line of the story.
func (e Together) String() string {
	var ts []string
	for _, x := range e.Evidence {
		ts = append(ts, x.Text)
	}
	where := ""
	if len(e.Hosts) > 0 {
		where = " on " + strings.Join(e.Hosts, ", ")
	}
	end := ""
	if e.Open {
		end = ", to the end"
	}
	text := strings.Join(ts, ", ")
	if e.Cause == "unknown" {
		text = "unknown: " + text
	}
	if len(e.Causes) > 1 {
		text += " (in turn: " + strings.Join(e.Causes, ", ") + ")"
	}
	return fmt.Sprintf("all workers%s %.1fx slow together, against the job's own past, from %s (%s%s): %s", where, e.factor.Value(), took(e.Since), took(e.Until-e.Since), end, text)
}

// gains is what a change was to bring, and did; empty if neither is known.
func gains(c Change) string {
	pct := func(v float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*v)+0) } // + 0: no minus zero
	var ps []string
	if !math.IsNaN(c.Predicted) {
		ps = append(ps, pct(c.Predicted)+" predicted")
	}
	if !math.IsNaN(c.Seen) {
		ps = append(ps, pct(c.Seen)+" seen")
	}
	text := ""
	if len(ps) > 0 {
		text = "gain " + strings.Join(ps, ", ")
	}
	switch {
	case c.Reverted && text != "":
		text += "; reverted"
	case c.Reverted:
		text = "reverted"
	}
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// totals is where the time went.
func (s *Story) totals(b *strings.Builder) {
	b.WriteByte('\n')
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "worker\titerations\town time\twaited\tof its time\tslow for\t")
	slow := s.slowFor()
	rows := s.shown()
	var iterations int
	var waited, there, slowly time.Duration
	for w := range s.Workers {
		l := &s.Workers[w]
		stay := s.Ended - s.known
		if l.Left > 0 {
			stay = max(l.Left-s.known, 0)
		}
		stay -= l.Away
		var busy []float64
		var wait time.Duration
		for _, it := range l.Iterations {
			busy = append(busy, it.Busy.Seconds())
			wait += it.Wait
		}
		iterations, waited, there, slowly = iterations+len(l.Iterations), waited+wait, there+stay, slowly+slow[w]
		if !slices.Contains(rows, w) {
			continue
		}
		own := "-"
		if len(busy) > 0 {
			own = took(time.Duration(middle(busy) * float64(time.Second)))
		}
		fmt.Fprintf(tw, "w%d\t%d\t%s\t%s\t%s\t%s\t\n", w, len(l.Iterations), own, took(wait), part(wait, stay), took(slow[w]))
	}
	fmt.Fprintf(tw, "all\t%d\t\t%s\t%s\t%s\t\n", iterations, took(waited), part(waited, there), took(slowly))
	tw.Flush()
}

func part(d, of time.Duration) string {
	if of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(d)/float64(of))
}

// took writes a time to two or three digits.
func took(d time.Duration) string {
	switch s := d.Seconds(); {
	case d == 0:
		return "0 s"
	case s < 0.1:
		return fmt.Sprintf("%.2g ms", 1e3*s)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", 1e3*s)
	case s < 9.95:
		return fmt.Sprintf("%.1f s", s)
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	case s < 7200:
		return fmt.Sprintf("%.1f min", s/60)
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// done is what the log has of the job. A resumed job counts on from the samples of its checkpoint; a
// log without a summary does not have their number.
func (s *Story) done() string {
	switch {
	case s.Train.Version == 0:
		return fmt.Sprintf("%d samples in %d updates", s.Samples, s.Updates)
	case s.End != nil:
		return fmt.Sprintf("%d samples in %d updates after version %d", s.End.Samples, s.Updates, s.Train.Version)
	}
	return fmt.Sprintf("%d samples in all, %d updates after version %d", s.Samples, s.Updates, s.Train.Version)
}
