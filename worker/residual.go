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

// leftover writes a worker's part of checkpoints: what its codec has left out of its gradients.
type leftover struct {
	mu  sync.Mutex
	dir string // of the last one
}

// enrolledCodec is what the coordinator is told of a worker's codec; empty: there is nothing to ask it for.
func enrolledCodec(job *job.Job) string {
	if job.Compress == (compress.Float32{}).Name() {
		return ""
	}
	return job.Compress
}

// freeze writes what was left out when the gradients before step m.Seq had been used. The command
// stream's goroutine calls it. The file is written beside the training.
func (w *worker) freeze(link *ps.Link, m wire.Save, dropped bool) {
	r := link.Freeze(m.Seq, dropped)
	if r == nil { // it goes as it is now
		w.saidSaved(m, nil, nil)
		return
	}
	w.saves.Go(func() { w.saveLeftover(m, r.Codec, r.Pieces, r.Next) })
}

// saveLeftover writes the file of a checkpoint and says so.
func (w *worker) saveLeftover(m wire.Save, codec string, pieces []compress.Piece, next func([]float32)) {
	text, err := w.writeLeftover(m, codec, pieces, next)
	w.saidSaved(m, text, err)
}

// writeLeftover writes the residual file of a checkpoint and returns what the manifest says of it,
// as JSON. It is an error that the folder is not there (it must be one that all reach), or that the
// file cannot be written. One file is written at a time: the remains of an earlier checkpoint that
// never became whole are removed first.
func (w *worker) writeLeftover(m wire.Save, codec string, pieces []compress.Piece, next func([]float32)) ([]byte, error) {
	dir := process.CheckpointDir(w.job, m.ID)
	if w.job.Checkpoint == "" && !process.IsDir(w.job.Out) {
		return nil, fmt.Errorf("%s is not there: give every worker the --out or --checkpoint of the servers, in a storage that all reach", w.job.Out)
	}
	w.left.mu.Lock()
	defer w.left.mu.Unlock()
	// Where the storage is not the servers', nobody else removes what has become of the last one.
	if old := w.left.dir; old != "" && old != dir && !strings.Contains(old, "://") && !checkpoint.Complete(old) {
		if err := checkpoint.Discard(old); err != nil {
			w.log.Debug("the remains of a checkpoint", "err", err)
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

// saidSaved answers a Save. An error of writing goes to the coordinator.
func (w *worker) saidSaved(m wire.Save, text []byte, err error) {
	said := wire.Saved{Shard: 1, ID: m.ID} // 0 are the parameters of a ring
	if err != nil {
		said.Err = err.Error()
	}
	if err := session.Say(w.member, said, text); err != nil {
		w.log.Debug("a part of a checkpoint is written, but nobody knows", "err", err)
	}
}

// legacy opens what workers had left out by the checkpoint that the job goes on from; nil: there is
// nothing, or the job has gone on since.
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
			log.Warn("passed over what codecs had left out", "reason", err)
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
		log.Warn("cannot tell what codecs had left out: give every worker the --resume of the servers, in a storage that all reach", "reason", err)
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

// share is one worker's file as another one takes it up.
type share struct {
	worker int
	factor float32
}

// shares are what worker me takes up of files, where a gradient of its own has weight c in an
// update and successor says who goes on for a worker: itself, if it is there. What is left out of a
// gradient counts as much as the gradient, so the sum of weight times what is left out stays what
// it was.
func shares(files []checkpoint.ResidualFile, me int, c float64, successor func(worker int) int) (out []share) {
	for _, f := range files {
		if successor(f.Worker) != me {
			continue
		}
		factor := f.Weight / c
		if math.Abs(factor-1) < 1e-9 {
			factor = 1 // the same bits
		}
		out = append(out, share{f.Worker, float32(factor)})
	}
	return out
}

// gatherShares makes dst the sum of shares, from an element on.
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

// remembered is what the encoder of a worker remembers; nil where it had another codec.
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

// workersOf is how many workers begin, of as many as the job may have, where a round of all has
// total samples; 0: it is not known. All workers must come to the same number, so it does not
// depend on one's own share.
func workersOf(total int64, batch, most int) int {
	if b := int64(max(batch, 1)); total > 0 && total%b == 0 && total/b < int64(most) {
		return int(total / b)
	}
	return max(most, 1)
}

// recall begins with what was left out by the checkpoint that the job goes on from, when the first
// batch says what weight its gradient has.
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

// sayRecalled logs whose residuals a worker goes on with.
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
	w.log.Info("goes on with what codecs had left out", "checkpoint", r.Dir(), "of_workers", from, "by", strings.Join(codecs, ", "), "now", w.job.Compress)
	if !whole {
		w.log.Info("the codec's own memory is of other shards or another codec, and begins anew", "codec", w.job.Compress)
	}
}

// recallRing is recall for a ring, whose gradients are weighted before they are encoded. It is done
// once, in the first ring that has members; each of them takes up its part of what all had left
// out.
func (w *ringWorker) recallRing(ring wire.Ring) error {
	r := w.legacy
	w.legacy = nil
	if r == nil || len(r.Files()) == 0 || len(ring.Members) == 0 {
		return nil
	}
	if w.codec == nil {
		w.log.Warn("what codecs had left out is dropped: with --compress none nobody adds it in a ring; give the --compress of the job before", "checkpoint", r.Dir(), "by", r.Files()[0].Codec)
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
	// The start of powersgd's iteration is the same on all members; random numbers are everybody's own.
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

// saveLeft writes a copy of what the member's, or rider's, Compressor has left out.
func (w *ringWorker) saveLeft(m wire.Save) {
	if w.codec == nil {
		w.saidSaved(m, nil, nil)
		return
	}
	if place := slices.Index(w.ring.Members, star.Worker(w.rank)); place >= 0 && m.Version != w.version {
		w.saidSaved(m, nil, fmt.Errorf("it was to be saved at version %d, the worker has %d", m.Version, w.version))
		return
	}
	codec := w.codec.Codec()
	if codec == "" { // it was in no ring yet
		codec = w.job.Compress
	}
	rest, pieces := slices.Clone(w.codec.Residual()), w.codec.Remember()
	w.saves.Go(func() { w.saveLeftover(m, codec, pieces, func(dst []float32) { rest = rest[copy(dst, rest):] }) })
}
