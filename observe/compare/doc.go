// Package compare says what differs between two runs, from their run logs: of jobs of STAR, or of star watch.
//
// A [Reader] takes the lines of one log and keeps means over at most 64 stretches of the run for each quantity, however
// long the log is. [Of] compares two: a quantity differs if the difference of the means is beyond its 99 % interval by
// Welch's test, with the spread of the stretches within each run. Stretches that follow each other are alike, so each
// counts as (1−r)/(1+r) of one, with r their correlation. What is within the interval is noise.
//
// The spread within a run is no measure of how much two runs of one command differ: another hour on a shared host
// makes a difference that this package finds and cannot explain.
//
// It is pure: no files, no clock.
//
// B. Welch: The Generalization of "Student's" Problem when Several Different Population Variances Are Involved.
// Biometrika 34, 1947.
package compare
