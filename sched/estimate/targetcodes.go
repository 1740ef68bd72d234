package estimate

import "math"

// TargetCodes are numbers for categories that say something of what is to be predicted: the mean of the rows that have the category, and of one row more that has the mean of
// all, which is also the code of a category that is not there. Rows are in the order of time, and each has the code of those before it, and their mean: of its own value, or of all,
// models would learn what is still to come.
//
// Source: Prokhorenkova et al., CatBoost, NeurIPS 2018 (ordered target statistics).
func TargetCodes(categories []string, y []float64) (rows []float64, codes map[string]float64, mean float64) {
	mean = sum(y) / math.Max(1, float64(len(y)))
	n, sums := map[string]float64{}, map[string]float64{}
	code := func(c string, prior float64) float64 { return (sums[c] + prior) / (n[c] + 1) }
	before, all := mean, 0. // the first row has nothing before it
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
