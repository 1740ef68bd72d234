package sched

import (
	"fmt"
	"io"
	"math"
	"slices"

	"star/sched/estimate"
)

// scoreColumns are the names of a job's score in STAR's traces, Lucid's, and Lucid's table of single models: how much
// another job on the same GPUs slows it, from 0 (hardly) to 2.
var scoreColumns = []string{"score", "sharescore", "label"}

// mostScore is the greatest score.
const mostScore = 2

// scorePruned is what a leaf must save, as a share of the variance: as for Lucid.
const scorePruned = 1e-4

// predictScores learns from one table how much jobs on the same GPUs slow each other, from what a profiler measures,
// and writes the other trace with predicted scores, for lucid.
func predictScores(w, says io.Writer, trainFile, predictFile string) error {
	train, to, err := readJobTables(trainFile, predictFile)
	if err != nil {
		return err
	}
	known, err := train.scores()
	if err != nil {
		return err
	}
	table := estimate.Table{X: make([][]float64, len(train.rows)), Y: known}
	rows := make([][]float64, len(to.rows))
	for _, c := range train.shared(to) {
		if c.known != nil && !slices.Contains(scoreColumns, c.name) {
			addColumn(table.X, c.known)
			addColumn(rows, c.new)
		}
	}
	if len(table.X[0]) == 0 {
		return to.wrong(1, "it has no column of numbers that %s has, too: scores are learned of such as amp, gpu_util, gmem_util and gmem", trainFile)
	}
	tree, err := estimate.GrowClasses(table, mostScore+1, estimate.Limits{})
	if err != nil {
		return err
	}
	tree.Prune(scorePruned)
	scores := make([]float64, len(rows))
	for i, x := range rows {
		scores[i] = float64(tree.Class(x))
	}
	fmt.Fprintf(says, "tree: %d leaves", tree.Leaves())
	if truth, err := to.scores(); err == nil {
		right, most := 0, 0
		var count [mostScore + 1]int
		for i, s := range truth {
			if s == scores[i] {
				right++
			}
			count[int(s)]++
			most = max(most, count[int(s)])
		}
		fmt.Fprintf(says, "; right for %d of %d jobs (%d if the most frequent score were said of all)", right, len(truth), most)
	}
	fmt.Fprintln(says)
	name := "score"
	if to.column("gpu_num") >= 0 {
		name = "sharescore"
	}
	return to.write(w, scores, name)
}

// scores are those that a table has.
func (t *jobTable) scores() ([]float64, error) {
	v, err := t.numbers(scoreColumns...)
	for i, s := range v {
		if s != math.Trunc(s) || s > mostScore {
			return nil, t.wrong(t.lines[i], "a score of %v: want 0 to %d, how much another job on the same GPUs slows a job", s, mostScore)
		}
	}
	return v, err
}
