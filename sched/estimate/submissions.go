package estimate

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
)

// How many entries of ten minutes an hour and a day have.
const (
	hourEntries = 6
	dayEntries  = 144
)

// SubmissionsKnown is how many entries of ten minutes must come before one that Submissions says something of: the lag of a day, and two that smooth it.
const SubmissionsKnown = dayEntries + 2

// Submissions is what is known of how many jobs will be submitted in ten minutes that begin at a time, by counts of the ten minutes before, of which the last hour is left out but for
// its first ten minutes: 7 parts of the calendar (month, day, hour, minute, weekday from Monday as 0, day of the year, week), then of each series the counts 1 h, 3 h and 1 d before,
// these smoothed (half of it, a quarter of each of the two before it), and the mean, the median and the standard deviation (of a sample) of the hour that ends with the count 1 h before.
// Entry at, which is SubmissionsKnown at least, is that of the time; it and those after it need not be there.
//
// Source: the features of Lucid's throughput predict model, whose smoothing is read to look back: so all that is needed five entries ahead is known, as Lucid's mean of five needs it.
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
