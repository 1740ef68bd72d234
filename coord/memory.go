package coord

import (
	"time"

	"star/runlog"
)

// remember tells the pilot and the run log what the job before remembered of its workers. It is one
// line of the log, so that a log replays with what its pilot knew.
func (c *Coordinator) remember(at time.Duration) {
	known := c.measured.memory.Recall(c.cfg.Remember, c.cfg.MaxWorkers)
	if len(known) == 0 {
		return
	}
	line := runlog.Memory{Records: known}
	c.journal.note(line)
}
