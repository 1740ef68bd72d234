package originals

import "slices"

// step is a number of GPUs from a time on.
type step struct {
	at   float64
	gpus int
}

// timeline is steps in order of time, at most one for each time. Each lasts until the next one.
type timeline []step

// find is the place of the step at a time, or of the first one after it.
func (l timeline) find(at float64) (i int, found bool) {
	i, end := 0, len(l)
	for i < end {
		if middle := (i + end) / 2; l[middle].at < at {
			i = middle + 1
		} else {
			end = middle
		}
	}
	return i, i < len(l) && l[i].at == at
}

// put sets the number of GPUs of the step at a time, and makes a missing step.
func (l *timeline) put(at float64, gpus int) {
	i, there := l.find(at)
	if there {
		(*l)[i].gpus = gpus
	} else {
		*l = slices.Insert(*l, i, step{at, gpus})
	}
}

// cut makes a step at a time with the number of GPUs before it, unless there is one, and returns its place.
func (l *timeline) cut(at float64) int {
	i, found := l.find(at)
	if !found {
		gpus := 0
		if i > 0 {
			gpus = (*l)[i-1].gpus
		}
		*l = slices.Insert(*l, i, step{at, gpus})
	}
	return i
}

// merged is l without the steps that have as many GPUs as the one before. It reuses l's memory.
func (l timeline) merged() timeline {
	return slices.CompactFunc(l, func(a, b step) bool { return a.gpus == b.gpus })
}
