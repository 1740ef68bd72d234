package worker

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	gonet "net"
	"slices"
	"strings"
	"time"

	"star"
	"star/allreduce"
	"star/compress"
	"star/coord"
	"star/exact"
	"star/internal/process"
	"star/member"
	"star/ps"
	"star/train"
	"star/train/kernel"
	"star/train/optim"
	"star/transport"
	"star/waits"
)

// ringWorker is a worker of an all-reduce: it has the parameters and the optimiser
// itself, and makes the same updates as every other member of the ring. As a rider it
// has the parameters from its parent.
type ringWorker struct {
	*worker
	tcp   *transport.TCP
	tls   *tls.Config
	hello transport.Hello  // for parents
	costs *allreduce.Model // nil: not measured

	meet *meeting // where a ring is formed, if we are its first member
	door *door    // where riders come

	replicated

	ring    transport.Ring
	group   *allreduce.Group  // nil: not a member
	counted allreduce.Traffic // of group, in records
	broken  bool              // our ring has failed: only another one helps
	marks   []int64           // what became of riders, for all members
	last    []transport.Tally // of the last versions: the coordinator may not have heard of them
	parent  parent            // as a rider
	errand  errand
	orphan  error     // why the parent is lost
	ended   time.Time // of the last round

	memo []byte // of the last release, for whoever coordinates next

	riding *riderMomentum // nil: riders' gradients are as the members'
	part   partial        // with rounds that are closed
	guard  *guard         // nil: --poison off

	codec *allreduce.Compressor // nil: gradients go as they are
	tuned int64                 // version at which it was chosen
}

// replicated is what every member of a ring has.
type replicated struct {
	params []float32
	opt    *optim.Optimizer
	rule   *ps.Descent

	version int64 // of parameters and optimiser; -1: they are not whole
	samples int64 // applied until version: the clock of schedules
}

// ringPatience is how long no byte may move in a collective operation before the ring
// counts as broken. Members that compute are waited for in it, so it must be longer than
// any iteration; who is gone is found by the coordinator, and much earlier.
const ringPatience = 10 * time.Minute

// ringReach is how long a member tries to connect to another one whose address it knows, and which listens, before it says so. The
// coordinator has the ring formed again, and takes leave of one of the two if they still cannot.
const ringReach = 5 * time.Second

// newRingWorker opens the places where others come, before the coordinator is told of them. It learns from so many samples.
func newRingWorker(job *member.Job, samples int, tcp *transport.TCP, all *process.Links, log *slog.Logger) (*ringWorker, error) {
	addr, err := process.ListenAddress(job)
	if err != nil {
		return nil, err
	}
	model, err := costModel(job)
	if err != nil {
		return nil, err
	}
	if model != nil {
		log.Info("cost model", "file", job.RingModel, "ranks", measuredRanks(model), "samples", len(model.Samples), "tcp", model.TCP)
	}
	if err := checkTransport(job.Transport, tcp.TLS != nil); err != nil {
		return nil, job.Invalid("allreduce-transport", err)
	}
	w := &ringWorker{guard: newGuard(job.Poison, samples), tcp: tcp, tls: tcp.TLS, replicated: replicated{version: -1}, costs: model, parent: parent{all: all}}
	l, err := gonet.Listen("tcp", addr)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	w.meet = newMeeting(l)
	riders, err := tcp.Listen(addr)
	if err != nil {
		w.meet.close()
		return nil, job.Invalid("listen", err)
	}
	w.door = newDoor(&process.Counted{Listener: riders, Links: all}, tcp.Config, job.Name, log)
	return w, nil
}

// checkTransport says why links between members cannot be of a kind.
func checkTransport(kind string, tls bool) error {
	if tls && kind != member.Auto && kind != "tcp" {
		return fmt.Errorf("%s is within a host, and TLS goes over tcp only: leave it away, or --tls-cert and --tls-key", kind)
	}
	return nil
}

// CheckRing says whether the cost model of a ring's collective operations can be used, before any worker starts: errors are those of Run.
func CheckRing(job member.Job) error {
	_, err := costModel(&job)
	return err
}

// costModel reads the file of --allreduce-model. Nil: there is none.
func costModel(job *member.Job) (*allreduce.Model, error) {
	if job.RingModel == "" || job.Arch != member.AllReduce {
		return nil, nil
	}
	m, err := allreduce.LoadModel(job.RingModel)
	if err != nil {
		return nil, member.FileError(fmt.Errorf("--allreduce-model %s: %w", job.RingModel, err), allreduce.ErrModel)
	}
	return m, nil
}

// measuredRanks are the numbers of ranks that a model has samples of.
func measuredRanks(m *allreduce.Model) []int {
	var ns []int
	for _, s := range m.Samples {
		if !slices.Contains(ns, s.Ranks) {
			ns = append(ns, s.Ranks)
		}
	}
	slices.Sort(ns)
	return ns
}

// addresses are what the Hello says of meet and door.
func (w *ringWorker) addresses() string {
	return w.meet.Addr().String() + "," + w.door.addr
}

func (w *ringWorker) close() {
	w.meet.close()
	w.door.close()
	w.parent.close()
	if w.group != nil {
		w.group.Close()
	}
}

// train is the life of a worker of a ring.
func (w *ringWorker) train(ctx context.Context, base *worker, hello transport.Hello) error {
	w.worker, w.hello = base, hello
	w.hello.Service, w.hello.Rank, w.hello.Addr = transport.ServiceRing, w.rank, ""
	w.average = w.averageBuffers
	w.params = w.model.Params()
	w.door.begin(w.params)
	if err := w.load(); err != nil {
		return err
	}
	if w.version >= 0 {
		w.door.change(w.version, func() {})
	}
	return w.work(ctx)
}

// work is the time from Joined to the end of the job, or of the coordinator.
func (w *ringWorker) work(ctx context.Context) error {
	if err := coord.Say(w.member, transport.Joined{Worker: star.Worker(w.rank)}, nil); err != nil {
		return err
	}
	w.inbox = newInbox(w.member, nil, nil, w.dismissed)
	w.late = func() bool {
		_, closed := w.inbox.closing(w.ring.Generation, w.version)
		return closed
	}
	w.cpu = process.CPUTime()
	w.ended = time.Now()
	for {
		o, err := w.order(ctx)
		if err != nil {
			return err
		}
		if o.Kind == transport.KindRelease && o.Release.Action == transport.Stop {
			return nil
		}
		if o.Kind == transport.KindRelease && len(o.Payload) > 0 {
			w.memo = o.Payload
		}
		if w.broken && (o.Kind != transport.KindRing || !o.Ring.Now) {
			continue // of the ring that has failed
		}
		op := w.inbox.begin(ctx, max(w.ring.Generation, o.Ring.Generation))
		switch o.Kind {
		case transport.KindRing:
			err = w.join(op, o.Ring)
		case transport.KindSave:
			err = w.save(o.Save)
		case transport.KindRelease:
			if w.group != nil {
				err = w.round(op, o.Release)
			} else {
				err = w.ride(op, o.Release)
			}
		}
		cause := context.Cause(op)
		w.inbox.end()
		if err = w.mend(ctx, cause, err); err != nil {
			return err
		}
	}
}

// follow finds the coordinator after one was lost. It keeps parameters and optimiser, and tells how far they are; the ring is given up.
func (w *ringWorker) follow(ctx context.Context, s *session, why error) error {
	w.broken = true
	w.leaveGroup(ctx)
	w.parent.close()
	w.parent.addr, w.errand, w.orphan = "", errand{}, nil
	w.part.forget()
	w.ring, w.broken = transport.Ring{}, false
	enrol := *s.joins.Enrol
	enrol.Stand = &coord.Stand{Version: w.version, Step: w.step, Memo: w.memo, Told: w.last}
	s.joins.Enrol = &enrol
	if err := w.worker.follow(ctx, s, why); err != nil {
		return err
	}
	if !w.member.Welcome.Seed && w.member.Welcome.Step > 0 { // the others went on without this one
		w.version = -1
		w.last = nil
	}
	return nil
}

// order waits for the next order; a rider without parent does not wait without end.
func (w *ringWorker) order(ctx context.Context) (coord.Order, error) {
	if w.orphan != nil {
		limited, cancel := context.WithTimeoutCause(ctx, w.job.DeadAfter+10*time.Second, &member.LostError{Err: w.orphan})
		defer cancel()
		ctx, w.orphan = limited, nil
	}
	return w.inbox.next(ctx)
}

// load makes the optimiser, and takes both from the checkpoint of a job that resumes,
// if this worker has it.
func (w *ringWorker) load() error {
	cfg, rate, err := process.UpdateRule(w.job)
	if err != nil {
		return err
	}
	job := *w.job
	job.Workers, job.Batch = w.member.Welcome.Workers, equal(w.job, w.member.Welcome)
	made, err := process.MakeBaseline(&job)
	if err != nil {
		return err
	}
	w.part.live = strings.HasPrefix(made.Rule, "lgc")
	if cfg.Name == optim.DANA && made.Rule == "" && made.Local == nil {
		w.riding = newRiderMomentum(len(w.params), cfg.Momentum, w.job.Clip, w.door.free)
	}
	cfg = cfg.Shared()     // members always make their updates together
	if made.Local != nil { // the job's own optimiser is that of the steps between
		cfg = process.Outer(made.Local.Outer)
		if rate, err = cfg.Rate(); err != nil {
			return err
		}
	}
	if w.opt, err = optim.New(cfg, len(w.params)); err != nil {
		return err
	}
	w.rule = &ps.Descent{Optimizer: w.opt, Schedule: rate, Clip: w.job.Clip}
	at := w.member.Welcome.Version
	switch {
	case at > 0 && w.member.Welcome.Step > 0: // the ring is beyond every checkpoint
		w.log.Info("the job runs: receives the parameters from another worker", "version", at)
		return nil
	case at == 0:
		w.version = 0 // everybody makes the same ones from the seed
		return nil
	case w.job.Resume == "":
		w.log.Info("no --resume: receives the parameters from another worker")
		return nil
	}
	c, err := process.OpenCheckpoint(w.job.Resume, w.log)
	if err != nil {
		return err
	}
	m := c.Manifest()
	if m.Version != at || m.Params != int64(len(w.params)) {
		return &member.DisagreeError{Err: fmt.Errorf("--resume %s: the checkpoint has version %d of %d parameters, the job resumes at version %d of %d: give every worker the same checkpoint",
			w.job.Resume, m.Version, m.Params, at, len(w.params))}
	}
	params, err := process.Restore(c, transport.ShardInfo{To: m.Params}, func(st optim.State) error { return process.SetRuleState(w.rule, st) })
	if err != nil {
		return err
	}
	copy(w.params, params)
	w.version, w.samples, w.legacy = m.Version, m.Samples, c.Residuals()
	return nil
}

// mend decides what an error of an order means. cause is why the order was to be given
// up, if it was.
func (w *ringWorker) mend(ctx context.Context, cause, err error) error {
	var peer *allreduce.Error
	var link *parentError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(cause, errSuperseded):
		w.log.Debug("gave up", "generation", w.ring.Generation, "err", err)
		w.broken = w.group != nil || w.broken
		return nil
	case errors.As(err, &link):
		w.log.Warn("lost the parent; waiting for another one", "err", err)
		w.parent.close()
		w.orphan = err
		return nil
	case errors.As(err, &peer) || errors.Is(err, errRing):
		w.broken = true
		suspect := -1
		if peer != nil && peer.Rank >= 0 && peer.Rank < len(w.ring.Members) && int(w.ring.Members[peer.Rank]) != w.rank {
			suspect = int(w.ring.Members[peer.Rank])
		}
		w.log.Warn("the ring has failed", "generation", w.ring.Generation, "err", err)
		return coord.Say(w.member, transport.Fault{
			Worker: star.Worker(w.rank), Generation: w.ring.Generation, Suspect: suspect, Reason: err.Error(),
		}, nil)
	}
	return err
}

// errRing: the ring is of no use, through nobody's fault that we know of.
var errRing = errors.New("ring")

// leaveGroup closes the group. What was sent in its last operation may still be on
// its way, unless the ring has failed.
func (w *ringWorker) leaveGroup(ctx context.Context) {
	if w.group == nil {
		return
	}
	if !w.broken {
		w.group.Barrier(ctx) // others may be gone already, which is all right now
	}
	w.group.Close()
	w.all.Ring(nil)
	w.group = nil
}

// join takes up another ring.
func (w *ringWorker) join(ctx context.Context, ring transport.Ring) error {
	if ring.Generation <= w.ring.Generation {
		return nil
	}
	old := w.ring
	w.ring, w.generation = ring, ring.Generation
	if err := w.recallRing(ring); err != nil {
		return err
	}
	me := star.Worker(w.rank)
	w.door.admit(ring, me)
	w.broken = w.broken || ring.Now
	w.part.forget()
	if w.riding != nil {
		w.riding.keep(func(r star.Worker) bool {
			return slices.ContainsFunc(ring.Riders, func(x transport.Rider) bool { return x.Worker == r && x.Parent == me })
		})
	}
	place := slices.Index(ring.Members, me)
	if place < 0 {
		w.leaveGroup(ctx)
		w.broken, w.version = false, -1 // the ring will go on without us
		if w.codec != nil && w.job.Compress != compress.Auto && w.parent.addr == "" {
			w.log.Info("rides: its gradients go to the member that carries them as float32, --compress is for the ring", "compress", w.job.Compress, "parent", ring.Door)
		}
		if ring.Door != w.parent.addr {
			w.parent.close()
			w.parent.addr = ring.Door
		}
		return nil
	}
	w.parent.close()
	w.parent.addr, w.errand = "", errand{}
	if w.group != nil && !ring.Now && !w.broken && slices.Equal(old.Members, ring.Members) {
		return w.sayFormed() // only riders have changed
	}
	w.leaveGroup(ctx)
	w.broken = false
	if err := w.dial(ctx, place); err != nil {
		return err
	}
	if err := w.agree(ctx, place); err != nil {
		return err
	}
	if err := w.compress(ctx); err != nil {
		return err
	}
	w.ended = time.Now()
	return w.sayFormed()
}

func (w *ringWorker) sayFormed() error {
	return coord.Say(w.member, transport.Formed{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version}, nil)
}

// dial forms the group. Members hear of a ring at different moments, and may still be
// computing for the one before, so it tries until they are all there.
func (w *ringWorker) dial(ctx context.Context, place int) error {
	cfg := allreduce.Config{
		Rank: place, Size: len(w.ring.Members), Rendezvous: w.ring.Addr,
		Job: w.job.Name, Token: w.job.Token, Generation: uint32(w.ring.Generation),
		TLS: w.tls, Insecure: w.job.Insecure, Congestion: w.job.Congestion,
		Timeout: ringPatience, DialTimeout: ringPatience, ReachTimeout: ringReach, Log: w.log, HostID: w.job.HostID, Connections: w.job.Connections,
		Dial: process.Via(), Model: w.costs, Segment: w.job.Segment << 10, SendBuffer: w.job.Buffer << 10, ReceiveBuffer: w.job.Buffer << 10,
	}
	if w.job.Transport != member.Auto {
		cfg.Transport = w.job.Transport
	}
	if w.job.Checksum != member.Auto {
		cfg.Checksum = w.job.Checksum
	}
	if w.job.ZeroCopy != member.Auto {
		cfg.ZeroCopy = w.job.ZeroCopy
	}
	if err := cfg.Algorithm.UnmarshalText([]byte(w.job.Algorithm)); err != nil {
		return w.job.Invalid("allreduce-algorithm", err)
	}
	site := waits.Open(fmt.Sprintf("worker %d", w.rank), "all members of the ring of generation", "worker", "")
	defer site.Close()
	var others []int
	for _, m := range w.ring.Members {
		if int(m) != w.rank {
			others = append(others, int(m))
		}
	}
	site.Begin(w.ring.Generation, ringPatience, others...)
	end := time.Now().Add(ringPatience)
	var cut time.Time // since when the way to another member is
	for try := 0; ; try++ {
		if place == 0 {
			cfg.Listener = w.meet.open()
		}
		g, err := allreduce.Dial(ctx, cfg)
		switch {
		case err == nil:
			w.group, w.counted = g, allreduce.Traffic{}
			w.all.Ring(g)
			size := min(4*int64(len(w.params)), int64(w.job.Bucket*1e6))
			w.log.Info("ring", "generation", w.ring.Generation, "members", len(w.ring.Members), "algorithm", g.Algorithm(size), "bytes", size)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("%w %d of workers %v cannot be formed: %w", errRing, w.ring.Generation, w.ring.Members, err)
		}
		if peer, ok := errors.AsType[*allreduce.Error](err); ok && peer.Rank != allreduce.None {
			if cut.IsZero() {
				cut = time.Now()
			}
			if peer.Timeout() || time.Since(cut) > ringReach {
				return err
			}
		}
		level := slog.LevelDebug
		if cfg.Transport != "" && try == 0 { // which may not be to be had
			level = slog.LevelWarn
		}
		w.log.Log(ctx, level, "forming the ring again", "err", err)
		if !process.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// agree gives all members the highest version that one of them has.
func (w *ringWorker) agree(ctx context.Context, place int) error {
	v := []int64{w.version, -w.version}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Max, v); err != nil {
		return err
	}
	highest, same := v[0], v[0] == -v[1]
	w.settle(highest)
	switch {
	case highest < 0:
		return fmt.Errorf("%w: nobody among workers %v has the parameters", errRing, w.ring.Members)
	case w.ring.From >= 0 && highest != w.ring.From:
		return fmt.Errorf("%w %d was to begin at version %d, its members have %d", errRing, w.ring.Generation, w.ring.From, highest)
	case same:
		return nil
	}
	who := []int64{int64(len(w.ring.Members))}
	if w.version == highest {
		who[0] = int64(place)
	}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Min, who); err != nil {
		return err
	}
	root := int(who[0])
	// What is received goes to fresh memory first: whoever has a whole version must not
	// lose it when the root is lost in the middle.
	state := w.opt.State()
	told := packTallies(w.last)
	counts := []int64{state.Steps, w.samples, int64(len(told)), int64(len(w.memo))}
	if err := allreduce.Broadcast(ctx, w.group, root, counts); err != nil {
		return err
	}
	if place != root {
		if counts[2] < 0 || counts[2] > maxTold {
			return fmt.Errorf("%w: worker %d tells %d numbers of its last versions", errRing, w.ring.Members[root], counts[2])
		}
		told = make([]int64, counts[2])
		if counts[3] < 0 || counts[3] > (transport.Limits{}).Payload(transport.KindRelease) {
			return fmt.Errorf("%w: worker %d tells %d bytes of what it was released with", errRing, w.ring.Members[root], counts[3])
		}
	}
	if err := allreduce.Broadcast(ctx, w.group, root, told); err != nil {
		return err
	}
	memo := packBytes(w.memo)
	if counts[3] > 0 { // of jobs that others may coordinate
		if place != root {
			memo = make([]int64, (counts[3]+7)/8)
		}
		if err := allreduce.Broadcast(ctx, w.group, root, memo); err != nil {
			return err
		}
	}
	receive := func(own []float32) ([]float32, error) {
		v := own
		if place != root {
			v = make([]float32, len(own))
		}
		return v, allreduce.Broadcast(ctx, w.group, root, v)
	}
	params, err := receive(w.params)
	if err != nil {
		return err
	}
	got := optim.State{Name: state.Name, Steps: counts[0]}
	for _, slot := range state.Slots {
		v, err := receive(slot.Data)
		if err != nil {
			return err
		}
		got.Slots = append(got.Slots, optim.Slot{Name: slot.Name, Data: v})
	}
	if w.version == highest {
		return nil
	}
	if err := w.opt.SetState(got); err != nil {
		return err
	}
	w.door.change(highest, func() { copy(w.params, params) })
	w.version, w.samples, w.last = highest, counts[1], unpackTallies(told, star.Worker(w.rank))
	if counts[3] > 0 {
		w.memo = coord.NewerMemo(w.memo, unpackBytes(memo)[:counts[3]])
	}
	for _, t := range w.last { // who made these versions may have had no time to say so
		if err := coord.Say(w.member, t, nil); err != nil {
			return err
		}
	}
	w.log.Info("received the parameters", "version", highest, "from", w.ring.Members[root])
	return nil
}

// maxTold bounds what a member tells of its last versions: two of all riders there can be.
const maxTold = 2 * (6 + (2*3+1)*transport.MaxWorkers)

// packBytes puts bytes into numbers, and zeros behind them.
func packBytes(b []byte) []int64 {
	v := make([]int64, (len(b)+7)/8)
	whole := append(slices.Clone(b), make([]byte, 8*len(v)-len(b))...)
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(whole[8*i:]))
	}
	return v
}

// unpackBytes is the reverse.
func unpackBytes(v []int64) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return b
}

// packTallies puts tallies into numbers: of each generation, version, the numbers
// of riders carried and dropped, and of each of these worker, step and the bits of the weight; then, of those that tell it, version, and how many samples of each member are in it.
func packTallies(ts []transport.Tally) []int64 {
	v := []int64{int64(len(ts))} // never empty
	for _, t := range ts {
		v = append(v, t.Generation, t.Version, int64(len(t.Carried)), int64(len(t.Dropped)))
		for _, g := range slices.Concat(t.Carried, t.Dropped) {
			v = append(v, int64(g.Worker), g.Step, int64(math.Float32bits(g.Weight)))
		}
	}
	for _, t := range ts { // behind all of them, and only with a queue
		if len(t.Samples) > 0 {
			v = append(v, t.Version, int64(len(t.Samples)))
			for _, n := range t.Samples {
				v = append(v, int64(n))
			}
		}
	}
	return v
}

// unpackTallies is the reverse. What does not make sense it leaves out.
func unpackTallies(v []int64, me star.Worker) []transport.Tally {
	var ts []transport.Tally
	if len(v) == 0 {
		return nil
	}
	n := v[0]
	for v = v[1:]; len(v) >= 4 && int64(len(ts)) < n; {
		t := transport.Tally{Worker: me, Generation: v[0], Version: v[1]}
		carried, dropped := v[2], v[3]
		v = v[4:]
		if carried < 0 || dropped < 0 || carried > transport.MaxWorkers || dropped > transport.MaxWorkers || 3*(carried+dropped) > int64(len(v)) {
			break
		}
		for i := range carried + dropped {
			g := transport.Gradient{Worker: star.Worker(v[3*i]), Step: v[3*i+1], Weight: math.Float32frombits(uint32(v[3*i+2]))}
			if i < carried {
				t.Carried = append(t.Carried, g)
			} else {
				t.Dropped = append(t.Dropped, g)
			}
		}
		v = v[3*(carried+dropped):]
		ts = append(ts, t)
	}
	for len(v) >= 2 && v[1] >= 0 && v[1] <= min(transport.MaxWorkers, int64(len(v)-2)) {
		for i := range ts {
			if ts[i].Version != v[0] {
				continue
			}
			for _, k := range v[2 : 2+v[1]] {
				ts[i].Samples = append(ts[i].Samples, int(k))
			}
		}
		v = v[2+v[1]:]
	}
	return ts
}

// round makes one version.
func (w *ringWorker) round(ctx context.Context, rel transport.Release) error {
	if rel.Version != w.version {
		return fmt.Errorf("%w: released with version %d, has %d", errRing, rel.Version, w.version)
	}
	me := star.Worker(w.rank)
	begun := time.Now()
	rec := star.Record{Worker: me, Step: w.step, Basis: rel.Version, Wait: begun.Sub(w.ended)}
	if rel.Action != transport.Continue {
		hash := transport.Tally{Worker: me, Generation: w.ring.Generation, Version: w.version, Hash: int64(transport.Sum(transport.Floats(w.params)))}
		if err := coord.Say(w.member, hash, nil); err != nil {
			return err
		}
		if err := w.evaluate(ctx, rel); err != nil {
			return err
		}
	}
	if rel.Action == transport.Finish {
		return nil
	}
	if err := w.tune(ctx); err != nil {
		return err
	}
	tally, carried, computed, err := w.sum(ctx, rel, &rec)
	if err == nil {
		err = w.compareWithOthers(rec.Samples)
	}
	if err != nil {
		return err
	}
	if w.codec != nil {
		w.codec.Keep()
	}
	tally.Sum2 = w.update(rel.Local)
	if rel.Micro == 0 {
		w.samples += rel.Total
	}
	w.samples += carried
	w.last = append(w.last[max(0, len(w.last)-1):], tally)
	w.door.answer(tally)
	now := w.group.Traffic()
	rec.NetOut, rec.NetIn = float64(now.Sent-w.counted.Sent), float64(now.Received-w.counted.Received)
	w.counted = now
	w.ended = time.Now()
	rec.Push = w.ended.Sub(computed)
	if err := w.arrive(&rec); err != nil {
		return err
	}
	return coord.Say(w.member, tally, nil)
}

// sum makes grad the weighted sum of everybody's gradients.
func (w *ringWorker) sum(ctx context.Context, rel transport.Release, rec *star.Record) (tally transport.Tally, carried int64, computed time.Time, err error) {
	tally = transport.Tally{Worker: rec.Worker, Generation: w.ring.Generation, Version: w.version + 1}
	weight := w.weight(rel.Count)
	w.guard.begin(len(w.grad), w.version)
	if rel.Micro > 0 {
		return w.partialSum(ctx, rel, rec)
	}
	if rel.Local > 0 {
		weight /= float32(rel.Local) // of as many steps as the others make
		defer w.back()
	}
	if m, ok := w.overlaps(); ok && w.bucketed() && rel.Count > 0 && rel.Local == 0 && rel.Part == 0 {
		op, cancel := context.WithCancel(ctx)
		defer cancel()
		b := w.exchange(op, weight, len(w.grad))
		var end time.Time // of the computation: what follows is the exchange
		w.grads = func(ctx context.Context, dst []float32, batch train.Batch) (float64, error) {
			defer func() { end = time.Now() }()
			return m.GradStream(ctx, dst, batch, b.ready)
		}
		var sent error
		exchanged := false
		w.finite = func([]float32) (float64, int) { // once all of it is computed
			sent, exchanged = <-b.done, true
			return b.norm2, b.bad
		}
		computed, err = w.compute(ctx, rel, rec)
		w.grads, w.finite = w.model.Grad, kernel.FiniteSumSq
		if !exchanged {
			cancel()
			<-b.done
		}
		if err == nil {
			if err = sent; err == nil {
				err = b.tell()
			}
			rec.Compute -= computed.Sub(end)
			rec.At -= computed.Sub(end)
		}
		return tally, 0, end, err
	}
	if computed, err = w.own(ctx, rel, rec); err != nil {
		return tally, 0, computed, err
	}
	drawn := int64(0) // from the queue, by all
	if rel.Part > 0 {
		weight = w.weight(rec.Samples)
		if tally.Samples, drawn, err = w.count(ctx, rec.Samples); err != nil {
			return tally, 0, computed, err
		}
	}
	if w.bucketed() {
		b := w.exchange(ctx, weight, 0)
		return tally, drawn, computed, <-b.done
	}
	kernel.Scale(weight, w.grad)
	w.guard.sample(w.grad, 0, w.left(0, len(w.grad)))
	samples := tally.Samples
	if tally, carried, err = w.carry(ctx); err != nil {
		return tally, 0, computed, err
	}
	tally.Samples = samples
	if err = w.reduce(ctx, w.grad, 0); err == nil && w.riding != nil && len(tally.Carried) > 0 {
		err = w.riding.exchange(ctx, w.group)
	}
	return tally, drawn + carried, computed, err
}

// count has all members know how many samples each of them has taken from the queue of the round.
func (w *ringWorker) count(ctx context.Context, own int) (each []int, all int64, err error) {
	v := make([]int64, len(w.ring.Members))
	v[slices.Index(w.ring.Members, star.Worker(w.rank))] = int64(own)
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Sum, v); err != nil {
		return nil, 0, err
	}
	for _, n := range v {
		each, all = append(each, int(n)), all+n
	}
	return each, all, nil
}

// weight is c of the update rule, for a gradient over so many samples.
func (w *ringWorker) weight(samples int) float32 {
	return float32(float64(samples) / float64(max(w.ring.Of, 1)))
}

// update makes the next version of the weighted sum in grad, and returns the sum's squared norm. local is how many steps everybody has made by itself; 0: these are gradients.
func (w *ringWorker) update(local int) (sum2 float64) {
	norm := -1.0
	if w.job.Clip > 0 {
		var s exact.Squares // the same bits on processors that add in another order
		s.Add(w.grad)
		sum2 = s.Float64()
		norm = math.Sqrt(sum2)
	} else {
		sum2 = kernel.SumSq(w.grad)
	}
	w.door.change(w.version+1, func() {
		if local > 0 && w.local == nil {
			w.rule.Stride(w.params, []ps.Gradient{{Vec: w.grad, Weight: 1}}, local, w.samples)
		} else {
			w.rule.Step(w.params, w.grad, w.samples, norm)
		}
		if w.riding != nil {
			w.riding.move(w.params, w.rule.Schedule.At(w.samples))
		}
	})
	w.version++
	return sum2
}

// carry adds the gradients of riders that are there, and learns from the other members
// which ones they have added: whoever is left must know it.
func (w *ringWorker) carry(ctx context.Context) (t transport.Tally, samples int64, err error) {
	riders := w.ring.Riders
	t = transport.Tally{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version + 1}
	if w.riding != nil {
		w.riding.begin()
	}
	if len(riders) == 0 {
		return t, 0, nil
	}
	// Of rider i: 2i: 1 + the first position of its batch, negative when that was
	// dropped; 2i+1: its samples.
	w.marks = append(w.marks[:0], make([]int64, 2*len(riders))...)
	behind := make([]int, len(riders))
	deadline := time.Now().Add(w.ring.Wait)
	for i, r := range riders {
		if r.Parent != star.Worker(w.rank) {
			continue
		}
		g, ok, err := w.door.take(ctx, r.Worker, deadline, func() bool { return w.inbox.rides(r) })
		if err != nil {
			return t, 0, err
		}
		if !ok {
			continue
		}
		w.marks[2*i], w.marks[2*i+1] = 1+g.Step, int64(g.Samples)
		clean, err := w.carries(g)
		if err != nil {
			return t, 0, err
		}
		if !clean || w.ring.MaxStale > 0 && w.version-g.Basis > w.ring.MaxStale {
			w.marks[2*i] = -w.marks[2*i]
		} else {
			behind[i] = int(max(t.Version-g.Basis, 1)) // later than ours: of a version that was given up
			if w.riding != nil {
				w.riding.carry(g, w.weight(g.Samples))
				continue
			}
			kernel.Axpy(w.weight(g.Samples), g.vec, w.grad)
		}
		w.door.free(g)
	}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Sum, w.marks); err != nil {
		return t, 0, err
	}
	for i, r := range riders {
		switch mark := w.marks[2*i]; {
		case mark > 0:
			samples += w.marks[2*i+1]
			t.Carried = append(t.Carried, transport.Gradient{Worker: r.Worker, Step: mark - 1, Weight: w.weight(int(w.marks[2*i+1]))})
			t.Behind = append(t.Behind, behind[i])
		case mark < 0:
			t.Dropped = append(t.Dropped, transport.Gradient{Worker: r.Worker, Step: -mark - 1})
		}
	}
	return t, samples, nil
}

// averageBuffers is Member.Average for a worker whose orders come through the inbox.
func (w *ringWorker) averageBuffers(eval int64, buffers []float32) error {
	if err := coord.Say(w.member, transport.Buffers{Worker: star.Worker(w.rank), Eval: eval}, transport.Floats(buffers)); err != nil {
		return err
	}
	return w.inbox.average(eval, transport.Floats(buffers))
}

// save writes a checkpoint of the whole parameters. The files are written beside the
// training, from a copy.
func (w *ringWorker) save(m transport.Save) error {
	if m.Seq > 0 {
		w.saveLeft(m)
		return nil
	}
	if m.Version != w.version {
		return fmt.Errorf("%w: told to save version %d, has %d", errRing, m.Version, w.version)
	}
	params := slices.Clone(w.params)
	st := process.Copied(w.opt.State())
	w.saves.Go(func() {
		text, err := process.WriteShard(process.CheckpointDir(w.job, m.ID), transport.ShardInfo{To: int64(len(params))}, m.Version, params, st)
		said := transport.Saved{ID: m.ID}
		if err != nil {
			said.Err = err.Error()
		}
		if err := coord.Say(w.member, said, text); err != nil {
			w.log.Debug("a checkpoint is written, but nobody knows", "err", err)
		}
	})
	return nil
}
