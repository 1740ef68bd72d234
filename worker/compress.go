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

// With --compress the gradients of a ring go through a Compressor: it encodes this member's part,
// keeps the residual, and decodes the sum. After each round exactly one of Keep and Undo is called:
// Keep when the version was made, Undo when the round is repeated (settle).

// newCompressor returns the compressor of a ring's gradients; nil: they are not compressed. The seed
// is the job's, the same on all members. An error is a *job.SettingError of --compress.
func newCompressor(job *job.Job, model train.Model) (*allreduce.Compressor, error) {
	none := compress.Float32
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

// reduce replaces part, the gradient's elements starting at from, by the sum over all members. All
// members must call it for the same parts in the same order. An error is an *allreduce.Error, which
// may name the member that caused it, or the cause of ctx; part is then undefined.
func (w *ringWorker) reduce(ctx context.Context, part []float32, from int) error {
	if w.codec == nil {
		return allreduce.AllReduce(ctx, w.group, allreduce.Sum, part)
	}
	return w.codec.AllReduce(ctx, part, from)
}

// left returns the codec's residual of elements [from, to); nil without a codec.
func (w *ringWorker) left(from, to int) []float32 {
	if w.codec == nil {
		return nil
	}
	return w.codec.Residual()[from:to]
}

// settle decides about the codec's residual after a failed round: highest is the version with which
// the ring continues. If it is this worker's, the round is repeated. If it is later, another member
// has finished the round with this worker's gradient, and the residual of that gradient counts.
func (w *ringWorker) settle(highest int64) {
	switch {
	case w.codec == nil:
	case w.version == highest:
		w.codec.Undo()
	default:
		w.codec.Keep()
	}
}

// tunePeriod is the number of rounds between two measurements of --compress auto. A measurement
// costs some exchanges, which is little in a thousand rounds.
const tunePeriod = 1000

// compress has the members of a new ring use the same codec. Before, they may have chosen different
// ones, alone or in other rings. An error is that of a collective operation.
func (w *ringWorker) compress(ctx context.Context) error {
	if w.codec == nil {
		return nil
	}
	w.tuned = w.version
	before := w.codec.Codec()
	d, err := w.codec.Join(ctx, w.group)
	return w.chosen(d, before, err)
}

// tune measures again when it is time: all members decide alike.
func (w *ringWorker) tune(ctx context.Context) error {
	if w.codec == nil || w.job.Compress != compress.Auto || w.version-w.tuned < tunePeriod {
		return nil
	}
	w.tuned = w.version
	before := w.codec.Codec()
	d, err := w.codec.Choose(ctx)
	return w.chosen(d, before, err)
}

// chosen logs a change. All members decide alike, so the first one reports it.
func (w *ringWorker) chosen(d allreduce.Decision, before string, err error) error {
	if err != nil || d.Codec == before {
		return err
	}
	if w.group.Rank() != 0 {
		w.log.Debug("codec chosen", "codec", d.Codec, "why", d.Why)
		return nil
	}
	w.log.Info("codec chosen", "codec", d.Codec, "why", d.Why)
	return sayCodec(w.member, w.rank, w.version, d.Codec, d.Why)
}

// sayCodec has the coordinator write the codec to the run log.
func sayCodec(m *session.Member, rank int, version int64, codec, why string) error {
	return session.Say(m, wire.Compression{Worker: star.Worker(rank), Version: version, Codec: codec, Why: why}, nil)
}
