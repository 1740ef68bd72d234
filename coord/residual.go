package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/transport"
	"star/transport/wire"
)

// What a worker's codec has left out of its gradients belongs to a checkpoint as the optimiser's state does. Each worker writes its own file,
// as it was when the last of its gradients had been used that is in the checkpoint's version:
//
//	parameter servers   a Save goes before the releases that follow from the version; its Seq is the step in hand, which is not in it
//	all-reduce          a Save goes behind the releases of the rounds before the version, to members and riders
//
// A checkpoint waits for these files, but not for long, and is complete without them: what a worker has left out since the last one is lost with the
// worker anyway.

// ResidualPart is a worker's file of what its codec has left out.
type ResidualPart struct {
	Worker star.Worker

	// Weight is c of the update rule for the worker's gradients, 1 in an all-reduce, where they are
	// weighted before they are encoded.
	Weight float64

	Desc json.RawMessage // what its Saved said
}

// leftovers are the files of a checkpoint that workers write.
type leftovers struct {
	id    string
	owed  map[star.Worker]bool // have been told to save, and have not answered
	parts []ResidualPart
	since time.Time // nothing else is missing; zero: something is
}

// residualTime is how long a checkpoint waits for workers when all else is there, and a second for
// each MiB of the parameters.
const residualTime = 10 * time.Second

// freeze tells workers with codecs to save what they have left out by version. Workers without a
// codec have left nothing out, and are not asked.
func (c *Coordinator) freeze(id string, version int64, ws []star.Worker) {
	c.early = &leftovers{id: id, owed: map[star.Worker]bool{}}
	for _, w := range ws {
		p := c.workers[w]
		if p == nil || p.gone || p.codec == "" || !c.joined[w] {
			continue
		}
		seq, weight := c.engine.Residual(w)
		part := ResidualPart{Worker: w, Weight: weight}
		c.early.owed[w] = true
		c.early.parts = append(c.early.parts, part)
		c.send(p, func() error { return transport.Send(p.conn, wire.Save{Seq: seq, Version: version, ID: id}, nil) })
	}
}

// freezeFirst does so before the releases that follow from an update, if a checkpoint will follow
// it. In a ring it is not needed: there members are asked behind the releases.
func (c *Coordinator) freezeFirst() {
	if !c.sharded() || c.save != nil || c.round != nil && c.round.final {
		return
	}
	if _, save := c.due(); !save {
		return
	}
	if v := c.engine.State().Version; c.early == nil || c.early.id != c.cfg.Name(v, c.cfg.Generation) {
		c.freeze(c.cfg.Name(v, c.cfg.Generation), v, c.live())
	}
}

// frozen is what belongs to the checkpoint that begins now.
func (c *Coordinator) frozen(id string, version int64, ws []star.Worker) *leftovers {
	if c.early == nil || c.early.id != id {
		c.freeze(id, version, ws)
	}
	l := c.early
	c.early = nil
	return l
}

// savedResidual notes a worker's answer. An answer that comes too late is passed over. The error is
// that of drop: a worker without a codec was not asked.
func (c *Coordinator) savedResidual(p *peer, e event) error {
	if p.codec == "" {
		return c.drop(p, errors.New("a part of a checkpoint that nobody has asked it for"))
	}
	w := star.Worker(p.rank)
	l := c.early
	if c.save != nil && c.save.id == e.saved.ID {
		l = c.save.rest
	}
	if l == nil || l.id != e.saved.ID || !l.owed[w] {
		return nil // it comes too late
	}
	i := slices.IndexFunc(l.parts, func(r ResidualPart) bool { return r.Worker == w })
	switch {
	case e.saved.Err != "":
		c.log.Warn("a checkpoint is without what a worker's codec has left out", "worker", w, "id", l.id, "reason", e.saved.Err)
	case json.Valid(e.payload): // empty: it has left nothing out
		l.parts[i].Desc = e.payload
	}
	l.forget(w)
	c.trySaved()
	return nil
}

// forget does not wait for a worker any more.
func (l *leftovers) forget(w star.Worker) {
	if l == nil || !l.owed[w] {
		return
	}
	delete(l.owed, w)
	l.parts = slices.DeleteFunc(l.parts, func(r ResidualPart) bool { return r.Worker == w && len(r.Desc) == 0 })
}

// forgetResidual does not wait for a worker that is gone.
func (c *Coordinator) forgetResidual(w star.Worker) {
	c.early.forget(w)
	if c.save != nil {
		c.save.rest.forget(w)
	}
}

// lacking says whether the checkpoint waits for workers. The time for that begins when it is asked
// first with nothing else missing.
func (s *saving) lacking() bool {
	if len(s.rest.owed) == 0 || s.err != nil {
		return false
	}
	if s.rest.since.IsZero() {
		s.rest.since = time.Now()
	}
	return true
}

// missing is what a checkpoint waits for.
func (s *saving) missing() string {
	if s.left > 0 {
		return fmt.Sprintf("%d parts of a checkpoint", s.left)
	}
	return fmt.Sprintf("what the codecs of workers %v have left out, for a checkpoint", s.rest.late())
}

// late are the workers that have not answered.
func (l *leftovers) late() (ws []int) {
	for w := range l.owed {
		ws = append(ws, int(w))
	}
	slices.Sort(ws)
	return ws
}

// watchResiduals has a checkpoint go on without workers that do not answer. Their parts are then
// missing in it, with a warning.
func (c *Coordinator) watchResiduals(now time.Time) {
	s := c.save
	if s == nil || s.writing || s.rest.since.IsZero() || now.Sub(s.rest.since) < residualTime+time.Duration(c.hello.Params>>18)*time.Second {
		return
	}
	late := s.rest.late()
	c.log.Warn("a checkpoint is without what the codecs of workers have left out, who have not answered", "workers", late, "id", s.id, "for", now.Sub(s.rest.since).Round(time.Second))
	for _, w := range late {
		s.rest.forget(star.Worker(w))
	}
	c.trySaved()
}
