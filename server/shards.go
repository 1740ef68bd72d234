package server

import (
	"context"

	"star/job"
	"star/job/process"
	"star/ps"
	"star/ps/rule"
	"star/train"
	"star/train/optim"
	"star/transport"
	"star/transport/wire"
)

// shards configures the hosting of shards.
//
// Package ps knows neither optimizers nor files: NewRule creates the rule of a range [From, To) of
// the parameters; State and SetState read and write its state when a shard moves or is copied; Load
// and Save read and write checkpoints.
func (s *server) shards(tcp *transport.TCP, addr string) ps.ServerConfig {
	// rules is by shard; NewRule and Load run one after the other.
	rules := map[int]rule.Rule{}
	cfg := ps.ServerConfig{
		Job: s.job.Name,
		Log: s.log,
		NewRule: func(i wire.ShardInfo) (rule.Rule, error) {
			o, err := optim.New(s.opt.Cut(int(i.From), int(i.To)), int(i.To-i.From))
			if err != nil {
				return nil, err
			}
			r := s.newRule(i, o)
			rules[i.Shard] = r
			return r, nil
		},
		Save:      s.saveShard,
		Copies:    s.job.Replicas > 1,
		Validator: is[rule.ZenoSpec](s.made.Rule),
		Store:     keeps(s.plan),
		Measure:   s.job.Poison != job.Off,
		Pause:     (&pacer{limits: s.limits, moved: s.moved}).pause,
		Network:   besides{tcp, s.job.Coordinator},
		Hello:     wire.Hello{Token: s.job.Token, Version: job.Program, Host: process.Hostname(), Rank: s.job.Rank},
		State: func(r rule.Rule) rule.State {
			st := process.RuleState(r, func(r rule.Stateful) []rule.Slot { return r.Slots(rule.Inner(r).Optimizer.(*optim.Optimizer).Len()) })
			out := rule.State{Name: st.Name, Steps: st.Steps}
			for _, slot := range st.Slots {
				out.Slots = append(out.Slots, rule.Slot(slot))
			}
			return out
		},
		SetState: func(r rule.Rule, st rule.State) error {
			in := optim.State{Name: st.Name, Steps: st.Steps}
			for _, slot := range st.Slots {
				in.Slots = append(in.Slots, optim.Slot(slot))
			}
			return process.SetRuleState(r, in)
		},
		Recall: func(r rule.Rule) (out rule.State, err error) {
			st, err := process.Recalled(r)
			out.Name, out.Steps = st.Name, st.Steps
			for _, slot := range st.Slots {
				out.Slots = append(out.Slots, rule.Slot(slot))
			}
			return out, err
		},
		Begin: func(r rule.Rule, st rule.State) error {
			e := train.Experience{Rule: st.Name, Steps: st.Steps, Slots: map[string][]float32{}}
			for _, slot := range st.Slots {
				e.Slots[slot.Name] = slot.Data
			}
			in, err := process.BeginState(&e, process.OptimizerOf(r).Config())
			if err != nil {
				return err
			}
			return process.SetRuleState(r, in)
		},
	}
	if len(s.job.Coordinators) > 0 {
		cfg.Again = s.again(tcp, addr)
	}
	if s.says != nil {
		cfg.Report = s.says.report
	}
	if s.resume != nil {
		cfg.Load = func(i wire.ShardInfo) ([]float32, int64, error) {
			params, err := process.Restore(s.resume, i, func(st optim.State) error { return process.SetRuleState(rules[i.Shard], st) })
			return params, s.resume.Manifest().Version, err
		}
	}
	return cfg
}

// saveShard writes one shard's part of a checkpoint. Updates wait until the optimizer's state is
// copied, not for the disk; the parameters need no copy, because the next update makes new ones. It
// returns the file's manifest entry as JSON. RuleDone lets the shard continue; r.Params do not
// change until saveShard returns.
func (s *server) saveShard(r ps.SaveRequest) ([]byte, error) {
	st := process.Copied(process.RuleState(r.Rule, func(rule rule.Stateful) []rule.Slot { return rule.Lasting(len(r.Params)) }))
	r.RuleDone()
	return process.WriteShard(process.CheckpointDir(&s.job.Job, r.ID), r.Shard, r.Version, r.Params, st)
}

// besides is the network to other servers: an address without a host is on the coordinator's host.
type besides struct {
	transport.Network
	coordinator string
}

// Dial connects to another server. The address may have no host. Errors are those of the network.
func (b besides) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	return b.Network.Dial(ctx, process.WithHost(addr, b.coordinator))
}
