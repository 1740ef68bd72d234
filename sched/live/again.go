package live

import (
	"fmt"
	"strconv"
	"strings"
)

// A job that has failed, or was cancelled, declined or stopped, keeps its name, its folder and its lines in the queue's log. The corrected one may be submitted under the same name, and
// is taken in as another job: NAME.2, then NAME.3.

// tries are the jobs in the queue that were submitted under a name, in order, and the name that the next one has.
func (q *Queue) tries(name string) (all []*Job, next string) {
	base, number, _ := strings.Cut(name, ".")
	i, _ := strconv.Atoi(number)
	next = name
	for i = max(i, 1) + 1; ; i++ {
		j := q.byName[next]
		if j == nil && (q.Past == nil || !q.Past(next)) {
			return all, next
		} else if j != nil {
			all = append(all, j)
		}
		next = fmt.Sprintf("%s.%d", base, i)
	}
}

// Again is the name under which a job of a name is taken in: another one where those that have it have failed, or were cancelled, declined or
// stopped, or have left the queue.
func (q *Queue) Again(name string) string {
	all, next := q.tries(name)
	if n := len(all); n > 0 {
		if last := all[n-1]; last.Active() || last.State == Done {
			return last.Name
		}
	}
	return next
}

// Later is the job that waits or runs and was submitted under a name again; nil: there is none.
func (q *Queue) Later(name string) *Job {
	all, _ := q.tries(name)
	if n := len(all); n > 1 && all[n-1].Active() {
		return all[n-1]
	}
	return nil
}
