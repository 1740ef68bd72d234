package advice

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Threshold is a number that may be changed while a job runs (star ctl set).
type Threshold struct {
	Name        string
	Unit        Unit
	Least, Most float64
	What        string
}

// Unit is the type of a Threshold's value.
type Unit int

// Units of thresholds. Times are written as Go durations; their values are in seconds.
const (
	Ratio Unit = iota // any number
	Whole             // a whole number
	Time
)

// Names of thresholds.
const (
	VerdictRatio     = "verdict-ratio"
	VerdictLeast     = "verdict-least"
	VerdictCertainty = "verdict-certainty"
	ModeGain         = "mode-gain"
	ModeDwell        = "mode-dwell"
	EvalEvery        = "eval-every"
	CheckpointEvery  = "checkpoint-every"
)

// Thresholds lists all thresholds: first those of the pilot of --mode auto, then those of the coordinator.
var Thresholds = []Threshold{
	{VerdictRatio, Ratio, 0.01, 10, "a worker is slow if it takes longer than the fast ones by more than this part of their time"},
	{VerdictLeast, Time, 0, 3600, "and by at least this time"},
	{VerdictCertainty, Ratio, 1, 50, "logarithm of the number of iterations of a worker between two wrong verdicts"},
	{ModeGain, Ratio, 0.01, 0.9, "another mode must save this part of the time for the same progress"},
	{ModeDwell, Whole, 1, 10_000, "minimum time in a mode, in rounds of the slowest worker"},
	{EvalEvery, Ratio, 0, 1e9, "epochs between evaluations; 0: only at the end"},
	{CheckpointEvery, Time, 0, 1e7, "time between checkpoints; 0: only at the end"},
}

// ParseThreshold reads NAME=VALUE. An unknown name, an invalid value and a value out of bounds are errors.
func ParseThreshold(s string) (Threshold, float64, error) {
	name, text, given := strings.Cut(s, "=")
	var names []string
	for _, t := range Thresholds {
		if t.Name != name {
			names = append(names, t.Name)
			continue
		}
		if !given {
			return t, 0, fmt.Errorf("%s: no value; want %s=%s", name, name, t.want())
		}
		v, err := t.parse(text)
		if err != nil || !(v >= t.Least && v <= t.Most) {
			return t, 0, fmt.Errorf("%s: %q is not %s", name, text, t.want())
		}
		return t, v, nil
	}
	return Threshold{}, 0, fmt.Errorf("unknown threshold %q; use one of: %s", name, strings.Join(names, ", "))
}

func (t Threshold) parse(text string) (float64, error) {
	if t.Unit == Time {
		d, err := time.ParseDuration(text)
		return d.Seconds(), err
	}
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && t.Unit == Whole && v != math.Trunc(v) {
		err = strconv.ErrSyntax
	}
	return v, err
}

func (t Threshold) want() string {
	kind := map[Unit]string{Ratio: "a number", Whole: "a whole number", Time: "a time"}[t.Unit]
	return fmt.Sprintf("%s from %s to %s", kind, t.Text(t.Least), t.Text(t.Most))
}

// Text formats a value as ParseThreshold reads it.
func (t Threshold) Text(v float64) string {
	if t.Unit == Time {
		return time.Duration(math.Round(v * float64(time.Second))).String()
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
