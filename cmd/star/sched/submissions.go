package sched

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"gonum.org/v1/gonum/stat"

	"star/job"
	"star/sched/estimate"
	"star/sched/workload"
)

const (
	tenMinutes  = 600.       // s
	hour        = 6          // ten minutes
	day         = 24 * hour  // ten minutes
	longestSpan = 3660 * day // of both traces, ten minutes
	latestClock = 9e9        // s: 285 years
)

// lucidRounds are those of Lucid's model of submissions, and lucidPairs its pairs of features.
var lucidRounds = estimate.Boosting{Rate: .1}

const lucidPairs = 10

// submissions is how many jobs with GPUs a trace has, and how many GPUs, for each ten minutes from first to last.
type submissions struct {
	first, last         int // ten minutes of the trace's clock
	firstLine, lastLine int // of the file, where these are
	jobs, gpus          map[int]float64
}

func (t *jobTable) submissions() (*submissions, error) {
	submit, err := t.numbers("submit", "submit_time")
	if err != nil {
		return nil, err
	}
	gpus, err := t.numbers("gpus", "gpu_num")
	if err != nil {
		return nil, err
	}
	s := &submissions{first: math.MaxInt, last: -1, jobs: map[int]float64{}, gpus: map[int]float64{}}
	for i, v := range submit {
		if v > latestClock {
			return nil, t.wrong(t.lines[i], "submitted at %v s: want seconds since the trace's clock began, at most %.0e", v, latestClock)
		}
		at := int(v / tenMinutes)
		if at < s.first {
			s.first, s.firstLine = at, t.lines[i]
		}
		if at > s.last {
			s.last, s.lastLine = at, t.lines[i]
		}
		if gpus[i] > 0 {
			s.jobs[at]++
			s.gpus[at] += gpus[i]
		}
	}
	return s, nil
}

// predictSubmissions learns from one trace how many jobs, and GPUs, are submitted in ten minutes, and writes
// predictions for another one, which continues where the first one ends, in the format of sim --estimates for lucid. A
// prediction for ten minutes uses the submissions until 50 minutes before them.
func predictSubmissions(w, says io.Writer, trainFile, predictFile string) error {
	train, to, err := readJobTables(trainFile, predictFile)
	if err != nil {
		return err
	}
	past, err := train.submissions()
	if err != nil {
		return err
	}
	next, err := to.submissions()
	if err != nil {
		return err
	}
	switch n := past.last - past.first + 1; {
	case n < day+hour:
		return train.wrong(past.lastLine, "all jobs are submitted within %d minutes: want %d at least, a day and an hour, since submissions are learned of those a day before", 10*n, 10*(day+hour))
	case next.first < past.last || next.first > past.last+day:
		return to.wrong(next.firstLine, "the first job is submitted at %.0f s, the last one of %s at %.0f s: want one clock for both, and this trace to begin in the day after that", tenMinutes*float64(next.first), trainFile, tenMinutes*float64(past.last))
	case next.last-past.first > longestSpan:
		return to.wrong(next.lastLine, "a job is submitted %.0f days after the first one of %s: want 10 years at most", float64(next.last-past.first)/day, trainFile)
	}
	n := next.last - past.first + 1
	var count [2][]float64 // of jobs, of GPUs, from past.first on
	for k, of := range [][2]map[int]float64{{past.jobs, next.jobs}, {past.gpus, next.gpus}} {
		count[k] = make([]float64, n)
		for i := range count[k] {
			count[k][i] = of[0][past.first+i] + of[1][past.first+i]
		}
	}
	return forecasts(w, says, count, past.first, min(past.last+1, next.first)-past.first, next.first-past.first)
}

// forecasts learns from counts of jobs and GPUs per ten minutes, up to entry learned, and writes predictions from entry
// begin on; first is the number of the first entry on the clock.
func forecasts(w, says io.Writer, count [2][]float64, first, learned, begin int) error {
	rows := make([][]float64, len(count[0]))
	when := func(i int) time.Time { return workload.Epoch.Add(time.Duration(first+i) * 10 * time.Minute) }
	for i := estimate.SubmissionsKnown; i < len(rows); i++ {
		rows[i] = estimate.Submissions(when(i), i, count[0], count[1])
	}
	var said [2][]float64
	for k, name := range []string{"jobs", "GPUs"} {
		table := estimate.Table{X: rows[estimate.SubmissionsKnown:learned], Y: count[k][estimate.SubmissionsKnown:learned]}
		m, err := estimate.Explain(table, lucidPairs, lucidRounds)
		if err != nil {
			return err
		}
		var off, asDay, asHour, asMean float64
		always := stat.Mean(table.Y, nil)
		for i := begin; i < len(rows); i++ {
			v := math.Round(max(0, m.Predict(rows[i]))*10) / 10
			said[k] = append(said[k], v)
			truth := count[k][i]
			off += math.Abs(v - truth)
			asDay += math.Abs(count[k][i-day] - truth)
			asHour += math.Abs(stat.Mean(count[k][i-2*hour+1:i-hour+1], nil) - truth)
			asMean += math.Abs(always - truth)
		}
		n := float64(len(rows) - begin)
		fmt.Fprintf(says, "ebm: %s submitted in ten minutes, off by %.2f on average of %.0f (%.2f if as many as a day before were said, %.2f as in the last hour that is known, %.2f as many as on average before)\n",
			name, off/n, n, asDay/n, asHour/n, asMean/n)
	}
	out := csv.NewWriter(w)
	out.Write([]string{"time", "submit_gpu_job", "submit_gpu_num", "pred_gpu_job", "pred_gpu_num"})
	for i := range said[0] {
		line := []string{when(begin + i).Format(time.DateTime)}
		for _, v := range []float64{count[0][begin+i], count[1][begin+i], said[0][i], said[1][i]} {
			line = append(line, strconv.FormatFloat(v, 'f', -1, 64))
		}
		out.Write(line)
	}
	out.Flush()
	return job.WriteError(out.Error())
}
