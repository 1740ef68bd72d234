package sched

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/runlog"
	"star/sched"
	"star/sched/schedsim"
	"star/sched/workload"
)

// schedPair is what became of the jobs in one schedule beside what became of them in another, of star sched compare
// --json. Times are s; means are of the jobs that ended in both.
type schedPair struct {
	A        string        `json:"a"`
	B        string        `json:"b"`
	Jobs     int           `json:"jobs"`
	Both     int           `json:"ended_in_both"`
	OnlyA    int           `json:"ended_in_a_alone"`
	OnlyB    int           `json:"ended_in_b_alone"`
	Same     int           `json:"start_and_end_the_same"`
	Sooner   int           `json:"end_sooner_in_b"`
	Later    int           `json:"end_later_in_b"`
	MetA     int           `json:"met_deadline_in_a_alone"`
	MetB     int           `json:"met_deadline_in_b_alone"`
	JCTA     runlog.Number `json:"mean_jct_a_s"`
	JCTB     runlog.Number `json:"mean_jct_b_s"`
	Mean     runlog.Number `json:"mean_difference_s"` // of b less a
	Error    runlog.Number `json:"standard_error_s"`
	Differ   []schedDiffer `json:"differ_first"`
	outcomes []schedDiffer
}

// schedDiffer is a job that differs between two schedules.
type schedDiffer struct {
	Job        string        `json:"job_id"`
	At         float64       `json:"at"` // the first time at which they differ
	StartA     runlog.Number `json:"start_a"`
	StartB     runlog.Number `json:"start_b"`
	EndA       runlog.Number `json:"end_a"`
	EndB       runlog.Number `json:"end_b"`
	Difference runlog.Number `json:"jct_difference_s"` // of b less a; NaN: it did not end in both
	DeclinedA  bool          `json:"declined_a"`
	DeclinedB  bool          `json:"declined_b"`
	differs    bool
}

func schedCompareCommand() *cobra.Command {
	var s settings.Set
	first, jobs, asJSON := 5, "", false
	settings.Var(&s, &first, "first", 5, "how many of the differing jobs to list, by the earliest difference")
	settings.Var(&s, &jobs, "jobs", "", "write what became of each job in both to this file, as CSV; - is standard output")
	settings.Var(&s, &asJSON, "json", false, "the comparison as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "compare TABLE [TABLE]",
		Short: "Compare schedules job by job: what star sched sim --jobs has written",
		Long: `Reads tables of jobs and says for each policy but the first how much sooner or later jobs end than under the first one, in pairs: the mean difference of those that end
under both, with its standard error. With two tables each policy of the second one is compared with that of the same name in the first, or with the only one there.
It lists the jobs that differ first: of two simulations that should be the same, or that follow one another, these show where to look.

  star sched sim jobs.csv --cluster n16g8 --policy fifo,srtf --jobs out.csv && star sched compare out.csv
  star sched compare before.csv after.csv --jobs differences.csv

Files may be packed by gzip.`,
		Args: func(cmd *cobra.Command, args []string) error {
			return wantArgs(cmd, args, 1, 2, "one table of jobs or two")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if jobs == "-" && asJSON {
				return &settings.UsageError{Msg: "--jobs - writes the jobs in the place of the comparison: leave out --json, or give a file to --jobs"}
			}
			if first < 0 {
				return s.Invalid("first", errors.New("want 0 or more"))
			}
			pairs, err := comparedSchedules(args, first)
			if err != nil {
				return err
			}
			if err := schedsim.KeepInput(&s, "jobs", jobs, map[string]string{"the first table": args[0], "the last table": args[len(args)-1]}); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			f, err := schedsim.Output(jobs, w)
			if err != nil {
				return err
			}
			if f != nil {
				if err := errors.Join(writeDifferences(f, pairs), f.Close()); err != nil || jobs == "-" {
					return job.WriteError(err)
				}
			}
			if asJSON {
				return json.NewEncoder(w).Encode(pairs)
			}
			return printPairs(w, pairs)
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

// comparedSchedules reads tables and compares what belongs together.
func comparedSchedules(files []string, first int) (pairs []*schedPair, err error) {
	var tables [2][]workload.Schedule
	for i, name := range files {
		if err := schedsim.ReadInput(name, func(r io.Reader) (err error) {
			tables[i], err = workload.ReadOutcomes(r)
			return err
		}); err != nil {
			return nil, err
		}
	}
	a, b := tables[0], tables[1]
	nameA, nameB := files[0], files[len(files)-1]
	if len(files) == 1 {
		if a, b = a[:1], a[1:]; len(b) == 0 {
			return nil, &settings.UsageError{Msg: fmt.Sprintf("%s has the policy %q alone: give a table of several policies, or a second table", nameA, a[0].Policy)}
		}
	}
	for _, of := range b {
		with := slices.IndexFunc(a, func(h workload.Schedule) bool { return h.Policy == of.Policy })
		if with < 0 && len(a) == 1 {
			with = 0
		}
		if with < 0 {
			return nil, job.FileError(workload.Bad("%s has the policy %q, and %s has not: give a table with it, or one of a single policy", nameB, of.Policy, nameA), workload.ErrInput)
		}
		p, err := pairUp(a[with].Jobs, of.Jobs)
		if err != nil {
			return nil, job.FileError(workload.Bad("%s and %s: %v", nameA, nameB, err), workload.ErrInput)
		}
		if p.A, p.B = a[with].Policy, of.Policy; len(files) == 2 {
			p.A, p.B = nameA+" "+p.A, nameB+" "+p.B
		}
		p.Differ = p.Differ[:min(first, len(p.Differ))]
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// pairUp compares what two schedules made of the same jobs.
func pairUp(a, b []sched.Outcome) (*schedPair, error) {
	index := map[string]*sched.Outcome{}
	for i := range a {
		index[a[i].ID] = &a[i]
	}
	p := &schedPair{Jobs: len(a), Differ: []schedDiffer{}}
	sumA, sumB, sum, squares := 0., 0., 0., 0.
	for i := range b {
		x, y := index[b[i].ID], &b[i]
		if x == nil {
			return nil, fmt.Errorf("job %s is in the second schedule alone: compare schedules of one trace", y.ID)
		}
		delete(index, y.ID)
		d := differing(x, y)
		p.outcomes = append(p.outcomes, d)
		ended := func(o *sched.Outcome) bool { return !math.IsNaN(o.End) }
		switch {
		case ended(x) && ended(y):
			p.Both++
			sumA, sumB, sum, squares = sumA+x.JCT(), sumB+y.JCT(), sum+float64(d.Difference), squares+float64(d.Difference*d.Difference)
			if d.Difference < 0 {
				p.Sooner++
			} else if d.Difference > 0 {
				p.Later++
			}
		case ended(x):
			p.OnlyA++
		case ended(y):
			p.OnlyB++
		}
		met := func(o *sched.Outcome) bool { return !o.Declined() && o.Met() }
		switch {
		case met(x) && !met(y):
			p.MetA++
		case met(y) && !met(x):
			p.MetB++
		}
		if d.differs {
			p.Differ = append(p.Differ, d)
		} else {
			p.Same++
		}
	}
	for _, o := range a {
		if index[o.ID] != nil {
			return nil, fmt.Errorf("job %s is in the first schedule alone: compare schedules of one trace", o.ID)
		}
	}
	n := float64(p.Both)
	p.JCTA, p.JCTB, p.Mean = runlog.Number(sumA/n), runlog.Number(sumB/n), runlog.Number(sum/n)
	p.Error = runlog.Number(math.Sqrt(max(0, squares-sum*sum/n) / (n - 1) / n))
	slices.SortStableFunc(p.Differ, func(a, b schedDiffer) int { return cmp.Compare(a.At, b.At) })
	return p, nil
}

// differing compares what became of a job.
func differing(x, y *sched.Outcome) schedDiffer {
	d := schedDiffer{Job: x.ID, StartA: runlog.Number(x.Start), StartB: runlog.Number(y.Start), EndA: runlog.Number(x.End), EndB: runlog.Number(y.End), Difference: runlog.Number(y.JCT() - x.JCT()),
		DeclinedA: x.Declined(), DeclinedB: y.Declined(), At: math.Inf(1)}
	for _, t := range [][2]float64{{x.Start, y.Start}, {x.End, y.End}} {
		if t[0] != t[1] && !(math.IsNaN(t[0]) && math.IsNaN(t[1])) {
			for _, v := range t {
				if !math.IsNaN(v) {
					d.At = min(d.At, v)
				}
			}
			d.differs = true
		}
	}
	if d.DeclinedA != d.DeclinedB {
		d.At, d.differs = min(d.At, x.Submit), true
	}
	return d
}

// printPairs writes comparisons for people.
func printPairs(w io.Writer, pairs []*schedPair) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "a\tb\tjobs\tin both ended\tthe same\tsooner in b\tlater in b\tmean JCT a s\tmean JCT b s\tb less a s\tstandard error\tmet in a alone\tin b alone\t")
	number := func(v runlog.Number) string {
		if math.IsNaN(float64(v)) {
			return "–"
		}
		return fmt.Sprintf("%.1f", float64(v))
	}
	for _, p := range pairs {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t\n", p.A, p.B, p.Jobs, p.Both, p.Same, p.Sooner, p.Later, number(p.JCTA), number(p.JCTB), number(p.Mean), number(p.Error), p.MetA, p.MetB)
	}
	for _, p := range pairs {
		if len(p.Differ) == 0 {
			continue
		}
		fmt.Fprintf(tw, "\nfirst to differ in %s and %s:\n", p.A, p.B)
		fmt.Fprintln(tw, "job\tstart a\tstart b\tend a\tend b\tb less a s\t")
		for _, d := range p.Differ {
			says := func(v runlog.Number, declined bool) string {
				if declined {
					return "declined"
				}
				return number(v)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t\n", d.Job, says(d.StartA, d.DeclinedA), says(d.StartB, d.DeclinedB), number(d.EndA), number(d.EndB), number(d.Difference))
		}
	}
	return tw.Flush()
}

// writeDifferences writes what became of each job in both, as CSV. What did not happen is empty.
func writeDifferences(w io.Writer, pairs []*schedPair) error {
	out := csv.NewWriter(w)
	out.Write([]string{"a", "b", "job_id", "start_a", "start_b", "end_a", "end_b", "declined_a", "declined_b", "jct_difference"})
	number := func(v runlog.Number) string {
		if math.IsNaN(float64(v)) {
			return ""
		}
		return strconv.FormatFloat(float64(v), 'f', -1, 64)
	}
	for _, p := range pairs {
		for _, d := range p.outcomes {
			out.Write([]string{p.A, p.B, d.Job, number(d.StartA), number(d.StartB), number(d.EndA), number(d.EndB), fmt.Sprint(d.DeclinedA), fmt.Sprint(d.DeclinedB), number(d.Difference)})
		}
	}
	out.Flush()
	return out.Error()
}
