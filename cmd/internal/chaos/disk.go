package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filled is a time in which the disk of the checkpoints was full.
type Filled struct {
	For           time.Duration
	Before, After []int64  // versions of checkpoints that loaded when it was filled, and when there was room again
	Broken        []string // those that claimed to be complete then, and were not
}

// JudgeDisk reports whether the checkpoints of a job bore a full disk: those that were there stay, or give way to later
// ones; what fails says so, with what helps; and later ones succeed. saved are those that load at the end, every is the
// time between two.
func JudgeDisk(filled []Filled, attempts []*Attempt, saved []int64, every time.Duration) Invariant {
	var wrong []string
	bad := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	var failed, written int
	for _, l := range attempts {
		for _, s := range l.Saved {
			switch full := strings.Contains(s.Err, "no space left on device"); {
			case s.Err == "":
				written++
			case !full:
				bad("%s: the checkpoint of version %d failed for another reason: %s", l.Name, s.Version, s.Err)
			case !strings.Contains(s.Err, "make room there"):
				bad("%s: the checkpoint of version %d failed, and nothing says what helps: %s", l.Name, s.Version, s.Err)
			default:
				failed++
			}
		}
	}
	newest := func(versions []int64) int64 {
		if len(versions) == 0 {
			return -1
		}
		return slices.Max(versions)
	}
	met := time.Duration(0)
	for _, f := range filled {
		met = max(met, f.For)
		for _, b := range f.Broken {
			bad("while the disk was full: %s", b)
		}
		if newest(f.After) < newest(f.Before) {
			bad("the checkpoint of version %d did not survive a full disk", newest(f.Before))
		}
	}
	if every > 0 && met > 10*every && failed == 0 {
		bad("the disk was full for %v, and no checkpoint failed", met.Round(time.Millisecond))
	}
	if n := len(filled); n > 0 && newest(saved) <= newest(filled[n-1].After) {
		bad("no checkpoint was written after the disk had room again")
	}
	if len(wrong) > 0 {
		return Invariant{fullDisk, false, wrong[0] + more(len(wrong)-1)}
	}
	return Invariant{fullDisk, true, fmt.Sprintf("full %d times; %d checkpoints failed, %d were written", len(filled), failed, written)}
}

const fullDisk = "a full disk costs checkpoints only"
