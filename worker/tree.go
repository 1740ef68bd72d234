package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/session"
	"star/internal/flightrecorder"
	"star/internal/kernel"
	"star/job/process"
	"star/transport"
	"star/transport/wire"
)

// One step of a worker between its children and its parent, or the shards at the top:
//
//	children ──Bundle──▶ collect ─┐
//	                              add ──Bundle──▶ parent ──Stored──▶ step is handed over
//	own gradient ─────────────────┘      │
//	                                     └──▶ the shards, if it has no parent or is detached
//
//	parent ──Params──▶ take ──show──▶ children that ask with Want
//
// Every gradient reaches the shards exactly once: within the bundle of an ancestor, or pushed by its
// own worker after a Detach. A bundle is confirmed (Stored) only after it was received whole.

// treePart is a worker's part in trees (docs/architecture.md). Without a branch for a step, the
// worker is in no tree in that step.
//
// next belongs to the release that follows; take makes it branch when that release is for the same
// step. handed and direct record where each step's gradient went, to a parent or to the shards, so
// that it is pushed at most once when the coordinator detaches it.
type treePart struct {
	net transport.Network
	// hello is sent to parents.
	hello wire.Hello
	// relay serves children; nil: this worker can have no children.
	relay *childRelay
	up    parent

	// next is for the release that follows.
	next wire.Branch
	// branch is for the current release.
	branch wire.Branch
	// sum adds up the worker's gradient and those of its children.
	sum []float32
	// handed is the step of the gradient that was handed over last.
	handed int64
	// direct: it was handed to the shards by this worker itself.
	direct bool
	// waited is how long the last step waited for children.
	waited time.Duration

	// sent and received are bytes exchanged with the parent.
	sent, received int64
}

// treePatience is how long a parent waits for a child that computes. Then it continues, and the
// child reports for itself. For a child that is lost, or cannot hand its gradient over, the wait
// ends earlier. It is longer than any useful iteration; no gradient is lost by it.
const treePatience = 10 * time.Minute

// treeStall is how long a child tries to exchange one message with its parent: until it has the
// parameters, or the parent has confirmed the gradient. Then the child turns to the shards. It is
// five seconds, plus a second for each MiB (2¹⁸ elements of float32).
func treeStall(elements int) time.Duration {
	return 5*time.Second + time.Duration(elements>>18)*time.Second
}

// treeAgain is how long a child reconnects to its parent to send a gradient. Shorter interruptions
// are invisible.
const treeAgain = time.Second

// treeWarn is the interval between warnings of a parent that waits for children.
const treeWarn = 15 * time.Second

// errDetached: the coordinator has rerouted the gradient.
var errDetached = errors.New("detached from the parent")

var noBranch = wire.Branch{Parent: -1, Step: -1}

// forget leaves every tree: gradients on their way up are void, and the connection to the parent is
// closed. The children's connections are closed, too; they follow their coordinator's orders.
func (t *treePart) forget() {
	t.up.close()
	t.up.addr = ""
	t.next, t.branch = noBranch, noBranch
	if t.relay != nil {
		t.relay.expect(nil, nil)
		t.relay.hangUp(func(*childConn) bool { return true })
		t.relay.hide()
	}
}

// me identifies the worker's current gradient.
func (w *worker) me() wire.Child {
	return wire.Child{Worker: star.Worker(w.rank), Step: w.step}
}

// take receives the parameters of a release from where the release says.
//
// Without a branch that is the shards: either this worker asks for them (Pull), or the shards send
// them when the version is made. Then children may have them. An error: the shards cannot send them.
// A parent that fails is not an error.
func (w *worker) take(ctx context.Context, rel wire.Release) error {
	t := &w.tree
	t.branch, t.next = t.next, noBranch
	if t.branch.Step != w.step || rel.Count == 0 {
		t.branch = noBranch
	}
	w.commands.forget(w.me(), t.branch.Children)
	if t.relay != nil {
		t.relay.expect(t.branch.Children, t.branch.Below)
		t.relay.hide()
	}
	var err error
	switch {
	case rel.Pull:
		_, err = w.link.Pull(ctx, rel.Version)
	case t.branch.Relay:
		err = w.relay(ctx, rel.Version)
	default:
		_, err = w.link.Wait(ctx, rel.Version)
	}
	if err == nil && len(t.branch.Children) > 0 {
		t.relay.show(rel.Version)
	}
	return err
}

// awaitParams reads parameters from another worker into params until they are of the given version
// or later: got. bytes counts the payload, also before an error. patience limits each message; 0:
// the deadline of the connection is unchanged.
func awaitParams(c transport.Conn, params []float32, version int64, patience time.Duration) (got, bytes int64, err error) {
	for {
		if patience > 0 {
			c.SetReadDeadline(time.Now().Add(patience))
		}
		f, err := c.Recv()
		if err != nil {
			return got, bytes, err
		}
		if f.Kind != wire.KindParams {
			return got, bytes, fmt.Errorf("unexpected message %v while waiting for parameters", f.Kind)
		}
		m, err := wire.ParseParams(f.Header)
		if err != nil {
			return got, bytes, err
		}
		if f.Size != int64(4*len(params)) {
			return got, bytes, fmt.Errorf("cannot use the parameters: %d bytes, expected %d", f.Size, 4*len(params))
		}
		if err := c.ReadPayload(transport.Floats(params)); err != nil {
			return got, bytes, err
		}
		if got, bytes = m.Version, bytes+f.Size; got >= version {
			return got, bytes, nil
		}
	}
}

// relay gets the parameters from the parent, or, if that fails, from the shards. It tries for
// treeStall, unless this worker is detached before.
func (w *worker) relay(ctx context.Context, version int64) error {
	err := w.withParent(ctx, 0, "parameters of version", version, func(c transport.Conn, _ bool) error {
		if err := transport.Send(c, wire.Want{Worker: star.Worker(w.rank), Version: version}, nil); err != nil {
			return err
		}
		_, bytes, err := awaitParams(c, w.model.Params(), version, 0)
		w.tree.received += bytes
		return err
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.log.Warn("received no parameters from the parent in the tree; pulling from the shards", "parent", w.tree.branch.Parent, "version", version, "err", err)
	_, err = w.link.Pull(ctx, version)
	return err
}

// withParent calls do with the connection to the parent, within treeStall, unless this worker is
// detached. For the time again, a broken connection is dialled again. what and step appear in the
// flight recorder.
func (w *worker) withParent(ctx context.Context, again time.Duration, what string, step int64, do func(c transport.Conn, again bool) error) error {
	t := &w.tree
	if t.up.addr != t.branch.ParentAddr {
		t.up.close()
		t.up.addr = t.branch.ParentAddr
	}
	stall := treeStall(len(w.grad))
	site := flightrecorder.Open(fmt.Sprintf("worker %d, in a tree", w.rank), what, "worker", "")
	defer site.Close()
	site.Begin(step, stall, t.branch.Parent)
	late := fmt.Errorf("no answer within %v", stall)
	limited, end := w.commands.until(ctx, w.me())
	defer end()
	limited, stop := context.WithTimeoutCause(limited, stall, late)
	defer stop()
	return t.up.do(limited, again, t.net, t.hello, do)
}

// collect waits for the children's gradients, and takes those that come.
//
// It ends when all have come or will not come, when this worker itself is detached, or after
// treePatience. The error is that of the connection to the coordinator, or the cause of ctx; missing
// children are not an error. The caller frees the bundles.
func (w *worker) collect(ctx context.Context) ([]*bundle, error) {
	t := &w.tree
	if len(t.branch.Children) == 0 {
		return nil, nil
	}
	begun := time.Now()
	defer func() { t.waited = time.Since(begun) }()
	warn := time.NewTicker(treeWarn)
	defer warn.Stop()
	site := flightrecorder.Open(fmt.Sprintf("worker %d, in a tree", w.rank), "its children's gradients of this step", "worker", "")
	defer site.Close()
	site.Begin(w.step, treePatience)
	patience := time.NewTimer(treePatience)
	defer patience.Stop()
	for wait := true; wait; {
		var missing []int
		for _, c := range t.branch.Children {
			switch {
			case t.relay.has(c):
			case w.commands.detached(c):
				t.relay.expel(c.Worker)
			default:
				missing = append(missing, int(c.Worker))
			}
		}
		if len(missing) == 0 || w.commands.detached(w.me()) {
			break
		}
		site.SetPeers(missing...)
		if err := w.commands.failed(); err != nil {
			return nil, err
		}
		select {
		case <-t.relay.news:
		case <-w.commands.news:
		case <-warn.C:
			w.log.Warn("still waiting for children in the tree", "step", w.step, "workers", missing, "since", time.Since(begun).Round(time.Second))
		case <-patience.C:
			w.log.Warn("gave up on children in the tree", "step", w.step, "workers", missing, "after", treePatience)
			wait = false
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	var got []*bundle
	for _, c := range t.branch.Children {
		if b := t.relay.take(c); b != nil {
			got = append(got, b)
		}
	}
	return got, nil
}

// hand hands the gradient over: to the parent, with those of the children, or to the shards.
//
// What goes up is the mean over all samples in it, with their number. A parent that does not answer
// is reported to the coordinator (Fault), which then has this worker push its gradient to the
// shards; that is not an error. Errors are those of collect and of the link to the shards.
func (w *worker) hand(ctx context.Context, rec *star.Record) error {
	t := &w.tree
	t.handed, t.direct, t.waited = w.step, false, 0
	got, err := w.collect(ctx)
	if t.relay != nil {
		defer func() {
			for _, b := range got {
				t.relay.free(b.vec)
			}
		}()
		t.relay.hide()
	}
	switch {
	case err != nil:
		return err
	case w.commands.detached(w.me()), t.branch.Parent < 0 && len(t.branch.Children) == 0:
		t.direct = true
		return w.push(ctx, w.step, rec.Basis, rec.Samples, w.grad)
	}
	m := wire.Bundle{Worker: star.Worker(w.rank), Step: w.step, Members: []wire.Share{{Worker: star.Worker(w.rank), Step: w.step, Samples: rec.Samples}}}
	vec := w.grad
	if len(got) > 0 {
		vec = w.add(&m, got)
	}
	if t.branch.Parent < 0 {
		t.direct = true
		if err := session.Say(w.member, m, nil); err != nil {
			return err
		}
		return w.push(ctx, w.step, rec.Basis, m.Samples(), vec)
	}
	err = w.withParent(ctx, treeAgain, "the parent's receipt for the gradient of step", w.step, func(c transport.Conn, _ bool) error {
		if err := transport.Send(c, m, transport.Floats(vec)); err != nil {
			return err
		}
		return w.stored(c)
	})
	t.sent += int64(4 * len(vec))
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.commands.detached(w.me()): // the order to push it is in the command stream
	default:
		w.log.Warn("could not hand the gradient to the parent in the tree", "parent", t.branch.Parent, "step", w.step, "err", err)
		return session.Say(w.member, wire.Fault{Worker: star.Worker(w.rank), Generation: w.step, Suspect: t.branch.Parent, Reason: err.Error()}, nil)
	}
	return nil
}

// stored waits for the parent's receipt: a gradient that was only sent may be lost with the
// connection.
func (w *worker) stored(c transport.Conn) error {
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		if f.Kind != wire.KindStored {
			return fmt.Errorf("unexpected message %v while waiting for the parent's receipt", f.Kind)
		}
		m, err := wire.ParseStored(f.Header)
		if err != nil {
			return err
		}
		if m.Worker == star.Worker(w.rank) && m.Step == w.step {
			return nil
		}
	}
}

// add returns the mean gradient over this worker's samples and those of the bundles, added in order
// of rank, so that the bits do not depend on the order of arrival. w.grad is unchanged, because it
// may have to be handed over again.
func (w *worker) add(m *wire.Bundle, got []*bundle) []float32 {
	t := &w.tree
	if t.sum == nil {
		t.sum = make([]float32, len(w.grad))
	}
	slices.SortFunc(got, func(a, b *bundle) int { return int(a.Worker - b.Worker) })
	own := m.Members[0].Samples
	total := own
	for _, b := range got {
		total += b.Samples()
		m.Members = append(m.Members, b.Members...)
	}
	copy(t.sum, w.grad)
	kernel.Scale(float32(float64(own)/float64(total)), t.sum)
	for _, b := range got {
		kernel.Axpy(float32(float64(b.Samples())/float64(total)), b.vec, t.sum)
	}
	return t.sum
}

// reroute pushes to the shards the gradient that was handed to a parent. A gradient of an old step,
// or one that was pushed already, is ignored.
func (w *worker) reroute(ctx context.Context, d wire.Detach, samples int, basis int64) error {
	t := &w.tree
	if d.Step != t.handed || t.direct {
		return nil // an old step, or already pushed
	}
	t.direct = true
	w.log.Info("detached from the parent in the tree; pushing the gradient to the shards", "step", d.Step)
	return w.push(ctx, d.Step, basis, samples, w.grad)
}

// push pushes a gradient to the current addresses of the shards.
func (w *worker) push(ctx context.Context, step, basis int64, samples int, vec []float32) error {
	if err := w.redirect(ctx, w.commands.routes(), false); err != nil {
		return err
	}
	return w.link.Push(ctx, step, basis, samples, vec)
}

// redirect connects to moved shards. With pushed, the last push went to the old address, and its
// parameters will come from the new one. An error: the order is for another worker, or the shard's
// new server cannot be reached.
func (w *worker) redirect(ctx context.Context, routes []wire.Route, pushed bool) error {
	for _, r := range routes {
		if int(r.Worker) != w.rank || w.link == nil {
			return fmt.Errorf("invalid route from the coordinator: worker %d got one for worker %d", w.rank, r.Worker)
		}
		if err := w.link.Route(ctx, r.Shard, process.WithHost(r.Addr, w.job.Coordinator), pushed && w.tree.direct); err != nil {
			return err
		}
	}
	return nil
}

// traffic returns the bytes exchanged so far with shards, parents and children.
func (w *worker) traffic() (sent, received int64) {
	sent, received = w.link.Traffic()
	sent, received = sent+w.tree.sent, received+w.tree.received
	if d := w.tree.relay; d != nil {
		sent, received = sent+d.sent.Load(), received+d.received.Load()
	}
	return sent, received
}
