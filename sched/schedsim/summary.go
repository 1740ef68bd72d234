package schedsim

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
	"time"

	"star/runlog"
	"star/sched"
)

// Result is the result of one policy in star sched sim --json.
type Result struct {
	Policy string `json:"policy"`
	sched.Summary
	Ratio   runlog.Number `json:"jct_ratio"` // relative to the first policy; NaN: no job ended under both
	Seconds float64       `json:"simulated_in_s"`
}

// Summary is the results of all policies.
type Summary struct {
	first   []sched.Outcome
	Results []Result
}

// Add adds the outcomes of a policy.
func (s *Summary) Add(policy string, out []sched.Outcome, took time.Duration) {
	if s.first == nil {
		s.first = out
	}
	of, to := 0., 0.
	for i, o := range out {
		if f := s.first[i]; !math.IsNaN(o.JCT()) && !math.IsNaN(f.JCT()) {
			of, to = of+o.JCT(), to+f.JCT()
		}
	}
	s.Results = append(s.Results, Result{policy, sched.Summarize(out), runlog.Number(of / to), took.Seconds()})
}

// Table prints the results as a table.
func (s *Summary) Table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	header := "policy\tjobs\tended\tdeclined\tmet deadline\tmean JCT s\tp99 JCT s\tmean queue s\tmakespan s\tpreemptions\t"
	if len(s.Results) > 1 {
		header += "JCT ratio\t"
	}
	fmt.Fprintln(tw, header)
	for _, r := range s.Results {
		met := "–"
		if r.Deadlines > 0 {
			met = fmt.Sprintf("%.1f %%", 100*float64(r.Met)/float64(max(r.Jobs, 1)))
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%.1f\t%.0f\t%.1f\t%.0f\t%d\t", r.Policy, r.Jobs, r.Ended, r.Declined, met, r.JCT, r.P99, r.Queue, r.Makespan, r.Preemptions)
		if len(s.Results) > 1 {
			ratio := "–"
			if !math.IsNaN(float64(r.Ratio)) {
				ratio = fmt.Sprintf("%.3f", float64(r.Ratio))
			}
			fmt.Fprintf(tw, "%s\t", ratio)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// CSV writes the fields of the JSON form as CSV.
func (s *Summary) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	out.Write([]string{"policy", "jobs", "ended", "declined", "met_deadline", "mean_jct_s", "p99_jct_s", "mean_queue_s", "makespan_s", "preemptions", "jct_ratio", "simulated_in_s", "jobs_with_deadline"})
	number := func(v float64) string {
		if math.IsNaN(v) {
			return ""
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	for _, r := range s.Results {
		out.Write([]string{r.Policy, strconv.Itoa(r.Jobs), strconv.Itoa(r.Ended), strconv.Itoa(r.Declined), strconv.Itoa(r.Met), number(r.JCT), number(r.P99),
			number(r.Queue), number(r.Makespan), strconv.Itoa(r.Preemptions), number(float64(r.Ratio)), number(r.Seconds), strconv.Itoa(r.Deadlines)})
	}
	out.Flush()
	return out.Error()
}
