package estimate

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Entries of ten minutes per hour and per day.
const (
	hourEntries = 6
	dayEntries  = 144
)

// SubmissionsKnown is how many entries must precede one that Submissions describes: the lag of a day, and two for
// smoothing.
const SubmissionsKnown = dayEntries + 2

// Submissions returns the features for predicting how many jobs are submitted in the ten minutes that begin at a time,
// from the counts of earlier ten minutes, without the last 50 minutes. They are 7
// parts of the calendar (month, day, hour, minute, weekday with Monday as 0, day of the year, week); then for each
// series the counts 1 h, 3 h and 1 d before, these smoothed (half of it, a quarter of each of the two before it), and
// the mean, median and sample standard deviation of the hour that ends with the count 1 h before. Entry at, at least
// SubmissionsKnown, is that of the time; it and later ones may be missing.
//
// Source: the features of Lucid's throughput predict model, with smoothing that uses earlier entries only: so
// everything that is needed five entries ahead is known, as Lucid's mean of five requires.
func Submissions(when time.Time, at int, series ...[]float64) []float64 {
	_, week := when.ISOWeek()
	x := []float64{float64(when.Month()), float64(when.Day()), float64(when.Hour()), float64(when.Minute()),
		float64((when.Weekday() + 6) % 7), float64(when.YearDay()), float64(week)}
	for _, s := range series {
		lags := []int{hourEntries, 3 * hourEntries, dayEntries}
		for _, lag := range lags {
			x = append(x, s[at-lag])
		}
		for _, lag := range lags {
			x = append(x, .5*s[at-lag]+.25*s[at-lag-1]+.25*s[at-lag-2])
		}
		hour := slices.Sorted(slices.Values(s[at-2*hourEntries+1 : at-hourEntries+1]))
		mean, deviation := stat.MeanStdDev(hour, nil)
		x = append(x, mean, (hour[hourEntries/2-1]+hour[hourEntries/2])/2, deviation)
	}
	return x
}
