package console

import (
	"fmt"
	"strings"
	"time"

	"star/coord"
	"star/runlog"
)

// Table draws the state of a job in lines of at most width columns.
func Table(s coord.Status, width int) []string {
	var out []string
	line := func(format string, a ...any) { out = append(out, cut(fmt.Sprintf(format, a...), width)) }
	if s.Phase == "joining" {
		line("%s  waiting for %s", s.Phase, s.Waiting)
		return out
	}
	// the longest part is cut; progress has a line of its own
	line("%s", strings.TrimSpace(fmt.Sprintf("%-10s %s", s.Phase, progress(s))))
	mode := fmt.Sprintf("v%d  mode %s", s.Version, s.Mode)
	if s.Noise.Scale > 0 {
		mode = fmt.Sprintf("v%d  noise scale %.0f  mode %s", s.Version, s.Noise.Scale, s.Mode)
	}
	line("  %s", mode)
	if s.Slowdown != "" {
		line("  %s", marked(s.Slowdown))
	}
	if r := s.Refused; r != nil {
		line("  %s", refusal(s))
	}
	if m := s.Shift; m != nil && len(m.Notes) > 0 {
		n := m.Notes[len(m.Notes)-1]
		line("  shard %d, server %d → %d, %s at %s: %s", n.Shard, n.From, n.To, n.Event, Seconds(m.At), gains(n))
	}
	line(" rank state       step    iter compute    wait  rate/s late")
	absent := 0
	for _, w := range s.Workers {
		if w.State == "absent" {
			absent++
			continue
		}
		slow := ""
		if w.Slowdown > 0 {
			slow = fmt.Sprintf(" %s %.1fx %s", slowMark, w.Slowdown, w.Cause)
		}
		line(" %4d %-9s %6d %7s %7s %7s %7.0f %4d%s", w.Worker, w.State, w.Step,
			Seconds(w.Iteration), Seconds(w.Compute), Seconds(w.Wait), w.Rate, w.Stale, slow)
	}
	if absent > 0 {
		line("  and room for %d more", absent)
	}
	few, of := 0, 0
	for _, sh := range s.Shards {
		if of = max(of, sh.Replicas); 1+len(sh.Followers) < sh.Replicas {
			few++
		}
	}
	if few > 0 {
		line("  shards with fewer than %d copies: %d of %d (--replicas)", of, few, len(s.Shards))
	}
	if s.Short > 0 {
		line("  waits for workers, at least %d are wanted (--min-workers)", s.Short)
	}
	return out
}

// slowMark follows a worker that is slow, and hangMark is before what hangs; a terminal shows them in red.
const slowMark, hangMark = "SLOW", "HANG"

// marked is what holds up all workers, behind its mark.
func marked(slowdown string) string {
	if what, hangs := strings.CutPrefix(slowdown, "hang: "); hangs {
		return hangMark + " " + what
	}
	return slowMark + " " + slowdown
}

// refusal describes a change that the pilot wants and policy forbids.
func refusal(s coord.Status) string {
	ago := time.Duration(max(s.Elapsed-s.Refused.At, 0) * float64(time.Second))
	return fmt.Sprintf("%s refused %v ago: %s", s.Refused.Mode, ago.Round(time.Second), s.Refused.Why)
}

// gains compares the predicted and the actual saving of a move of a shard, per round.
func gains(n runlog.Shift) string {
	text := fmt.Sprintf("%.0f %% of a round predicted", 100*n.Predicted)
	if seen := float64(n.Seen); seen == seen {
		text += fmt.Sprintf(", %.0f %% seen", 100*seen)
	}
	return text
}

// progress is the progress of the job, on one line.
func progress(s coord.Status) string {
	if s.Limit == 0 { // a job that is not STAR's
		return fmt.Sprintf("%s  %.0f samples/s", time.Duration(s.Elapsed*float64(time.Second)).Round(time.Second), s.Rate)
	}
	done := 100 * float64(s.Samples) / float64(max(s.Limit, 1))
	text := fmt.Sprintf("epoch %.2f  %3.0f %%  ", float64(s.Samples)/float64(max(s.EpochSize, 1)), done)
	if s.Rate > 0 && s.Phase == "training" && s.Short == 0 { // no end can be estimated while the job waits for workers
		left := time.Duration(float64(s.Limit-s.Samples) / s.Rate * float64(time.Second))
		text += left.Round(time.Second).String() + " left  "
	}
	if s.TestAcc > 0 {
		text += fmt.Sprintf("test %.2f %%  ", 100*s.TestAcc)
	}
	text += fmt.Sprintf("%.0f samples/s  loss %.4f", s.Rate, s.Loss)
	return text
}

// Seconds formats a time in seconds with a unit that fits; - for none.
func Seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1fms", s*1e3)
	case s >= 10e-6:
		return fmt.Sprintf("%.0fµs", s*1e6)
	case s > 0:
		return fmt.Sprintf("%.1fµs", s*1e6)
	}
	return "-"
}

// cut shortens s to width columns. All printed characters are one column wide.
func cut(s string, width int) string {
	r := []rune(s)
	if width < 1 || len(r) <= width {
		return s
	}
	return strings.TrimRight(string(r[:width-1]), " ") + "…"
}
