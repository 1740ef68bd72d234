package estimate

import "math"

// TargetCodes replaces categories by numbers that are informative about y: the mean over the rows of the category and
// one additional row with the mean of all. The mean of all is also the code of an unknown category. Rows are in order
// of time, and each row's code uses only earlier rows: with its own or later values, models would learn from the
// future.
//
// Source: Prokhorenkova et al., CatBoost, NeurIPS 2018 (ordered target statistics).
func TargetCodes(categories []string, y []float64) (rows []float64, codes map[string]float64, mean float64) {
	mean = sum(y) / math.Max(1, float64(len(y)))
	n, sums := map[string]float64{}, map[string]float64{}
	code := func(c string, prior float64) float64 { return (sums[c] + prior) / (n[c] + 1) }
	before, all := mean, 0. // the first row has no earlier ones
	for i, c := range categories {
		rows = append(rows, code(c, before))
		n[c], sums[c] = n[c]+1, sums[c]+y[i]
		all += y[i]
		before = all / float64(i+1)
	}
	codes = map[string]float64{}
	for c := range n {
		codes[c] = code(c, mean)
	}
	return rows, codes, mean
}
