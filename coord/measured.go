package coord

import (
	"log/slog"
	"star"
	"star/coord/engine"
	"star/coord/journal"
	"star/pgns"
	"star/runlog"
	"time"
)

// observe updates the noise scale with an update's gradients. Updates that cannot be used, such as those of one
// gradient, are ignored.
func (m *measured) observe(j *journal.Journal, version int64, u pgns.Update) {
	seen, err := m.noise.Observe(u)
	if err != nil {
		return // too few gradients, or one that is not finite
	}
	n := m.noise.Noise()
	drift, strength := m.noise.Drift()
	line := runlog.Noise{Version: version, Grad2: runlog.Number(seen.Grad2), Var: runlog.Number(seen.Var),
		Mixed: u.Mixed(), Scale: runlog.Number(n.Scale), Drift: runlog.Number(drift), Strength: runlog.Number(strength)}
	j.Note(line)
}

// remember passes the iterations that the checkpoint has of the workers to the pilot and to the run log. This is one
// line of the log, so that a replay of the log gives its pilot the same.
func (m *measured) remember(j *journal.Journal, at time.Duration, last []star.Record, workers int) {
	known := m.memory.Recall(last, workers)
	if len(known) == 0 {
		return
	}
	line := runlog.Memory{Records: known}
	j.Note(line)
}

// putAside reports the samples that the engine has put aside since the last call, because two workers died while
// computing them.
func (m *measured) putAside(j *journal.Journal, log *slog.Logger, list []engine.Aside) {
	for _, a := range list[m.aside:] {
		m.result.Aside += int64(a.Count)
		j.Write(runlog.Aside{Start: a.Start, Count: a.Count, Workers: a.Workers, Why: a.Why})
		log.Warn("samples put aside: two workers died while computing them", "from", a.Start, "count", a.Count,
			"workers", a.Workers, "reason", a.Why)
	}
	m.aside = len(list)
}
