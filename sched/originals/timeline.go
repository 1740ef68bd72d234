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
func (l timeline) find(at float64) (i int, there bool) {
	return slices.BinarySearchFunc(l, at, func(s step, at float64) int {
		switch {
		case s.at < at:
			return -1
		case s.at > at:
			return 1
		}
		return 0
	})
}

// has says whether there is a step at a time.
func (l timeline) has(at float64) bool {
	_, there := l.find(at)
	return there
}

// before is the number of GPUs of the last step before a time, 0 before the first.
func (l timeline) before(at float64) int {
	if i, _ := l.find(at); i > 0 {
		return l[i-1].gpus
	}
	return 0
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

// cut makes a step at a time with the number of GPUs before it, unless there is one.
func (l *timeline) cut(at float64) {
	if i, there := l.find(at); !there {
		gpus := 0
		if i > 0 {
			gpus = (*l)[i-1].gpus
		}
		*l = slices.Insert(*l, i, step{at, gpus})
	}
}

// merged is l without the steps that have as many GPUs as the one before. It reuses l's memory.
func (l timeline) merged() timeline {
	return slices.CompactFunc(l, func(a, b step) bool { return a.gpus == b.gpus })
}
