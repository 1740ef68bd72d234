package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/node"
	"star/coord"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/runlog"
)

// replayed is the JSON of star replay.
type replayed struct {
	Lines     int        `json:"lines"` // passed to the controller
	Decisions []decision `json:"decisions"`
	Same      bool       `json:"same"`
	Cut       bool       `json:"cut"`               // the log ends in the middle of a line
	Notices   []string   `json:"notices,omitempty"` // of predictors that are trained again
}

// decision is one of the controller, in the log, in the replay, or in both.
type decision struct {
	T      float64 `json:"t"`
	After  int64   `json:"after"`
	Plan   string  `json:"plan"`
	Why    string  `json:"why"`
	Logged bool    `json:"logged"`
	Made   bool    `json:"replayed"`

	Unheeded string `json:"unheeded,omitempty"` // why it was not carried out
}

// differError means that a log does not replay.
type differError struct{ n int }

func (e *differError) Error() string {
	return fmt.Sprintf("%d decisions differ: was the log written by another version of star, or changed?", e.n)
}
func (e *differError) ExitCode() int { return exitcode.Failure }

func replayCommand() *cobra.Command {
	s := new(settings.Set)
	var asJSON bool
	settings.Var(s, &asJSON, "json", false, "the decisions as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "replay RUNLOG",
		Short: "Make every decision of a run again, from its log",
		Long: `Feeds the run log of a job with --mode auto, or with a --baseline that decides, to a fresh controller and compares its decisions with those in the log. They are the same, each after
the same line; exit code 1 if not. Predictors that the job trained are trained again, at once and to the same bits if this is the program and
the kind of processor that it ran on.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star replay needs one run log, or the folder of a job"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := replay(args[0])
			if err != nil {
				return err
			}
			differ := 0
			for _, d := range r.Decisions {
				if !d.Logged || !d.Made {
					differ++
				}
			}
			r.Same = differ == 0
			out := cmd.OutOrStdout()
			if asJSON {
				if err := json.NewEncoder(out).Encode(r); err != nil {
					return err
				}
			} else {
				for _, d := range r.Decisions {
					mark := "same"
					switch {
					case !d.Made:
						mark = "only in the log"
					case !d.Logged:
						mark = "only in the replay"
					case d.Unheeded != "":
						d.Why += " (not carried out: " + d.Unheeded + ")"
					}
					fmt.Fprintf(out, "%10.3fs  after %6d  %-18s  %s\n", d.T, d.After, mark, d.Why)
				}
				for _, n := range r.Notices {
					fmt.Fprintln(out, n)
				}
				fmt.Fprintf(out, "%d decisions, %d differ; %d lines\n", len(r.Decisions), differ, r.Lines)
				if r.Cut {
					fmt.Fprintln(out, "the log ends in the middle of a line: the coordinator was killed, or still runs")
				}
			}
			if differ > 0 {
				return &differError{differ}
			}
			return nil
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// replay reads a log and decides again.
func replay(path string) (*replayed, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path = f.Name()
	r := &replayed{Decisions: []decision{}}
	var pilot coord.Pilot
	told, begun := int64(0), false
	// the last line that the job's pilot got, -1: unknown; the time of the last one
	heard, last := int64(-1), time.Duration(0)
	at := map[int64]int{} // decisions of the replay by After
	logged := func(d decision) {
		d.Logged = true
		i, made := at[d.After]
		if !made || r.Decisions[i].Plan != d.Plan {
			r.Decisions = append(r.Decisions, d)
			return
		}
		r.Decisions[i].Logged = true
		r.Decisions[i].T, r.Decisions[i].Unheeded = d.T, d.Unheeded
	}
	summary, err := runlog.Read(f, path, func(l runlog.Line) error {
		last = max(last, l.T)
		switch e := l.Entry.(type) {
		case runlog.Start:
			j, err := settings.FromLog(e.Config)
			if err != nil {
				return &runlog.Error{Name: path, Line: l.Number, Err: fmt.Errorf("the configuration: %w", err)}
			}
			if j.Baseline != "" {
				_, scheme, err := node.NewBaseline(j)
				if err == nil && scheme == nil {
					err = fmt.Errorf("%s: the job ran with --baseline %s, which keeps its plan: nothing was decided", path, j.Baseline)
				}
				pilot = scheme
				return err
			}
			if j.Mode != job.Auto {
				return fmt.Errorf("%s: the job ran with --mode %s: only --mode auto and baselines decide", path, j.Mode)
			}
			pilot, err = node.NewPilot(j)
			return err
		case runlog.Train, runlog.Record, runlog.Fire, runlog.Noise, runlog.Plan, runlog.Late, runlog.Admission, runlog.Predictor, runlog.Set, runlog.Memory:
		case runlog.Leave:
		case runlog.Join:
			if !begun { // before the start; workers that return later are for the pilot
				return nil
			}
		case runlog.Unheeded:
			logged(decision{T: l.T.Seconds(), After: e.After, Plan: e.Plan, Why: e.Why, Unheeded: e.Because})
			return nil
		case runlog.Heard:
			heard = e.After
			return nil
		default:
			return nil
		}
		if pilot == nil {
			return errors.New("no start") // cannot be: runlog.Read requires it
		}
		switch e := l.Entry.(type) {
		case runlog.Plan:
			if e.After > 0 {
				logged(decision{T: l.T.Seconds(), After: e.After, Plan: treeless(e.Plan), Why: e.Why})
			}
		case runlog.Admission:
			logged(decision{T: l.T.Seconds(), After: e.After, Plan: e.Plan, Why: e.Why})
		}
		if _, ok := l.Entry.(runlog.Train); ok {
			begun = true
		}
		told++
		_, trained := l.Entry.(runlog.Predictor)
		for _, say := range pilot.Tell(runlog.Line{T: l.T, Entry: l.Entry}) {
			if say.Change != nil {
				at[told] = len(r.Decisions)
				r.Decisions = append(r.Decisions, decision{T: l.T.Seconds(), After: told, Plan: say.Change.Plan.String(), Why: say.Change.Why, Made: true})
			}
			if trained && say.Text != "" {
				r.Notices = append(r.Notices, fmt.Sprintf("line %d: %s", l.Number, say.Text))
			}
		}
		return nil
	})
	if lacks := summary.Missing.Means("no decision can be made again"); lacks != "" { // errors follow from that
		return nil, fmt.Errorf("%s: %s", path, lacks)
	}
	r.Decisions = slices.DeleteFunc(r.Decisions, func(d decision) bool {
		late := d.After > heard
		if heard < 0 {
			late = d.T > (last - unflushed).Seconds()
		}
		return late && !d.Logged
	})
	r.Lines, r.Cut = int(told), summary.Cut
	return r, err
}

// unflushed is how long lines of a run log wait in the coordinator's memory: if its process was killed, what followed
// from the last second of the log may have been done.
const unflushed = time.Second

// treeless is a plan without its tree, which is put into it by the coordinator, and not by the pilot.
func treeless(plan string) string {
	words := strings.Fields(plan)
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "tree=") }), " ")
}
