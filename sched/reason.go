package sched

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// choices describes how each policy chooses.
var choices = map[string]string{
	"fifo": "first come, first served", "sjf": "shortest job first", "srtf": "least time left first", "srsf": "least work left first", "tiresias": "least served first",
	"qssf":    "least predicted duration times GPUs first",
	"gandiva": "jobs with equal numbers of GPUs take turns", "themis": "the job furthest from its fair share has the largest share of the time",
	"chronus": "promised leases first, then the least work left",
	"lucid":   "least predicted duration times GPUs first, short jobs on the profiler's nodes",
	"muri-s":  "least work left first, in turns on the same GPUs if not all fit", "muri-l": "least served first, in turns on the same GPUs if not all fit",
	"edf": "earliest deadline first", "edf-admission": "earliest deadline first",
	"ef":           "the least share that meets each deadline, the rest where it helps most",
	"ef-admission": "the least share that meets each deadline, the rest where it helps most",
	"star":         "the least share that meets each deadline that can be met, the rest where it shortens what is left most",
	"pollux":       "the shares with the greatest goodput, if the change is worth its cost",
	"allox":        "the assignment to machines with the least sum of completion times",
	"alloxplus":    "jobs that have waited for 500 s first, then the shortest", "srpt": "least time left first",
	"es": "equal shares of the machines, each user's shortest job first", "drf": "the user with the smallest dominant share first",
	"drffifo": "the user with the smallest share of GPUs first, in order of submission", "drfext": "the user with the smallest share first, a GPU counted by how much faster it is",
}

// Reason explains in one sentence why a job has the number of GPUs, or machines, of step k of its Steps: what changes,
// how the policy chooses, which other jobs get more at the same time (more), and how long it is until the deadline. If
// a node of its cluster leaves when its GPUs become fewer, that is the reason. It returns "" if the job has ended. The
// sentence is computed from the outcome; a simulation stores no text.
func (o *Outcome) Reason(policy string, k int, more []string, c Cluster) string {
	s, was, since := o.Steps[k], 0., o.Submit
	if k > 0 {
		was, since = o.Steps[k-1].GPUs, o.Steps[k-1].At
	}
	if s.GPUs == 0 && s.At >= o.End {
		return ""
	}
	noun := "GPU"
	if _, mixed := mixedPolicies[policy]; mixed && o.Either != nil {
		noun = "machine"
	}
	change, why := changes(was, s.GPUs, noun), choices[policy]
	if slices.Contains([]string{"lucid", "muri-s", "muri-l"}, policy) {
		change, why = o.shared(was, s.GPUs, why)
	}
	if s.GPUs < was && c.Away.goes(s.At) {
		why = "a node was taken away"
	}
	if was == 0 {
		if k > 0 {
			change = strings.Replace(change, "starts on", "goes on with", 1)
		}
		if waited := s.At - since; waited > 0 {
			change += " after " + seconds(waited)
		}
	}
	text := because(change, why, more)
	if takes := o.takes(policy, k, c); !math.IsNaN(takes) {
		return text + "; " + doneIn(takes, o.Deadline-s.At)
	}
	if has := o.Deadline - s.At; has < 0 {
		text += "; deadline " + seconds(-has) + " ago"
	} else if !math.IsInf(has, 1) {
		text += "; deadline in " + seconds(has)
	}
	return text
}

// takes returns how long a job would have taken from step k of its Steps on if it had kept its GPUs, in s: what it did
// from then on, by its rates. It is NaN for policies that do not plan (they do not use rates), where nodes are slow or
// absent, for a job that did not end, and without GPUs.
func (o *Outcome) takes(policy string, k int, c Cluster) float64 {
	_, live := livePolicies[policy]
	if !live || planners[policy] == nil || o.Rates == nil || o.Steps[k].GPUs == 0 || c.Slow != nil || c.Away != nil {
		return math.NaN()
	}
	rate := func(n float64) float64 {
		if i := bits.Len(uint(n)) - 1; i >= 0 && i < len(o.Rates) {
			return o.Rates[i]
		}
		return 0
	}
	left, end := 0., o.End
	for i := len(o.Steps) - 1; i >= k; i-- {
		left += rate(o.Steps[i].GPUs) * max(0, end-o.Steps[i].At)
		end = o.Steps[i].At
	}
	if at := rate(o.Steps[k].GPUs); at > 0 && !math.IsInf(o.End, 0) {
		return left / at
	}
	return math.NaN()
}

// doneIn says how long a job takes from now on and compares it with its deadline, both in s; has is +Inf without one.
func doneIn(takes, has float64) string {
	text := "done in " + seconds(takes) + " at this rate"
	if takes > has {
		return text + ", " + seconds(takes-has) + " after its deadline"
	} else if !math.IsInf(has, 1) {
		text += ", deadline in " + seconds(has)
	}
	return text
}

// shared describes a change of the GPUs of a job that shares them or takes turns on them, and the reason.
func (o *Outcome) shared(was, n float64, why string) (change, because string) {
	all := count(float64(o.GPUs), "GPU")
	if n == 0 {
		return "gives up its " + all, why
	}
	others := count(math.Round(float64(o.GPUs)/n)-1, "other job")
	switch {
	case was == 0 && n == float64(o.GPUs):
		return "starts on " + all, why
	case was == 0:
		return "starts on " + all + ", shared with " + others, why
	case n == float64(o.GPUs):
		return "has its " + all + " alone", "the jobs that shared them have ended or stopped"
	}
	return "shares its " + all + " with " + others, why
}

// changes describes a change of a job's number of GPUs.
func changes(was, n float64, noun string) string {
	switch {
	case was == 0:
		return "starts on " + count(n, noun)
	case n == 0:
		return "gives up its " + count(was, noun)
	}
	return "from " + strconv.FormatFloat(was, 'f', -1, 64) + " to " + count(n, noun)
}

// because joins a change, how the policy chooses, and which jobs get more.
func because(change, why string, more []string) string {
	const most = 3
	text := change + ": " + why
	switch n := len(more); {
	case n > most:
		text += fmt.Sprintf("; more for %s and %s", strings.Join(more[:most], ", "), count(float64(n-most), "other"))
	case n > 0:
		text += "; more for " + strings.Join(more, ", ")
	}
	return text
}

// count formats a number of things.
func count(n float64, noun string) string {
	text := strconv.FormatFloat(n, 'f', -1, 64) + " " + noun
	if n != 1 {
		text += "s"
	}
	return text
}

// gpus formats a number of GPUs.
func gpus(n int) string { return count(float64(n), "GPU") }

func seconds(t float64) string { return strconv.FormatFloat(t, 'f', 0, 64) + " s" }
