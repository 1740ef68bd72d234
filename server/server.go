package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	gonet "net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"star/checkpoint"
	"star/cluster"
	"star/compress"
	"star/coord"
	"star/internal/combinations"
	"star/internal/pilot"
	"star/internal/process"
	"star/member"
	"star/modes"
	"star/modes/baseline"
	"star/ps"
	"star/ps/rule"
	"star/resource"
	"star/resource/actuate"
	"star/runlog"
	"star/train/optim"
	"star/transport"
)

// server is one star-ps process.
type server struct {
	told   context.Context // ends when this process is told to end
	job    *Config
	log    *slog.Logger
	opt    optim.Config
	rate   optim.Schedule
	resume *checkpoint.Checkpoint // nil: from the beginning
	plan   modes.Plan
	pilot  *pilot.Pilot  // --mode auto; else nil
	made   baseline.Made // --baseline; else zero
	scheme coord.Pilot   // of the baseline; nil: its plan stays
	keeper *steward      // of this host, where the pilot asks nobody else; else nil
	tenant *admission    // with a cluster, of rank 0; else nil
	limits *actuate.Governor
	moved  func() (sent, received int64) // bytes to and from other hosts so far
	says   *reporter                     // with --move-shards auto; else nil
	office office                        // with --coordinators, of this process's reign
	heir   *coord.Estate                 // that it takes over; nil: the job begins
	params int64                         // of the job, once it was assigned its part
	locks  []*checkpoint.Lock            // of the folders that it writes into, once it coordinates

	hosting     atomic.Pointer[ps.Server] // the shards of this process
	coordinates atomic.Bool               // now, where others may, too
}

// Run hosts shards, and on rank 0, or where the servers choose this one, the coordinator, until the job is over. When ctx ends, so does the job, after a
// checkpoint within c.Grace; then the error is the cause of ctx.
//
// The exit code that fits an error is member.ExitCode. There are *member.SettingError (c cannot be used; what c.Explain makes, if it is set), *member.DisagreeError, *coord.Error (how the job has ended, for
// whoever coordinates), *coord.LostError and *transport.RejectError (of a server that does not coordinate), *member.NaNError (in a validation gradient), and those of c.Report.
func Run(ctx context.Context, c Config) error {
	c.complete()
	s := &server{job: &c, log: c.Log.With("rank", c.Rank), told: ctx}
	lingers, end := process.Linger(ctx, c.Grace)
	defer end()
	return process.EndsWith(ctx, s.serve(lingers, c.Begun, c.Report), s.log)
}

func (s *server) serve(ctx context.Context, begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	job := s.job
	if err := s.prepare(); err != nil {
		return err
	}
	defer s.leaveFolders()
	tcp, err := process.Network(&job.Job, s.log)
	if err != nil {
		return err
	}
	plain, err := tcp.Listen(job.Listen)
	if err != nil {
		return job.Invalid("listen", err)
	}
	listener := &process.Counted{Listener: plain, Links: new(process.Links)}
	addr := listener.Addr()
	friends, err := process.Meet(s.told, &job.Job, cluster.JobMember{Role: "server", Rank: job.Rank, Shards: job.Shards, Addr: process.Told(&job.Job, addr), Host: process.Hostname()}, s.log)
	if err != nil {
		listener.Close()
		return err
	}
	if friends != nil {
		defer friends.Close()
	}
	peer := job.Coordinator
	if job.Rank == 0 {
		peer = "" // which of the workers' would it be?
	}
	limits, release, err := process.Govern(&job.Job, fmt.Sprintf("star-ps %d of job %s", job.Rank, job.Name), peer, s.log)
	if err != nil {
		listener.Close()
		return err
	}
	defer release()
	s.limits, s.moved = limits, listener.Traffic
	s.log.Info("listening", "addr", addr)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if len(job.Coordinators) > 0 {
		return s.serveCouncil(ctx, cancel, tcp, listener, begun, report)
	}
	var coordinator *coord.Coordinator
	if job.Rank == 0 {
		if coordinator, err = s.coordinator(); err != nil {
			listener.Close()
			return err
		}
		if s.keeper != nil {
			var looks sync.WaitGroup
			looks.Go(func() { s.keeper.run(ctx, coordinator) })
			defer looks.Wait()
			defer cancel(nil)
		}
		if begun != nil {
			begun(coordinator)
		}
	}
	if job.MoveShards == member.Auto {
		s.says = newReporter(job, listener.Traffic)
		defer s.says.close()
		if coordinator != nil {
			var shifts sync.WaitGroup
			shifts.Go(func() { newShifter(job, s.log).run(ctx, coordinator) })
			defer shifts.Wait()
			defer cancel(nil)
		}
	}
	tenant, err := process.Enter(process.Tenant{
		Job: &job.Job, Network: tcp, Role: transport.RoleServer, Rank: job.Rank, Model: job.Model, Fixed: job.Mode != member.Auto,
		Limits: s.limits, Coordinator: coordinator, Traffic: listener.Traffic, Log: s.log,
	})
	if err != nil {
		listener.Close()
		return err
	}
	defer tenant.Leave()
	if s.tenant != nil {
		s.tenant.Store(tenant)
	}
	s.hosting.Store(ps.NewServer(s.shards(tcp)))

	var wg sync.WaitGroup
	defer wg.Wait()
	accept, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	wg.Go(func() {
		err := transport.Serve(accept, listener, tcp.Config, func(c transport.Conn, h transport.Hello, payload []byte) {
			switch {
			case h.Service == transport.ServiceCoord && coordinator != nil:
				coordinator.Accept(c, h, payload)
			case h.Service == transport.ServiceShard:
				s.hosting.Load().Accept(accept, c, h) // logs why it ended
			default:
				transport.Refuse(c, transport.Reject{Exit: member.ExitUsage,
					Reason: fmt.Sprintf("%s is star-ps %d, which has no service %q: the coordinator is star-ps 0 (--coordinator)", addr, job.Rank, h.Service)})
			}
		})
		if err != nil {
			cancel(err)
		}
	})

	// The shards of this process join the coordinator like everybody else's, on
	// rank 0 over loopback.
	hosted := make(chan error, 1)
	join := func() {
		err := s.host(ctx, tcp, s.shards, addr)
		if err != nil {
			cancel(err)
		}
		hosted <- err
	}
	if job.Rank != 0 {
		join()
		return <-hosted
	}
	joined := make(chan struct{})
	go func() { defer close(joined); join() }()
	over := make(chan struct{})
	if zeno, ok := s.made.Rule.(rule.ZenoSpec); ok {
		v, err := s.newValidator(zeno)
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer v.close()
			if err := v.live(ctx, over, tcp.Itself(), reachable(addr)); err != nil {
				cancel(err)
			}
		})
	}
	defer context.AfterFunc(s.told, func() { coordinator.Stop(context.Cause(s.told)) })()
	result, err := coordinator.Run(ctx)
	close(over)
	// Give the members a moment to hang up first: a connection that is closed with
	// bytes unread loses the bytes that are on the way to the other side.
	settle := time.NewTimer(2 * time.Second)
	defer settle.Stop()
	select {
	case <-joined:
	case <-settle.C:
	}
	for left := true; left && coordinator.Connected() > 0; {
		select {
		case <-settle.C:
			left = false
		case <-time.After(2 * time.Millisecond):
		}
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if e := report(result); err == nil {
		err = e
	}
	return err
}

// Check says what is wrong with a configuration, as far as that can be found without other processes: errors are those of Run.
func Check(c Config) error {
	c.complete()
	c.Log = slog.New(slog.DiscardHandler)
	return (&server{job: &c, log: c.Log}).prepare()
}

// features are what the job has, as far as not everything goes together.
func (s *server) features() combinations.Set {
	job, p := s.job, s.plan
	set := process.Features(&job.Job).
		With(combinations.LGC, is[rule.LiveSpec](s.made.Rule)).
		With(combinations.ADPSGD, is[rule.GossipSpec](s.made.Rule)).
		With(combinations.Tree, p.AutoTree || p.Parents != nil).
		With(combinations.Parts, p.Micro > 0 || p.Local > 0).
		With(combinations.Strides, p.Local > 0 && s.made.Local == nil).
		With(combinations.Slack, p.Ahead > 0).
		With(combinations.Shares, job.Shares != nil).
		With(combinations.Moving, job.MoveShards == member.Auto)
	switch {
	case job.Baseline == "":
		return set
	case s.made.Rule != nil:
		return set.With(combinations.OwnRule, true)
	case s.made.Local != nil:
		return set.With(combinations.OwnSteps, true)
	}
	return set.With(combinations.Deciding, s.made.Scheme != nil).With(combinations.Fixed, s.made.Scheme == nil)
}

// is says whether a baseline's rule is of that kind.
func is[S rule.Spec](s rule.Spec) bool { _, ok := s.(S); return ok }

// prepare checks what can be checked before anything listens.
func (s *server) prepare() (err error) {
	job := s.job
	if err := process.CheckCluster(&job.Job); err != nil {
		return err
	}
	if job.Resume != "" {
		if s.resume, err = process.OpenCheckpoint(job.Resume, s.log); err != nil {
			return err
		}
		process.KeepOptimizer(&job.Job, s.resume.Manifest())
	}
	if job.Baseline != "" {
		if err := s.baseline(); err != nil {
			return err
		}
	} else if job.Mode == member.Auto {
		s.plan = modes.SSGD(job.Ranks())
	} else if s.plan, err = modes.Parse(job.Mode, job.Ranks()); err != nil {
		return job.Invalid("mode", err)
	}
	if r := combinations.Check(s.features()); r != nil {
		return job.Invalid(r.Setting, r)
	}
	if job.Shares != nil {
		s.plan.Shares = job.Shares
	}
	if err := s.plan.Validate(job.Ranks()); err != nil {
		return job.Invalid("shares", err)
	}
	if err := compress.Check(job.Compress); err != nil {
		return job.Invalid("compress", err)
	}
	if job.Arch == member.AllReduce {
		if err := coord.RingPlan(s.plan); err != nil {
			return job.Invalid("mode", err)
		}
	}
	if job.Baseline == "" && job.Mode == member.Auto {
		if s.pilot, err = NewPilot(job); err != nil {
			return err
		}
	}
	if _, ok := resource.PublishedModel(job.ModelPrior); job.ModelPrior != "" && !ok {
		return job.Invalid("model-prior", fmt.Errorf("%q was not published: want one of %s", job.ModelPrior, resource.PublishedNames()))
	}
	if s.opt, s.rate, err = process.UpdateRule(&job.Job); err != nil {
		return err
	}
	if s.made.Rule != nil {
		s.opt = s.opt.Shared() // the baseline's rule makes one direction of gradients
	}
	if s.made.Local != nil { // the job's own one is the workers'
		s.opt = process.Outer(s.made.Local.Outer)
		if s.rate, err = s.opt.Rate(); err != nil {
			return err
		}
	}
	if err := checkpoint.Check(process.CheckpointsOf(&job.Job)); err != nil {
		return job.Invalid("checkpoint", err)
	}
	return nil
}

// shards configures the hosting of shards.
func (s *server) shards(tcp *transport.TCP) ps.ServerConfig {
	rules := map[int]rule.Rule{} // by shard; NewRule and Load run one after the other
	cfg := ps.ServerConfig{
		Job: s.job.Name,
		Log: s.log,
		NewRule: func(i transport.ShardInfo) (rule.Rule, error) {
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
		Measure:   s.job.Poison != member.Off,
		Pause:     (&pacer{limits: s.limits, moved: s.moved}).pause,
		Network:   besides{tcp, s.job.Coordinator},
		Hello:     transport.Hello{Token: s.job.Token, Version: member.Program, Host: process.Hostname(), Rank: s.job.Rank},
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
	}
	if s.says != nil {
		cfg.Report = s.says.report
	}
	if s.resume != nil {
		cfg.Load = func(i transport.ShardInfo) ([]float32, int64, error) {
			params, err := process.Restore(s.resume, i, func(st optim.State) error { return process.SetRuleState(rules[i.Shard], st) })
			return params, s.resume.Manifest().Version, err
		}
	}
	return cfg
}

// saveShard writes one shard's part of a checkpoint. Updates wait until the optimiser's state is copied, and not for the disk; the
// parameters need no copy, because the next update makes others.
func (s *server) saveShard(r ps.SaveRequest) ([]byte, error) {
	st := process.Copied(process.RuleState(r.Rule, func(rule rule.Stateful) []rule.Slot { return rule.Lasting(len(r.Params)) }))
	r.RuleDone()
	return process.WriteShard(process.CheckpointDir(&s.job.Job, r.ID), r.Shard, r.Version, r.Params, st)
}

// besides is the network as a server reaches other servers over it: an address without a host is
// that of the coordinator's process.
type besides struct {
	transport.Network
	coordinator string
}

func (b besides) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	return b.Network.Dial(ctx, process.WithHost(addr, b.coordinator))
}

// memoryName is the file of the workers' last iterations, as lines of a run log.
const memoryName = "predictor.jsonl"

// saveManifest completes a checkpoint.
func (s *server) saveManifest(c coord.Checkpoint) (path string, err error) {
	dir := process.CheckpointDir(&s.job.Job, c.ID)
	defer func() {
		if err != nil {
			s.discard(c.ID)
			err = process.FullDisk(err)
		}
	}()
	config, err := s.trained(s.trains(transport.Hello{Model: c.Model}, c.Enrolment), c.Enrolment)
	if err != nil {
		return "", err
	}
	m := checkpoint.Manifest{
		Job: s.job.Name, Model: c.Model, ModelHash: c.ModelHash, Created: time.Now().UTC().Format(time.RFC3339),
		Params: c.Params, Layout: specs(c.Enrolment.Layout), BufferLayout: specs(c.Enrolment.Buffers),
		Version: c.Version, Samples: c.Samples, Cursor: c.Cursor, Generation: c.Generation,
		Config: config, FirstLife: s.firstLife(c.Generation),
		Data: &checkpoint.Data{Name: c.Enrolment.Data, Samples: c.Enrolment.Samples, Digest: c.Enrolment.Digest},
	}
	for _, p := range c.Redo {
		m.Extra.Redo = append(m.Extra.Redo, checkpoint.Span{Start: p.Start, Count: int64(p.Count)})
	}
	for i, part := range c.Parts {
		var f checkpoint.ShardFile
		if err := json.Unmarshal(part, &f); err != nil {
			return "", fmt.Errorf("shard %d describes its file as %q: %w", i, part, err)
		}
		m.Shards = append(m.Shards, f)
		m.Optimizer, m.Steps = f.Optimizer, f.Steps
	}
	if len(c.Buffers) > 0 {
		f, err := checkpoint.WriteBuffers(dir, c.Buffers)
		if err != nil {
			return "", err
		}
		m.Buffers = &f
	}
	if len(c.Records) > 0 {
		var text bytes.Buffer
		if err := runlog.EncodeRecords(&text, c.Records); err != nil {
			return "", err
		}
		f, err := checkpoint.WriteMore(dir, memoryName, text.Bytes())
		if err != nil {
			return "", err
		}
		m.More = append(m.More, f)
	}
	s.addResiduals(&m, dir, c.Residuals)
	if err := checkpoint.WriteManifest(dir, m); err != nil {
		return "", err
	}
	if s.job.Keep > 0 {
		if err := checkpoint.Keep(process.CheckpointsOf(&s.job.Job), s.job.Keep, m); err != nil {
			s.log.Warn("older checkpoints are still there", "keep", s.job.Keep, "reason", err)
		}
	}
	return dir, nil
}

// saved says whether a checkpoint is complete, and where.
func (s *server) saved(id string) (path string, ok bool) {
	dir := process.CheckpointDir(&s.job.Job, id)
	return dir, checkpoint.Complete(dir)
}

// discard removes what a checkpoint that failed has left, so that a full disk has room for the next one.
func (s *server) discard(id string) {
	if err := checkpoint.Discard(process.CheckpointDir(&s.job.Job, id)); err != nil {
		s.log.Warn("the remains of a checkpoint are still there", "id", id, "reason", err)
	}
}

func specs(ts []coord.Tensor) []checkpoint.TensorSpec {
	out := make([]checkpoint.TensorSpec, len(ts))
	for i, t := range ts {
		out[i] = checkpoint.TensorSpec(t)
	}
	return out
}

// lives counts the lives of the job: one more than that of any checkpoint in the
// folder, and than that of the one it resumes from.
func (s *server) lives() int64 {
	var n int64
	if s.resume != nil {
		n = s.resume.Manifest().Generation
	}
	old, _ := checkpoint.List(process.CheckpointsOf(&s.job.Job)) // where there are none yet, none counts
	for _, f := range old {
		n = max(n, f.Generation)
	}
	return n + 1
}

// firstLife is the generation of the life in which the job has begun to write into its folder of checkpoints.
func (s *server) firstLife(generation int64) int64 {
	if s.resume != nil {
		if first := s.resume.Follows(process.CheckpointsOf(&s.job.Job)); first > 0 {
			return first
		}
	}
	return generation
}

// coordinator makes the coordinator of rank 0, with its run log.
func (s *server) coordinator() (*coord.Coordinator, error) {
	job := s.job
	config, err := s.trained(coord.Told{Model: job.Model, Dataset: job.Dataset, Seed: job.Seed}, coord.Enrolment{})
	if err != nil {
		return nil, err
	}
	if err := s.takeFolders(); err != nil {
		return nil, err
	}
	path := s.logPath()
	file, kept, err := process.CreateRunLog(path)
	if err != nil {
		return nil, job.Invalid("out", err)
	}
	if kept != "" {
		s.log.Info("kept the run log that was there", "as", kept)
	}
	notes := slices.Clone(job.Notes)
	if spec, err := baseline.Parse(job.Baseline); job.Baseline != "" && err == nil {
		notes = append(notes, "baseline: "+spec.String())
		if n := s.made.Notice; n != "" {
			s.log.Warn("baseline", "says", spec.Entry.Name+": "+n)
			notes = append(notes, spec.Entry.Name+": "+n)
		}
	}
	if s.pilot != nil {
		for _, n := range s.pilot.Notices() {
			s.log.Warn("auto", "says", n)
			notes = append(notes, n)
		}
	}
	cfg := coord.Config{
		Job: job.Name, Workers: job.Ranks(), First: job.Workers, Least: job.MinWorkers, Servers: job.Servers, Replicas: job.Replicas,
		Poison: job.Poison,
		Plan:   s.plan, Words: s.words(), Tree: modes.TreeRule{Capacity: 1e6 * job.PSBandwidth, FanIn: job.TreeFanIn}, Pace: job.PacePushes == "auto", Shift: job.MoveShards == member.Auto, Batch: job.Batch, Scale: coord.Scale(job.UpdateScale), Norm: job.Clip > 0, Strides: process.MayStride(&job.Job) == nil, Lossy: process.Lossy(job.Compress) || s.made.Local != nil,
		Samples: job.Samples, Epochs: job.Epochs, Steps: job.Steps,
		EvalEvery: job.EvalEvery, SaveEvery: job.CheckpointEvery, Grace: job.Grace,
		JoinTimeout: job.JoinTimeout, DeadAfter: job.DeadAfter, MaxParams: room(job.Servers),
		Save: s.saveManifest, Saved: s.saved, Discard: s.discard, Name: checkpoint.Name, Generation: s.lives(),
		Settings: config, Notes: notes, Program: member.Program,
		Fits: s.fits, Trains: func(h transport.Hello, e coord.Enrolment) (coord.Told, json.RawMessage) {
			t := s.trains(h, e)
			text, err := s.trained(t, e)
			if err != nil { // it was marshalled before
				text = config
			}
			return t, text
		},
		Adopt:      s.adopt,
		StopOnLoss: job.OnFailure == "stop",
		Result:     runlog.Result{Arch: job.Arch, Baseline: job.Baseline, Model: job.Model, Dataset: job.Dataset, Seed: job.Seed, RunLog: path},
		Cancel:     s.made.Cancel,
		RunLog:     runlog.NewWriter(file), Log: s.log,
	}
	if s.office.Reign != nil {
		cfg.Office, cfg.Heir, cfg.Council = s.office, s.heir, len(job.Coordinators)
	}
	if s.pilot != nil {
		cfg.Pilot = s.pilot
	}
	switch r := s.made.Rule.(type) {
	case rule.LiveSpec:
		cfg.Scale, cfg.Lossy = coord.ScaleFiring, true
	case rule.ZenoSpec:
		cfg.Validation = &coord.Validation{Every: r.Every, Judge: func(e coord.Evidence) coord.Verdict { return s.judge(r.Zeno, e) }}
	}
	if s.scheme != nil {
		cfg.Pilot = s.scheme
	}
	if job.Cluster != "" && s.pilot != nil {
		s.tenant = new(admission)
		cfg.Admission = s.tenant
	}
	if s.pilot != nil && cfg.Admission == nil && job.Arch != member.AllReduce {
		s.keeper = newSteward(job)
		cfg.Admission = s.keeper
	}
	if job.Arch == member.AllReduce {
		cfg.Ring = &coord.RingConfig{Rule: process.RuleText(&job.Job), RuleOf: s.ruleOf, Wait: job.RiderWait, MaxStale: job.MaxStaleness}
		cfg.MaxParams = 0 // every worker has its own
	}
	if s.resume != nil {
		m := s.resume.Manifest()
		cfg.Resume = coord.Progress{Version: m.Version, Samples: m.Samples, Cursor: m.Cursor}
		for _, p := range m.Extra.Redo {
			cfg.Resume.Redo = append(cfg.Resume.Redo, coord.Span{Start: p.Start, Count: int(p.Count)})
		}
		cfg.ResumeHash = m.ModelHash
		if m.Data != nil && !job.ResumeOtherData {
			cfg.ResumeData = &coord.Enrolment{Data: m.Data.Name, Samples: m.Data.Samples, Digest: m.Data.Digest}
		}
		text, err := s.resume.More(memoryName)
		if err == nil {
			cfg.Remember, err = runlog.DecodeRecords(text)
		}
		if err != nil {
			return nil, err
		}
		if n := s.resume.BufferLen(); n > 0 {
			cfg.Buffers = make([]float32, n)
			if err := s.resume.Buffers(cfg.Buffers); err != nil {
				return nil, err
			}
		}
	}
	return coord.New(cfg)
}

// room is how many parameters the servers have memory for, if they are like this
// one: a shard needs four times its slice at least, for the parameters, the next ones, a
// gradient and the optimiser. 0: not known.
func room(servers int) int64 {
	v, err := mem.VirtualMemory()
	if err != nil {
		return 0
	}
	return int64(v.Total/(4*4)) * int64(servers)
}

// host joins the coordinator and hosts what it assigns. A coordinator whose job begins anew, before the first update, has it come again: then what it
// hosts is configured anew.
func (s *server) host(ctx context.Context, tcp *transport.TCP, configure func(*transport.TCP) ps.ServerConfig, addr string) error {
	for {
		again, err := s.hostOnce(ctx, tcp, addr)
		if !again || ctx.Err() != nil {
			return err
		}
		s.log.Info("comes to the job again", "because", err)
		s.hosting.Store(ps.NewServer(configure(tcp)))
	}
}

// hostOnce does it once. again: it was told to come again.
func (s *server) hostOnce(ctx context.Context, tcp *transport.TCP, addr string) (again bool, err error) {
	shards := s.hosting.Load()
	var joined *coord.Member
	var assign transport.Assign
	for {
		var err error
		if joined, err = s.join(s.told, tcp, addr, 0); errors.As(err, new(*coord.OverError)) {
			s.log.Info(err.Error())
			return false, nil
		} else if err != nil {
			return false, err
		}
		// The coordinator's own time-out comes first: it knows who is missing.
		if assign, err = joined.Assignment(s.told, s.job.JoinTimeout+5*time.Second); err == nil {
			break
		}
		joined.Close()
		if !s.lostEarly(s.told, err) {
			return false, err
		}
	}
	defer joined.Close()
	s.params = assign.Params
	if err := s.takeOptimizer(joined.Optimizer); err != nil {
		return false, err
	}
	shards.Under(joined.Welcome.Term)
	if len(assign.Shards) > 0 {
		s.log.Info("hosting", "shards", len(assign.Shards), "of", assign.Of, "parameters", assign.Params)
	}
	layout := make([]compress.Tensor, len(joined.Layout))
	for i, t := range joined.Layout {
		layout[i] = compress.Tensor{Offset: t.Offset, Shape: t.Shape}
	}
	shards.Describe(layout)
	defer s.farewell(joined)()
	err = shards.Run(ctx, joined.Hosted(), assign)
	told, ok := errors.AsType[*transport.RejectError](err)
	return ok && told.Exit == member.ExitRestart && !shards.Fired(), err
}

// farewell has the coordinator know when this process is told to end, unless it is this process that coordinates.
func (s *server) farewell(m *coord.Member) (stop func() bool) {
	if s.job.Rank == 0 && len(s.job.Coordinators) == 0 {
		return func() bool { return true }
	}
	return context.AfterFunc(s.told, func() {
		why := context.Cause(s.told)
		if s.coordinates.Load() {
			return // it hears of it otherwise
		}
		if err := m.Leave(member.ExitCode(why), why.Error()); err != nil || s.job.Grace <= 0 {
			m.Close()
		}
	})
}

// advertise is the address under which workers reach this process. Without
// --advertise it is that of the interface that leads to the coordinator.
func (s *server) advertise(addr, coordinator string) string {
	if s.job.Advertise != "" {
		return s.job.Advertise
	}
	host, port, err := gonet.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := gonet.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return addr
	}
	if s.job.Rank == 0 {
		return ":" + port // workers put the coordinator's host before it
	}
	if c, err := gonet.Dial("udp", coordinator); err == nil { // sends nothing: asks the routing table
		defer c.Close()
		if local, _, err := gonet.SplitHostPort(c.LocalAddr().String()); err == nil {
			if ip := gonet.ParseIP(local); ip.IsLoopback() && len(s.job.Coordinators) == 0 {
				return ":" + port // the coordinator's host is this one: as above
			}
			return gonet.JoinHostPort(local, port)
		}
	}
	return gonet.JoinHostPort(process.Hostname(), port)
}

// reachable is a listening address as this machine itself reaches it.
func reachable(addr string) string {
	host, port, err := gonet.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := gonet.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return gonet.JoinHostPort("127.0.0.1", port)
	}
	return addr
}
