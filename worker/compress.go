package worker

import (
	"context"

	"star"
	"star/allreduce"
	"star/coord/session"
	"star/internal/compress"
	"star/job"
	"star/train"
	"star/transport/wire"
)

// newCompressor is what a ring's gradients go through; nil: nothing. The seed is the job's, the
// same on all members. An error is a *job.SettingError of --compress.
func newCompressor(job *job.Job, model train.Model) (*allreduce.Compressor, error) {
	none := compress.Float32{}
	if job.Compress == none.Name() {
		return nil, nil
	}
	c, err := allreduce.NewCompressor(allreduce.CompressorConfig{
		Len: len(model.Params()), Codec: job.Compress, Tensors: matrices(model.Layout()), Seed: job.Seed,
	})
	if err != nil {
		return nil, job.Invalid("compress", err)
	}
	return c, nil
}

// reduce makes part, which is the gradient from element from on, the sum of everybody's. All
// members must call it for the same parts in the same order. An error is an *allreduce.Error, which
// may name the member that is the cause, or the cause of ctx; part is of no use then.
func (w *ringWorker) reduce(ctx context.Context, part []float32, from int) error {
	if w.codec == nil {
		return allreduce.AllReduce(ctx, w.group, allreduce.Sum, part)
	}
	return w.codec.AllReduce(ctx, part, from)
}

// left is what the codec has left out of elements [from, to) so far; nil without one.
func (w *ringWorker) left(from, to int) []float32 {
	if w.codec == nil {
		return nil
	}
	return w.codec.Residual()[from:to]
}

// settle says what became of a round that has failed here: highest is the version that the
// ring goes on with. If it is ours, the round will be made again. If it is later, somebody
// has finished the round with our share, and what we left out of that is left out.
func (w *ringWorker) settle(highest int64) {
	switch {
	case w.codec == nil:
	case w.version == highest:
		w.codec.Undo()
	default:
		w.codec.Keep()
	}
}

// tunePeriod is the rounds after which auto measures again. Measuring costs exchanges that train
// nothing: once in a thousand rounds that is little.
const tunePeriod = 1000

// compress has the members of a new ring use the same codec. Members may have chosen different ones
// before, by themselves or in other rings. An error is that of a collective operation.
func (w *ringWorker) compress(ctx context.Context) error {
	if w.codec == nil {
		return nil
	}
	w.tuned = w.version
	before := w.codec.Codec()
	d, err := w.codec.Join(ctx, w.group)
	return w.chosen(d, before, err)
}

// tune measures again when it is time: all members find the same.
func (w *ringWorker) tune(ctx context.Context) error {
	if w.codec == nil || w.job.Compress != compress.Auto || w.version-w.tuned < tunePeriod {
		return nil
	}
	w.tuned = w.version
	before := w.codec.Codec()
	d, err := w.codec.Choose(ctx)
	return w.chosen(d, before, err)
}

// chosen logs a change. All members find the same, so the first one tells it for all.
func (w *ringWorker) chosen(d allreduce.Decision, before string, err error) error {
	if err != nil || d.Codec == before {
		return err
	}
	if w.group.Rank() != 0 {
		w.log.Debug("compression", "codec", d.Codec, "why", d.Why)
		return nil
	}
	w.log.Info("compression", "codec", d.Codec, "why", d.Why)
	return sayCodec(w.member, w.rank, w.version, d.Codec, d.Why)
}

// sayCodec has the run log tell what gradients are sent with.
func sayCodec(m *session.Member, rank int, version int64, codec, why string) error {
	return session.Say(m, wire.Compression{Worker: star.Worker(rank), Version: version, Codec: codec, Why: why}, nil)
}
