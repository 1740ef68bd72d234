package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord"
	"star/coord/session"
	"star/internal/kernel"
	"star/job"
	"star/job/process"
	"star/ps"
	"star/ps/rule"
	"star/train"
	"star/train/checkpoint"
	"star/train/data"
	"star/train/optim"
	"star/transport"
	"star/transport/wire"
)

// newRule returns the rule of one shard: the baseline's, around the job's optimizer. o was created
// for the shard's range, and the rule owns it from here on. A baseline's rule gets the number of
// workers of the job and of elements of the shard.
func (s *server) newRule(i wire.ShardInfo, o *optim.Optimizer) rule.Rule {
	if s.made.Rule == nil {
		return process.OwnRule(&s.job.Job, o, s.rate)
	}
	return s.made.Rule.Make(&rule.Descent{Optimizer: o, Schedule: s.rate, Clip: s.job.Clip}, s.job.Workers, int(i.To-i.From))
}

// judge is Zeno++ for the coordinator. Learning rates are those of the schedule at the samples
// applied, and at the start.
func (s *server) judge(zeno rule.Zeno, e coord.Evidence) coord.Verdict {
	v := zeno.Judge(rule.Evidence{Dot: e.Dot, Norm: e.Norm, Ref: e.Ref, Rate: s.rate.At(e.Samples), First: s.rate.At(0)})
	return coord.Verdict{Score: v.Score, Limit: v.Limit, Factor: v.Factor}
}

// Zeno++ scores each gradient by its inner product with a validation gradient, which is computed by
// the server on its own samples, and drops gradients with a low score.
//
//	coordinator ──Release──▶ validator ──Pull──▶ shards
//	                             └──Push──▶ shards keep it, and report dot products with later gradients
//	shards ──Evidence──▶ coordinator ──judge──▶ Verdict

// validator computes the validation gradients of Zeno++, in the process of star-ps 0, which is
// trusted: with the shards' parameters, on batches of the training data in a separate order.
//
// It is a member of the job like a worker, except that the coordinator gives it no samples of the
// stream and does not apply its gradient: shards keep it, and compare the others with it. One
// goroutine owns it.
type validator struct {
	s      *server
	zeno   rule.ZenoSpec
	model  train.Model
	loader *data.Loader
	hash   string
	// text describes the model.
	text string
	grad []float32
	sum  []float32
	// at is the next sample of its stream.
	at int64
	// served: it was asked for a gradient.
	served bool
	// fails counts consecutive failures without a gradient.
	fails int
}

// validatorTries is the number of consecutive failures of a validator without a gradient after which
// gradients are not judged any more.
const validatorTries = 5

// live serves the job until over is closed. After a loss it joins again; the job continues meanwhile
// without judging gradients. It returns nil when the job is over, ctx has ended, or it has given up
// after validatorTries. An error ends the job: the reason of a failure before it was asked for a
// gradient; a *job.NaNError if the validation gradient is not finite, as every later one would be.
func (v *validator) live(ctx context.Context, over <-chan struct{}, tcp *transport.TCP, addr string) error {
	for {
		err := v.serve(ctx, tcp, addr)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if nan := (*job.NaNError)(nil); errors.As(err, &nan) {
			return err
		}
		// When the job ends, shards close their connections, possibly during a push that no update
		// needs.
		select {
		case <-over:
			return nil
		case <-time.After(validatorGrace):
		}
		if !v.served {
			return err
		}
		if v.fails++; v.fails >= validatorTries {
			v.s.log.Error("validator gave up; gradients are applied without being judged", "tries", v.fails, "err", err)
			return nil
		}
		v.s.log.Warn("validator failed; joining again", "err", err)
	}
}

// validatorGrace is how long a lost connection may be the end of the job that the coordinator has
// not announced yet, and the pause between two attempts. A shard that is lost for good is detected
// by the coordinator.
const validatorGrace = 2 * time.Second

// validationSeed makes the order of validation batches differ from that of training. It is "zeno" in
// ASCII; any constant works.
const validationSeed = 0x7a656e6f

// newValidator returns a validator with the server's own model and data. An error: Config.Validation
// is nil or fails.
func (s *server) newValidator(zeno rule.ZenoSpec) (*validator, error) {
	job := s.job
	if job.Validation == nil {
		return nil, job.Invalid("baseline", errors.New("it needs a model and data in the server; set Config.Validation"))
	}
	own, err := job.Validation()
	if err != nil {
		return nil, err
	}
	v := &validator{s: s, zeno: zeno, model: own.Model, hash: own.Hash, text: own.Name}
	v.loader = data.NewLoader(own.Data, data.Stream{Seed: job.Seed ^ validationSeed})
	v.grad, v.sum = process.Gradient(v.model), make([]float32, len(v.model.Params()))
	return v, nil
}

// close closes the loader and the model. serve must not be running.
func (v *validator) close() {
	v.loader.Close()
	v.model.Close()
}

// serve joins the job and computes a gradient whenever the coordinator asks for one, until the job
// is over.
func (v *validator) serve(ctx context.Context, tcp *transport.TCP, addr string) error {
	j := v.s.job
	hello := wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleValidator, Job: j.Name, Token: j.Token, Version: job.Program, Host: process.Hostname(), Rank: -1,
		Model: v.text, ModelHash: v.hash, Params: int64(len(v.model.Params())), Buffers: int64(len(v.model.Buffers())),
	}
	member, err := session.Join(ctx, session.MemberConfig{
		Network: tcp, Addr: addr, Hello: hello, JoinTimeout: j.JoinTimeout, DeadAfter: j.DeadAfter, Log: v.s.log,
	})
	if err != nil {
		return fmt.Errorf("validator: %w", err)
	}
	defer member.Close()
	defer context.AfterFunc(ctx, func() { member.Close() })()
	member.Beat()
	hello.Service, hello.Rank, hello.Pass = wire.ServiceShard, member.Welcome.Rank, member.Welcome.Pass
	link, err := ps.Dial(ctx, ps.LinkConfig{
		Network: tcp, Shards: process.ShardAddrs(member.Welcome.Shards, addr), Hello: hello, Params: v.model.Params(), JoinTimeout: j.JoinTimeout, Log: v.s.log,
	})
	if err != nil {
		return fmt.Errorf("validator: %w", err)
	}
	defer link.Close()
	rank := star.Worker(member.Welcome.Rank)
	if err := session.Say(member, wire.Joined{Worker: rank}, nil); err != nil {
		return err
	}
	for step := member.Welcome.Step; ; step++ {
		rel, err := member.Next()
		if err != nil {
			return err
		}
		if rel.Action == wire.Stop {
			return nil
		}
		v.served = true
		basis, err := link.Pull(ctx, rel.Version)
		if err != nil {
			return err
		}
		if err := v.compute(ctx, v.at, int(rank), step); err != nil {
			return err
		}
		v.at += int64(v.zeno.Samples)
		if err := link.Push(ctx, step, basis, v.zeno.Samples, v.sum); err != nil {
			return err
		}
		v.fails = 0
	}
}

// compute puts the mean gradient of the samples starting at at into v.sum, batch by batch.
func (v *validator) compute(ctx context.Context, at int64, rank int, step int64) error {
	clear(v.sum)
	for left := v.zeno.Samples; left > 0; {
		k := min(left, v.s.job.Batch)
		batch, err := v.loader.Next(at, k)
		if err != nil {
			return err
		}
		loss, err := v.model.Grad(ctx, v.grad, batch)
		if err != nil {
			return fmt.Errorf("validation gradient %d: %w", step, err)
		}
		if _, bad := kernel.FiniteSumSq(v.grad); bad >= 0 {
			return &job.NaNError{Worker: rank, Step: step, Loss: loss, Tensor: "the validation gradient", Index: bad, Value: v.grad[bad]}
		}
		kernel.Axpy(float32(k)/float32(v.zeno.Samples), v.grad, v.sum)
		at, left = at+int64(k), left-k
	}
	return nil
}

// addResiduals adds the workers' residual files in the checkpoint's folder to the manifest.
//
// A part with a wrong description, or one that is not in this folder, is left out with a warning:
// the checkpoint is complete without it, and that worker's codec starts with an empty residual when
// the job resumes.
func (s *server) addResiduals(m *checkpoint.Manifest, dir string, parts []coord.ResidualPart) {
	for _, p := range parts {
		var f checkpoint.ResidualFile
		err := json.Unmarshal(p.Desc, &f)
		if err == nil && (f.Worker != int(p.Worker) || f.Name != checkpoint.ResidualName(f.Worker)) {
			err = fmt.Errorf("wrong name %.100q or worker %d", f.Name, f.Worker)
		}
		if err == nil {
			err = f.There(dir)
		}
		if err != nil {
			s.log.Warn("checkpoint saved without a worker's residual; give workers and servers the same --checkpoint, on storage that all of them reach",
				"worker", p.Worker, "folder", dir, "reason", err)
			continue
		}
		f.Weight = p.Weight
		m.Residuals = append(m.Residuals, f)
	}
	slices.SortFunc(m.Residuals, func(a, b checkpoint.ResidualFile) int { return a.Worker - b.Worker })
}
