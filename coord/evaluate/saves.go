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
// when all are there, and what belongs to them is known, the manifest is written. Training goes on meanwhile. Only a
// checkpoint with a manifest counts.
//
// What a worker's codec has left out of its gradients belongs to a checkpoint as the optimiser's state does. Each such
// worker writes its own file, as it was when the last of its gradients had been used that is in the checkpoint's
// version:
//
//	parameter servers   a Save goes before the releases that follow from the version (Early); its Seq is the step in
//	                    hand, which is not in it
//	all-reduce          a Save goes after the releases of the rounds before the version, to members and riders
//
// A checkpoint waits for these files only for a limited time, and is complete without them: what a worker has left out
// since the last one is lost with the worker anyway.
type Saves struct {
	on       bool
	patience time.Duration // for files of workers, when all else is there
	every    time.Duration // 0: there is one at the end only
	next     time.Time
	wanted   bool // one begins as soon as it may
	early    files
	save     save
	complete string // ID of the newest complete checkpoint of this attempt; empty: none
	err      error  // of the final checkpoint
}

// Residual is a worker's file of what its codec has left out.
type Residual struct {
	Worker star.Worker

	// Weight is c of the update rule for the worker's gradients, 1 in an all-reduce, where they are
	// weighted before they are encoded.
	Weight float64

	Desc json.RawMessage // what its Saved said
}

// Coded is a worker with a codec: Seq is that of its Save, and Weight that of its Residual.
type Coded struct {
	Worker star.Worker
	Seq    int64
	Weight float64
}

// Cut says of which state a checkpoint is.
type Cut struct {
	ID           string
	Version, Seq int64
	Writer       star.Worker // has the parameters, and writes them; -1: Shards do
	Shards       int
	Final        bool
}

// save is one checkpoint; the zero value stands for none.
type save struct {
	Cut
	open    bool
	begun   time.Time
	left    int               // parts that are not there
	parts   []json.RawMessage // by shard; of a ring there is one
	files   files
	since   time.Time // only files are missing; zero: something else is
	err     error
	writing bool
}

// files are those of a checkpoint that workers write.
type files struct {
	id   string
	owed []star.Worker // have been told, and have not answered
	all  []Residual
}

// residualTime is how long a checkpoint waits for workers when all else is there, beside a second for each MiB of the
// parameters.
const residualTime = 10 * time.Second

// NewSaves makes the checkpoints of a job; on: it writes some.
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

// Open reports whether a checkpoint is under way; Writing, whether its manifest is being written.
func (s *Saves) Open() bool    { return s.save.open }
func (s *Saves) Writing() bool { return s.save.writing }

// Complete reports whether the newest complete checkpoint of this attempt has that ID.
func (s *Saves) Complete(id string) bool { return s.complete != "" && s.complete == id }

// Err is why the final checkpoint has failed; nil: it has not.
func (s *Saves) Err() error { return s.err }

// Writer reports whether a worker writes the parameters of the checkpoint that is under way; Orphaned, whether the
// final one must begin again when that worker is lost.
func (s *Saves) Writer(w star.Worker) bool { return s.save.open && s.save.Writer == w }

// Orphaned is described at Writer.
func (s *Saves) Orphaned(w star.Worker) bool {
	return s.Writer(w) && s.save.Final && !s.save.writing
}

// Early tells workers with codecs to save what they have left out of a checkpoint that is about to begin.
func (s *Saves) Early(id string, version int64, coded []Coded) []Effect {
	if s.early.id == id {
		return nil
	}
	return s.early.ask(id, version, coded)
}

// ask tells workers to write their files of a checkpoint.
func (f *files) ask(id string, version int64, coded []Coded) (out []Effect) {
	*f = files{id: id}
	for _, c := range coded {
		f.owed = append(f.owed, c.Worker)
		f.all = append(f.all, Residual{Worker: c.Worker, Weight: c.Weight})
		out = append(out, AskWorker{c.Worker, wire.Save{Seq: c.Seq, Version: version, ID: id}})
	}
	return out
}

// Start begins a checkpoint. Every server with shards is told in order with the firings, so all of them save the same
// state. Workers with codecs are told unless Early has.
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

// Part takes a part of the checkpoint. Its error, if it had one, fails the checkpoint when all parts are there. Parts
// of another checkpoint, and a part that is there, are ignored.
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

// Moved says that a shard has another primary. A part that the last one has not written fails the checkpoint: the new
// primary may have gone on to a later version; the next one is tried when it is due. Of the final checkpoint the new
// primary writes it, after the Fire with number seq.
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

// Residual takes a worker's file. One of another checkpoint, or that comes too late, is ignored.
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

// forget waits for a worker no more.
func (f *files) forget(w star.Worker) {
	i := slices.Index(f.owed, w)
	if i < 0 {
		return
	}
	f.owed = slices.Delete(f.owed, i, i+1)
	f.all = slices.DeleteFunc(f.all, func(r Residual) bool { return r.Worker == w && len(r.Desc) == 0 })
}

// Leave waits for a worker no more that has left the job.
func (s *Saves) Leave(w star.Worker) {
	s.early.forget(w)
	s.save.files.forget(w)
}

// Look writes a checkpoint when nothing that belongs to it is missing. ready: its version and its buffers are there.
// fail is what makes it fail then; nil: nothing does. It may be called at any time, and writes once. The time that the
// files of workers have begins when they are the last thing missing.
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

// Tick has a checkpoint go on without workers that have not answered for too long.
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

// Missing is what the checkpoint waits for, in words.
func (s *Saves) Missing() string {
	if s.save.left > 0 {
		return fmt.Sprintf("%d parts of a checkpoint", s.save.left)
	}
	return fmt.Sprintf("what the codecs of workers %v have left out, for a checkpoint", s.save.files.late())
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

// Drop gives up the checkpoint that is under way.
func (s *Saves) Drop() { s.save = save{} }

// Restart gives up a checkpoint that its writer has given up. Another one begins as soon as it may. The final one, and
// one that is being written, stay.
func (s *Saves) Restart() {
	if c := s.save; c.open && !c.Final && !c.writing {
		s.Drop()
		s.Want()
	}
}
