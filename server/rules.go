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

// newRule is the rule of one shard: the baseline's, before the job's optimiser. o is made for the
// shard's range, and belongs to the rule from here on. A baseline's rule is told how many workers
// the job has and how many elements the shard.
func (s *server) newRule(i wire.ShardInfo, o *optim.Optimizer) rule.Rule {
	if s.made.Rule == nil {
		return process.OwnRule(&s.job.Job, o, s.rate)
	}
	return s.made.Rule.Make(&rule.Descent{Optimizer: o, Schedule: s.rate, Clip: s.job.Clip}, s.job.Workers, int(i.To-i.From))
}

// judge is Zeno++ as the coordinator asks it. Learning rates are those of the schedule at the
// samples applied, and at the beginning.
func (s *server) judge(zeno rule.Zeno, e coord.Evidence) coord.Verdict {
	v := zeno.Judge(rule.Evidence{Dot: e.Dot, Norm: e.Norm, Ref: e.Ref, Rate: s.rate.At(e.Samples), First: s.rate.At(0)})
	return coord.Verdict{Score: v.Score, Limit: v.Limit, Factor: v.Factor}
}

// validator computes the validation gradients of Zeno++, in the process of star-ps 0, which is
// trusted to: with the parameters that the shards have, on batches of the training data that follow
// an order of their own.
//
// It is a member of the job like a worker, except that the coordinator gives it no samples of the
// stream and applies nothing of it: shards hold its gradient, and measure others against it. One
// goroutine owns it.
type validator struct {
	s      *server
	zeno   rule.ZenoSpec
	model  train.Model
	loader *data.Loader
	hash   string
	text   string // of the model
	grad   []float32
	sum    []float32
	at     int64 // next sample of its stream
	served bool  // it was asked for a gradient
	fails  int   // in a row, without a gradient
}

// validatorTries is how often in a row a validator may fail without having handed over a gradient.
// Then nothing is judged any more.
const validatorTries = 5

// live serves the job until over is closed. When it is lost it joins again: the job goes on
// meanwhile without judgement. An error ends the job: the job has not begun, or has diverged. It
// returns nil when the job is over, ctx has ended, or it has given up after validatorTries; why it
// has failed where it was never asked for a gradient; a *job.NaNError where the validation
// gradient is not finite, which it would be for every update that follows.
func (v *validator) live(ctx context.Context, over <-chan struct{}, tcp *transport.TCP, addr string) error {
	for {
		err := v.serve(ctx, tcp, addr)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if nan := (*job.NaNError)(nil); errors.As(err, &nan) {
			return err
		}
		// A gradient that nobody waits for may be on its way when the job ends, and shards hang up.
		select {
		case <-over:
			return nil
		case <-time.After(validatorGrace):
		}
		if !v.served {
			return err
		}
		if v.fails++; v.fails >= validatorTries {
			v.s.log.Error("the validator is given up: gradients are applied without being judged", "tries", v.fails, "err", err)
			return nil
		}
		v.s.log.Warn("the validator joins again", "err", err)
	}
}

// validatorGrace is how long the loss of a connection may be the end of the job, of which the
// coordinator has not told yet, and what lies between two attempts of a validator. A shard that is
// lost for good is the coordinator's to notice.
const validatorGrace = 2 * time.Second

// validationSeed sets the order of validation batches apart from that of training. "zeno" in ASCII:
// any number does, as long as it is the same in every run.
const validationSeed = 0x7a656e6f

// newValidator makes the member that judges gradients with a model and data of its own, in an order
// of samples of its own. It is an error that the program has none (Config.Validation) or cannot
// make them.
func (s *server) newValidator(zeno rule.ZenoSpec) (*validator, error) {
	job := s.job
	if job.Validation == nil {
		return nil, job.Invalid("baseline", errors.New("this one needs a model and data in the server: give Config.Validation"))
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

// close ends the reading of samples and the model. Nothing of it may be used afterwards, and nobody
// is in serve.
func (v *validator) close() {
	v.loader.Close()
	v.model.Close()
}

// serve joins the job and computes a gradient whenever the coordinator asks for one, until the job is over.
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

// compute puts the mean gradient of the samples from at on into v.sum, batch by batch.
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

// addResiduals puts the workers' files into the manifest: those that are in the checkpoint's folder.
//
// A part that a worker describes wrongly, or that is not in this folder, is left out with a
// warning: the checkpoint is complete without it, and a job that resumes begins that worker's codec
// with nothing left over.
func (s *server) addResiduals(m *checkpoint.Manifest, dir string, parts []coord.ResidualPart) {
	for _, p := range parts {
		var f checkpoint.ResidualFile
		err := json.Unmarshal(p.Desc, &f)
		if err == nil && (f.Worker != int(p.Worker) || f.Name != checkpoint.ResidualName(f.Worker)) {
			err = fmt.Errorf("it is called %.100q, of worker %d", f.Name, f.Worker)
		}
		if err == nil {
			err = f.There(dir)
		}
		if err != nil {
			s.log.Warn("a checkpoint is without what a worker's codec has left out: workers write into the folder of the servers, give all the same --checkpoint, in a storage that all reach",
				"worker", p.Worker, "folder", dir, "reason", err)
			continue
		}
		f.Weight = p.Weight
		m.Residuals = append(m.Residuals, f)
	}
	slices.SortFunc(m.Residuals, func(a, b checkpoint.ResidualFile) int { return a.Worker - b.Worker })
}
