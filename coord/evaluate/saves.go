package evaluate

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"star"
	"star/runlog"
	"star/transport/wire"
)

// Saves is the checkpoints of a job, one after the other. Parts are written by shards, or by one member of a ring;
// when all are complete, and everything else of the checkpoint is known, the manifest is written. Training continues
// meanwhile. Only a checkpoint with a manifest counts.
//
// The residual of a worker's codec, which is what it has left out of its gradients, belongs to a checkpoint as the
// optimiser's state does. Each such worker writes its own file, of the time at which the last of its gradients in the
// checkpoint's version had been used:
//
//	parameter servers   a Save precedes the releases that follow from the version (Early); its Seq is the step in
//	                    hand, which is not in it
//	all-reduce          a Save follows the releases of the rounds before the version, to members and riders
//
// A checkpoint waits for these files only for a limited time, and is complete without them: what a worker has left out
// since the last one is lost with the worker anyway.
type Saves struct {
	on       bool
	patience time.Duration // for files of workers, when nothing else is missing
	every    time.Duration // 0: there is one at the end only
	next     time.Time
	wanted   bool // one begins as soon as possible
	early    files
	save     save
	complete string // ID of the newest complete checkpoint of this attempt; empty: none
	err      error  // of the final checkpoint
}

// Residual is the file of a worker with the residual of its codec.
type Residual struct {
	Worker star.Worker

	// Weight is c of the update rule for the worker's gradients, 1 in an all-reduce, where they are
	// weighted before they are encoded.
	Weight float64

	Desc json.RawMessage // from its Saved
}

// Coded is a worker with a codec: Seq is that of its Save, and Weight that of its Residual.
type Coded struct {
	Worker star.Worker
	Seq    int64
	Weight float64
}

// Cut is the state that a checkpoint is of.
type Cut struct {
	ID           string
	Version, Seq int64
	Writer       star.Worker // the worker that writes the parameters; -1: Shards do
	Shards       int
	Final        bool
}

// save is one checkpoint; the zero value means that there is no checkpoint.
type save struct {
	Cut
	open    bool
	begun   time.Time
	left    int               // missing parts
	parts   []json.RawMessage // by shard; of a ring there is one
	files   files
	since   time.Time // since when only files are missing; zero: something else is
	err     error
	writing bool
}

// files are the files of a checkpoint that workers write.
type files struct {
	id   string
	owed []star.Worker // workers that were asked, and have not answered
	all  []Residual
}

// residualTime is how long a checkpoint waits for workers when nothing else is missing, beside a second for each MiB of
// the parameters.
const residualTime = 10 * time.Second

// NewSaves is the checkpoints of a job; on: it writes some.
func NewSaves(on bool) Saves { return Saves{on: on} }

// On reports whether the job writes checkpoints.
func (s *Saves) On() bool { return s.on }

// Begin is called when the training begins, with the number of parameters.
func (s *Saves) Begin(params int64) {
	s.patience = residualTime + time.Duration(params>>18)*time.Second
}

// Every chooses the time between two checkpoints, and when the next one begins. Zero: there is one at the end only.
func (s *Saves) Every(d time.Duration, now time.Time) { s.every, s.next = d, now.Add(d) }

// Want has a checkpoint begin as soon as it may.
func (s *Saves) Want() { s.wanted = true }

// Due reports whether a checkpoint begins now. Advance chooses the next time.
func (s *Saves) Due(now time.Time) bool {
	return s.on && (s.wanted || s.every > 0 && now.After(s.next))
}

// Advance chooses when the checkpoint after the present one begins.
func (s *Saves) Advance(now time.Time) { s.wanted, s.next = false, now.Add(s.every) }

// Open reports whether a checkpoint is under way.
func (s *Saves) Open() bool { return s.save.open }

// Writing reports whether the manifest of the checkpoint under way is being written.
func (s *Saves) Writing() bool { return s.save.writing }

// Complete reports whether the newest complete checkpoint of this attempt has that ID.
func (s *Saves) Complete(id string) bool { return s.complete != "" && s.complete == id }

// Err is why the final checkpoint has failed; nil: it has not.
func (s *Saves) Err() error { return s.err }

// Writer reports whether a worker writes the parameters of the checkpoint that is under way.
func (s *Saves) Writer(w star.Worker) bool { return s.save.open && s.save.Writer == w }

// Orphaned is described at Writer.
func (s *Saves) Orphaned(w star.Worker) bool {
	return s.Writer(w) && s.save.Final && !s.save.writing
}

// Early asks workers with codecs to save the residuals of a checkpoint that is about to begin.
func (s *Saves) Early(id string, version int64, coded []Coded) []Effect {
	if s.early.id == id {
		return nil
	}
	return s.early.ask(id, version, coded)
}

// ask asks workers to write their files of a checkpoint.
func (f *files) ask(id string, version int64, coded []Coded) (out []Effect) {
	*f = files{id: id}
	for _, c := range coded {
		f.owed = append(f.owed, c.Worker)
		f.all = append(f.all, Residual{Worker: c.Worker, Weight: c.Weight})
		out = append(out, AskWorker{c.Worker, wire.Save{Seq: c.Seq, Version: version, ID: id}})
	}
	return out
}

// Start begins a checkpoint. Every server with shards is asked in order with the firings, so all of them save the same
// state. Workers with codecs are asked unless Early has done so.
func (s *Saves) Start(cut Cut, coded []Coded, now time.Time) []Effect {
	n := max(1, cut.Shards)
	s.save = save{Cut: cut, open: true, begun: now, left: n, parts: make([]json.RawMessage, n)}
	m := wire.Save{Seq: cut.Seq, Version: cut.Version, ID: cut.ID}
	out := []Effect{AskServers{-1, m}}
	if cut.Writer >= 0 {
		out = append(out, AskWorker{cut.Writer, m})
	}
	out = append(out, s.Early(cut.ID, cut.Version, coded)...)
	s.save.files, s.early = s.early, files{}
	return out
}

// Part takes a part of the checkpoint. Its error, if it had one, fails the checkpoint when all parts have arrived.
// Parts of another checkpoint, and repeated ones, are ignored.
func (s *Saves) Part(m wire.Saved, desc []byte) []Effect {
	c := &s.save
	if !c.open || m.ID != c.ID || m.Shard < 0 || m.Shard >= len(c.parts) || c.parts[m.Shard] != nil {
		return nil
	}
	c.parts[m.Shard] = json.RawMessage("null")
	if m.Err != "" {
		c.err = fmt.Errorf("shard %d: %s", m.Shard, m.Err)
	} else if json.Valid(desc) {
		c.parts[m.Shard] = desc
	}
	c.left--
	return []Effect{Progress{}}
}

// Moved records that a shard has another primary. A part that the last one has not written fails the checkpoint: the
// new primary may have a later version already; the next checkpoint begins when it is due. In the final checkpoint the
// new primary writes the part, after the Fire with number seq.
func (s *Saves) Moved(shard, server int, seq int64) []Effect {
	c := &s.save
	switch {
	case !c.open || c.writing || c.parts[shard] != nil:
		return nil
	case !c.Final:
		const why = "its server was lost meanwhile; the next checkpoint will be of another one"
		return s.Part(wire.Saved{Shard: shard, ID: c.ID, Err: why}, nil)
	}
	return []Effect{AskServers{server, wire.Save{Seq: seq, Version: c.Version, ID: c.ID}}}
}

// Residual takes a worker's file. One of another checkpoint, or a late one, is ignored.
func (s *Saves) Residual(w star.Worker, m wire.Saved, desc []byte) (out []Effect) {
	f := &s.early
	if s.save.open && s.save.ID == m.ID {
		f = &s.save.files
	}
	if f.id != m.ID || !slices.Contains(f.owed, w) {
		return nil
	}
	switch {
	case m.Err != "":
		out = append(out, Without{w, f.id, m.Err})
	case json.Valid(desc): // empty: it has left nothing out
		f.all[slices.IndexFunc(f.all, func(r Residual) bool { return r.Worker == w })].Desc = desc
	}
	f.forget(w)
	return out
}

// forget stops waiting for a worker.
func (f *files) forget(w star.Worker) {
	i := slices.Index(f.owed, w)
	if i < 0 {
		return
	}
	f.owed = slices.Delete(f.owed, i, i+1)
	f.all = slices.DeleteFunc(f.all, func(r Residual) bool { return r.Worker == w && len(r.Desc) == 0 })
}

// Leave stops waiting for a worker that has left the job.
func (s *Saves) Leave(w star.Worker) {
	s.early.forget(w)
	s.save.files.forget(w)
}

// Look writes a checkpoint when nothing of it is missing. ready: its version and its buffers are complete. fail is a
// reason for it to fail then, or nil. It may be called at any time, and writes once. The time limit of the
// files of workers begins when only they are missing.
func (s *Saves) Look(now time.Time, ready bool, fail error) []Effect {
	c := &s.save
	if !c.open || c.left > 0 {
		return nil
	}
	if len(c.files.owed) > 0 && c.err == nil {
		if c.since.IsZero() {
			c.since = now
		}
		return nil
	}
	if !ready || c.writing {
		return nil
	}
	c.writing = true
	if c.err == nil {
		c.err = fail
	}
	return []Effect{Write{c.ID, c.parts, c.files.all, c.err}}
}

// Tick continues a checkpoint without workers that have not answered for too long.
func (s *Saves) Tick(now time.Time) []Effect {
	c := &s.save
	late := c.files.late()
	if !c.open || c.writing || len(late) == 0 || c.since.IsZero() || now.Sub(c.since) < s.patience {
		return nil
	}
	for _, w := range late {
		c.files.forget(star.Worker(w))
	}
	return []Effect{Late{late, c.ID, now.Sub(c.since)}}
}

// late are the workers that have not answered, by rank.
func (f *files) late() (ws []int) {
	for _, w := range f.owed {
		ws = append(ws, int(w))
	}
	slices.Sort(ws)
	return ws
}

// Missing describes what the checkpoint waits for.
func (s *Saves) Missing() string {
	if s.save.left > 0 {
		return fmt.Sprintf("%d parts of a checkpoint", s.save.left)
	}
	return fmt.Sprintf("the codec residuals of workers %v, for a checkpoint", s.save.files.late())
}

// Written ends a checkpoint, which is at path, or has failed. After one that has failed the next one is tried when it
// is due.
func (s *Saves) Written(path string, err error, now time.Time) []Effect {
	c := s.save
	s.Drop()
	line := runlog.Checkpoint{ID: c.ID, Version: c.Version, Took: runlog.SecondsOf(now.Sub(c.begun))}
	if err != nil {
		line.Err = err.Error()
	} else {
		s.complete = c.ID
	}
	if c.Final {
		s.err = err
	}
	return []Effect{Progress{}, Wrote{line, path, err, c.Final}}
}

// Drop abandons the present checkpoint.
func (s *Saves) Drop() { s.save = save{} }

// Restart abandons a checkpoint that its writer has abandoned. Another one begins as soon as possible. The final one,
// and one that is being written, stay.
func (s *Saves) Restart() {
	if c := s.save; c.open && !c.Final && !c.writing {
		s.Drop()
		s.Want()
	}
}
