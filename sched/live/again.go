package live

import (
	"fmt"
	"strconv"
	"strings"
)

// A job that failed, or was cancelled, declined or stopped, keeps its name, its folder and its lines in the queue's
// log. A corrected job can be submitted under the same name. It is a new job: NAME.2, then NAME.3.

// tries returns the jobs in the queue that were submitted under a name, in order, and the name of the next one.
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

// Again returns the name that a job submitted under name gets: a new one if all jobs of that name have failed, were
// cancelled, declined or stopped, or have left the queue.
func (q *Queue) Again(name string) string {
	all, next := q.tries(name)
	if n := len(all); n > 0 {
		if last := all[n-1]; last.Active() || last.State == Done {
			return last.Name
		}
	}
	return next
}

// Later returns the waiting or running job that was submitted under name again, or nil.
func (q *Queue) Later(name string) *Job {
	all, _ := q.tries(name)
	if n := len(all); n > 1 && all[n-1].Active() {
		return all[n-1]
	}
	return nil
}
