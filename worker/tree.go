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

// treePart is a worker's part in trees: docs/architecture.md. Without a branch for a step,
// it has none in it.
//
// next is of the release that follows; take makes it branch when that release is for the same step.
// Of each step's gradient it is known here which way it went: to a parent (handed, not direct), or
// to the shards, so that it is pushed at most once when the coordinator detaches it.
type treePart struct {
	net   transport.Network
	hello wire.Hello  // for parents
	relay *childRelay // nil: others cannot come to us
	up    parent

	next   wire.Branch   // of the release that follows
	branch wire.Branch   // of the release in hand
	sum    []float32     // our gradient and those of our children
	handed int64         // the last step whose gradient was handed over
	direct bool          // … to the shards, by ourselves
	waited time.Duration // for children, in the last step

	sent, received int64 // bytes exchanged with the parent
}

// treePatience is how long a parent waits for a child that computes. Then it goes on, and the child
// reports for itself. Of one that is gone, or cannot hand its gradient over, it hears sooner.
// It is longer than any iteration that is worth waiting for, and no gradient is lost by it.
const treePatience = 10 * time.Minute

// treeStall is how long a child tries to exchange one message with its parent: until it has the
// parameters, or has heard that the parent has its gradient. Then the shards are asked, or get the
// gradient.
// It is five seconds, and a second for each MiB (2¹⁸ elements of float32).
func treeStall(elements int) time.Duration {
	return 5*time.Second + time.Duration(elements>>18)*time.Second
}

// treeAgain is how long it connects to the parent again with its gradient: what is broken for less
// goes on through it.
const treeAgain = time.Second

// treeWarn is how often a parent that waits says for whom.
const treeWarn = 15 * time.Second

// errDetached: the coordinator has said that the gradient goes another way.
var errDetached = errors.New("detached from the parent")

var noBranch = wire.Branch{Parent: -1, Step: -1}

// forget leaves every tree: what was on its way up is void, and the connection to the parent with
// it. Its children find their connections closed, and do as their coordinator says.
func (t *treePart) forget() {
	t.up.close()
	t.up.addr = ""
	t.next, t.branch = noBranch, noBranch
	if t.relay != nil {
		t.relay.expect(nil, nil)
		t.relay.hangUp(func(*guest) bool { return true })
		t.relay.hide()
	}
}

// me is our gradient in hand.
func (w *worker) me() wire.Child {
	return wire.Child{Worker: star.Worker(w.rank), Step: w.step}
}

// take takes up the parameters of a release, from where it says.
//
// Without a branch that is of the shards: either they are asked (Pull), or they send them by
// themselves when the version is made. Children may have them once they are here. An error: the
// shards cannot give them; a parent that cannot is no error.
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

// awaitParams reads parameters from another worker into params until they are of a version or
// later: of got. bytes is what has come, also before an error. Each may take the given time; 0: the
// connection's deadline stays as it is.
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
			return got, bytes, fmt.Errorf("unexpected %v, waiting for parameters", f.Kind)
		}
		m, err := wire.ParseParams(f.Header)
		if err != nil {
			return got, bytes, err
		}
		if f.Size != int64(4*len(params)) {
			return got, bytes, fmt.Errorf("%d bytes of parameters, expected %d", f.Size, 4*len(params))
		}
		if err := c.ReadPayload(transport.Floats(params)); err != nil {
			return got, bytes, err
		}
		if got, bytes = m.Version, bytes+f.Size; got >= version {
			return got, bytes, nil
		}
	}
}

// relay gets the parameters from the parent, and if that fails, from the shards. It tries for
// treeStall, unless it is told before that the parent is gone.
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
	w.log.Warn("no parameters from the parent in the tree; asking the shards", "parent", w.tree.branch.Parent, "version", version, "err", err)
	_, err = w.link.Pull(ctx, version)
	return err
}

// withParent does something over the connection to the parent, within treeStall, unless we are
// detached meanwhile. For some time (again) a connection that breaks is made anew. What for, and of
// which step or version, it shows while it waits.
func (w *worker) withParent(ctx context.Context, again time.Duration, what string, step int64, do func(c transport.Conn, again bool) error) error {
	t := &w.tree
	if t.up.addr != t.branch.Door {
		t.up.close()
		t.up.addr = t.branch.Door
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
// It ends when all are there or are known not to come, when this worker itself is detached, or
// after treePatience. The error is that of the connection to the coordinator, or the cause of ctx:
// that children do not come is none. The caller frees the bundles.
func (w *worker) collect(ctx context.Context) ([]*bundle, error) {
	t := &w.tree
	if len(t.branch.Children) == 0 {
		return nil, nil
	}
	begun := time.Now()
	defer func() { t.waited = time.Since(begun) }()
	warn := time.NewTicker(treeWarn)
	defer warn.Stop()
	site := flightrecorder.Open(fmt.Sprintf("worker %d, in a tree", w.rank), "its children's gradients, for its step", "worker", "")
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
			w.log.Warn("waiting for children in the tree", "step", w.step, "workers", missing, "since", time.Since(begun).Round(time.Second))
		case <-patience.C:
			w.log.Warn("going on without children in the tree", "step", w.step, "workers", missing, "after", treePatience)
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

// hand hands the gradient over: to the parent, with those of the children, or to the
// shards.
//
// What goes up is the mean over all samples in it, with how many those are. A parent that does not
// answer is told to the coordinator (Fault), which then has this worker push its gradient to the
// shards; that is no error. Errors are those of collect and of the link to the shards.
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
	err = w.withParent(ctx, treeAgain, "the parent to have its gradient, of step", w.step, func(c transport.Conn, _ bool) error {
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
		w.log.Warn("cannot reach the parent in the tree", "parent", t.branch.Parent, "step", w.step, "err", err)
		return session.Say(w.member, wire.Fault{Worker: star.Worker(w.rank), Generation: w.step, Suspect: t.branch.Parent, Reason: err.Error()}, nil)
	}
	return nil
}

// stored waits until the parent says that it has our gradient: what was only sent may be lost with
// the connection.
func (w *worker) stored(c transport.Conn) error {
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		if f.Kind != wire.KindStored {
			return fmt.Errorf("unexpected %v, waiting for word that it has the gradient", f.Kind)
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

// add makes the mean gradient over our samples and those of the bundles, in order of
// rank, so that the bits do not depend on who came first. Our own gradient stays as it is: we
// may have to hand it over again.
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

// reroute pushes the gradient that was handed to a parent to the shards. One of a step that is
// over, or that was pushed already, changes nothing.
func (w *worker) reroute(ctx context.Context, d wire.Detach, samples int, basis int64) error {
	t := &w.tree
	if d.Step != t.handed || t.direct {
		return nil // it was pushed
	}
	t.direct = true
	w.log.Info("the parent in the tree did not hand it on; pushing the gradient to the shards", "step", d.Step)
	return w.push(ctx, d.Step, basis, samples, w.grad)
}

// push pushes a gradient to the shards, where they are now.
func (w *worker) push(ctx context.Context, step, basis int64, samples int, vec []float32) error {
	if err := w.redirect(ctx, w.commands.routes(), false); err != nil {
		return err
	}
	return w.link.Push(ctx, step, basis, samples, vec)
}

// redirect goes to shards where they are now. With pushed, the last push went to the old place, and
// what was owed for it is to come from the new one. An error: the coordinator speaks of another
// worker, or the shard's new server cannot be reached.
func (w *worker) redirect(ctx context.Context, routes []wire.Route, pushed bool) error {
	for _, r := range routes {
		if int(r.Worker) != w.rank || w.link == nil {
			return fmt.Errorf("the coordinator told worker %d where a shard is for worker %d", w.rank, r.Worker)
		}
		if err := w.link.Route(ctx, r.Shard, process.WithHost(r.Addr, w.job.Coordinator), pushed && w.tree.direct); err != nil {
			return err
		}
	}
	return nil
}

// traffic is what was exchanged so far, with shards, parents and children, in bytes.
func (w *worker) traffic() (sent, received int64) {
	sent, received = w.link.Traffic()
	sent, received = sent+w.tree.sent, received+w.tree.received
	if d := w.tree.relay; d != nil {
		sent, received = sent+d.sent.Load(), received+d.received.Load()
	}
	return sent, received
}
