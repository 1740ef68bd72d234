package worker

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"star"
	"star/coord/session"
	"star/internal/compress"
	"star/internal/kernel"
	"star/job"
	"star/job/process"
	"star/ps"
	"star/train/checkpoint"
	"star/transport/wire"
)

// A lossy codec keeps in its residual what it left out of the gradients so far, and adds it to the
// next one. A checkpoint needs the residuals of all workers, because they are gradients that no
// update contains yet. With servers the encoder keeps one residual per worker (ps.Link.Freeze); in a
// ring the Compressor does (saveLeft). Files are named in the manifest with the weight of the
// worker's gradients. A job that resumes with another number of workers sums the residuals of
// several (shares); with another codec it still applies them, but resets the codec's own state.

// leftover writes a worker's part of checkpoints: the residual of its codec, which is what the codec
// left out of gradients.
type leftover struct {
	mu sync.Mutex
	// dir is that of the last checkpoint.
	dir string
}

// enrolledCodec is the worker's codec for the Enrolment; empty: the worker has no residual.
func enrolledCodec(job *job.Job) string {
	if job.Compress == compress.Float32.Name() {
		return ""
	}
	return job.Compress
}

// freeze writes the residual as of the gradients before step m.Seq. The command stream's goroutine
// calls it. The file is written concurrently with the training.
func (w *worker) freeze(link *ps.Link, m wire.Save, dropped bool) {
	r := link.Freeze(m.Seq, dropped)
	if r == nil { // the worker has no residual
		w.saidSaved(m, nil, nil)
		return
	}
	w.saves.Go(func() { w.saveLeftover(m, r.Codec, r.Pieces, r.Next) })
}

// saveLeftover writes the file of a checkpoint and reports it.
func (w *worker) saveLeftover(m wire.Save, codec string, pieces []compress.Piece, next func([]float32)) {
	text, err := w.writeLeftover(m, codec, pieces, next)
	w.saidSaved(m, text, err)
}

// writeLeftover writes the residual file of a checkpoint and returns its manifest entry as JSON.
// Errors: the folder does not exist (it must be one that all members reach), or the file cannot be
// written. One file is written at a time: the remains of an earlier incomplete checkpoint are
// removed first.
func (w *worker) writeLeftover(m wire.Save, codec string, pieces []compress.Piece, next func([]float32)) ([]byte, error) {
	dir := process.CheckpointDir(w.job, m.ID)
	if w.job.Checkpoint == "" && !process.IsDir(w.job.Out) {
		return nil, fmt.Errorf("cannot write the residual: folder %s does not exist; give every worker the --out or --checkpoint of the servers, on storage that all of them reach", w.job.Out)
	}
	w.left.mu.Lock()
	defer w.left.mu.Unlock()
	// If the storage is not the servers', no other process removes the remains of the last one.
	if old := w.left.dir; old != "" && old != dir && !strings.Contains(old, "://") && !checkpoint.Complete(old) {
		if err := checkpoint.Discard(old); err != nil {
			w.log.Debug("could not remove an incomplete checkpoint", "err", err)
		}
	}
	w.left.dir = dir
	r := checkpoint.Residual{Worker: w.rank, Version: m.Version, ModelHash: w.hash, Codec: codec}
	for _, p := range pieces {
		r.Pieces = append(r.Pieces, checkpoint.Piece{From: p.From, To: p.To, Warm: p.Warm, Drawn: p.Drawn})
	}
	f, err := checkpoint.WriteResidual(dir, int64(len(w.model.Params())), r, next)
	if err != nil {
		return nil, err
	}
	return json.Marshal(f)
}

// saidSaved answers a Save. A write error is reported to the coordinator.
func (w *worker) saidSaved(m wire.Save, text []byte, err error) {
	said := wire.Saved{Shard: 1, ID: m.ID} // Shard 0 are the parameters of a ring
	if err != nil {
		said.Err = err.Error()
	}
	if err := session.Say(w.member, said, text); err != nil {
		w.log.Debug("could not report a written checkpoint part", "err", err)
	}
}

// legacy opens the residuals of the checkpoint that the job resumes from; nil: it has none, or
// the job has made updates since.
func legacy(job *job.Job, welcome wire.Welcome, log *slog.Logger) *checkpoint.Residuals {
	if welcome.Version == 0 || welcome.Step > 0 || job.Resume == "" {
		return nil
	}
	place := job.Resume
	open := func(dir string) (*checkpoint.Residuals, bool) {
		m, err := checkpoint.Describe(dir)
		if err != nil || m.Version != welcome.Version {
			return nil, false
		}
		r, err := checkpoint.OpenResiduals(dir)
		if err != nil {
			log.Warn("ignored the residuals of the checkpoint", "reason", err)
			return nil, false
		}
		return r, true
	}
	if checkpoint.Complete(place) {
		r, _ := open(place)
		return r
	}
	if sub := filepath.Join(place, process.CheckpointsDir); process.IsDir(sub) {
		place = sub
	}
	found, err := checkpoint.List(place)
	if err != nil {
		log.Warn("could not read the residuals of the checkpoint; give every worker the --resume of the servers, on storage that all of them reach", "reason", err)
		return nil
	}
	for _, f := range found {
		if f.Complete && f.Version == welcome.Version {
			if r, ok := open(checkpoint.Join(place, f.Name)); ok {
				return r
			}
		}
	}
	return nil
}

// share is one worker's residual file as another worker takes it over.
type share struct {
	worker int
	factor float32
}

// shares returns what worker me takes over of files. c is the weight of one of its own gradients in
// an update; successor maps each worker of the checkpoint to the worker that takes over its
// residual. The sum of weight times residual is preserved, because a residual counts as much as its
// gradient.
func shares(files []checkpoint.ResidualFile, me int, c float64, successor func(worker int) int) (out []share) {
	for _, f := range files {
		if successor(f.Worker) != me {
			continue
		}
		factor := f.Weight / c
		if math.Abs(factor-1) < 1e-9 {
			factor = 1 // keeps the bits
		}
		out = append(out, share{f.Worker, float32(factor)})
	}
	return out
}

// gatherShares sets dst to the sum of shares, starting at element from.
func gatherShares(r *checkpoint.Residuals, of []share, from int64, dst []float32) error {
	clear(dst)
	part := make([]float32, min(len(dst), 1<<18))
	for i, s := range of {
		if i == 0 {
			if err := r.Range(s.worker, from, dst); err != nil {
				return err
			}
			if s.factor != 1 {
				kernel.Scale(s.factor, dst)
			}
			continue
		}
		for at := 0; at < len(dst); at += len(part) {
			part := part[:min(len(part), len(dst)-at)]
			if err := r.Range(s.worker, from+int64(at), part); err != nil {
				return err
			}
			kernel.Axpy(s.factor, part, dst[at:at+len(part)])
		}
	}
	return nil
}

// remembered returns the encoder state that was saved for a worker; nil if it had another codec.
func remembered(r *checkpoint.Residuals, worker int, codec string) (ps []compress.Piece, err error) {
	i := slices.IndexFunc(r.Files(), func(f checkpoint.ResidualFile) bool { return f.Worker == worker && f.Codec == codec })
	if i < 0 {
		return nil, nil
	}
	saved, err := r.Pieces(worker)
	for _, p := range saved {
		ps = append(ps, compress.Piece{From: p.From, To: p.To, Memory: compress.Memory{Warm: p.Warm, Drawn: p.Drawn}})
	}
	return ps, err
}

// workersOf returns how many of at most most workers start, when a round of all of them has total
// samples; 0: not known. It must be the same on all workers, so it does not depend on the worker's
// own share.
func workersOf(total int64, batch, most int) int {
	if b := int64(max(batch, 1)); total > 0 && total%b == 0 && total/b < int64(most) {
		return int(total / b)
	}
	return max(most, 1)
}

// recall loads the residuals of the checkpoint that the job resumes from, once the first batch shows
// which weight the worker's gradient has.
func (w *worker) recall(rel wire.Release) error {
	r := w.legacy
	w.legacy = nil
	if r == nil || len(r.Files()) == 0 || w.link == nil {
		return nil
	}
	n := workersOf(rel.Total, equal(w.job, w.member.Welcome), w.member.Welcome.Workers)
	c := 1 / float64(n)
	if rel.Total > 0 && rel.Count > 0 {
		c = float64(rel.Count) / float64(rel.Total)
	}
	of := shares(r.Files(), w.rank, c, func(worker int) int { return worker % n })
	if len(of) == 0 {
		return nil
	}
	pieces, err := remembered(r, w.rank, w.job.Compress)
	if err != nil {
		return err
	}
	whole, err := w.link.Recall(func(from int64, dst []float32) error { return gatherShares(r, of, from, dst) }, pieces)
	if err != nil {
		return err
	}
	w.sayRecalled(r, of, whole)
	return nil
}

// sayRecalled logs which residuals a worker took over.
func (w *worker) sayRecalled(r *checkpoint.Residuals, of []share, whole bool) {
	var from []int
	var codecs []string
	for _, s := range of {
		from = append(from, s.worker)
		for _, f := range r.Files() {
			if f.Worker == s.worker && !slices.Contains(codecs, f.Codec) {
				codecs = append(codecs, f.Codec)
			}
		}
	}
	w.log.Info("residuals restored", "checkpoint", r.Dir(), "of_workers", from, "by", strings.Join(codecs, ", "), "now", w.job.Compress)
	if !whole {
		w.log.Info("codec state reset: it belongs to other shards or another codec", "codec", w.job.Compress)
	}
}

// recallRing is recall for a ring: its gradients are weighted before they are encoded. It runs
// once, in the first ring that has members; each member takes over its part of all residuals.
func (w *ringWorker) recallRing(ring wire.Ring) error {
	r := w.legacy
	w.legacy = nil
	if r == nil || len(r.Files()) == 0 || len(ring.Members) == 0 {
		return nil
	}
	if w.codec == nil {
		w.log.Warn("dropped the residuals: a ring with --compress none cannot apply them; resume with the --compress of the job before", "checkpoint", r.Dir(), "by", r.Files()[0].Codec)
		return nil
	}
	there := slices.Clone(ring.Members)
	for _, rider := range ring.Riders {
		there = append(there, rider.Worker)
	}
	of := shares(r.Files(), w.rank, 1, func(worker int) int {
		if slices.Contains(there, star.Worker(worker)) {
			return worker
		}
		return int(ring.Members[worker%len(ring.Members)])
	})
	// The start vectors of powersgd are the same on all members; random state is each worker's own.
	pieces, err := remembered(r, r.Files()[0].Worker, w.job.Compress)
	if err != nil {
		return err
	}
	own, err := remembered(r, w.rank, w.job.Compress)
	if err != nil {
		return err
	}
	pieces = slices.DeleteFunc(pieces, func(p compress.Piece) bool { return p.Drawn > 0 })
	for _, p := range own {
		if p.Drawn > 0 {
			pieces = append(pieces, p)
		}
	}
	if err := w.codec.Recall(func(e []float32) error { return gatherShares(r, of, 0, e) }, pieces); err != nil {
		return err
	}
	if len(of) > 0 {
		w.sayRecalled(r, of, true)
	}
	return nil
}

// saveLeft writes a copy of the residual of the member's, or rider's, Compressor.
func (w *ringWorker) saveLeft(m wire.Save) {
	if w.codec == nil {
		w.saidSaved(m, nil, nil)
		return
	}
	if place := slices.Index(w.ring.Members, star.Worker(w.rank)); place >= 0 && m.Version != w.version {
		w.saidSaved(m, nil, fmt.Errorf("cannot save version %d: the worker has version %d", m.Version, w.version))
		return
	}
	codec := w.codec.Codec()
	if codec == "" { // it has not joined a ring yet
		codec = w.job.Compress
	}
	rest, pieces := slices.Clone(w.codec.Residual()), w.codec.Remember()
	w.saves.Go(func() { w.saveLeftover(m, codec, pieces, func(dst []float32) { rest = rest[copy(dst, rest):] }) })
}
