package modes

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"star"
	"star/internal/outer"
)

// Group is a set of workers that make updates together.
type Group struct {
	// Members are waited for. A worker is a member of at most one group.
	Members []star.Worker

	// Quorum is how many members must have arrived before the group fires, 1..len(Members). When fewer
	// members are live, all live members suffice.
	Quorum int

	// Riders are never waited for. A rider that waits when the group fires is included. A worker may ride
	// in several groups, and ride in one and be a member of another; the first of them that fires takes it.
	// A worker that is not a member of any group, and only rides in groups without live members, makes an
	// update of its own as soon as it arrives.
	Riders []star.Worker

	// DropLate discards the gradient of a member that was released before the group's last firing under
	// this plan: it was computed on parameters that the group has replaced since (backup workers). Riders
	// are not dropped.
	DropLate bool

	// NonBlocking releases a member as soon as it has arrived, with the present parameters, and takes its
	// next gradient too: the group fires with the Quorum-th gradient, from any of its members. Quorum may
	// exceed the number of members (K-batch-sync with DropLate, K-batch-async without). Such a group has no
	// riders.
	NonBlocking bool
}

// Outer is the rule of outer steps, in Plan.Outer. The zero value is the mean.
type Outer = outer.Rule

// Plan is a synchronisation mode. Invariant of a valid plan: every worker of the job is a member or rider of
// a group, or in Excluded.
type Plan struct {
	Groups []Group

	// Shares is the size of each worker's mini-batch in samples, by rank. Nil: all have the batch of the
	// job's settings.
	Shares []int

	// Parents is the tree: the parent of each worker, by rank, or [Direct]. A parent adds the gradients of
	// its children to its own and sends one report, which arrives, and is applied, as all the gradients in
	// it. Nil: every worker is direct.
	Parents []star.Worker

	// AutoTree asks the caller that runs the plan for a tree by a [TreeRule], from measured load. It
	// replaces Parents.
	AutoTree bool

	// MaxLead bounds how far a worker may run ahead (stale synchronous parallel): its gradient is applied
	// when its group fires, but it is released only once it has made fewer than MaxLead iterations more
	// than the slowest live worker. SSP with slack s is ASGD with MaxLead s + 1. Zero: no bound.
	MaxLead int

	// Excluded are workers in no group. One finishes its present iteration and then waits for a plan that
	// includes it; that gradient is dropped. While no other worker is live they are not excluded.
	Excluded []star.Worker

	// Local is how many local steps a worker trains from one release to the next. It takes as many
	// mini-batches of the stream, and reports the change of its parameters instead of a gradient. Zero: none.
	Local int

	// LocalSamples says that Local counts samples: a worker makes as many steps of its mini-batch as come nearest to
	// them, at least one ([Plan.Steps]). It needs an Outer other than the mean.
	LocalSamples bool `json:",omitempty"`

	// Outer is what an update makes of the distances that workers have moved by local steps. The zero value is
	// their mean. Other rules need Local.
	Outer Outer `json:",omitzero"`

	// StepsBySpeed gives Local steps to the fastest worker and fewer to slower ones, at least one, in proportion to
	// their speed, so that all workers arrive at about the same time ([StepsOf]). It needs Local, and an Outer other
	// than the mean.
	StepsBySpeed bool `json:",omitempty"`

	// Fragments is the number of parts of the parameters that are exchanged in turn: one after each Fragments-th of the
	// local steps, while workers make the next ones (Streaming DiLoCo). A worker makes Local steps between two
	// exchanges of the same part. It needs one group that waits for all its members, and an Outer of Nesterov. Zero:
	// the parameters are exchanged whole, and workers wait for it.
	Fragments int `json:",omitempty"`

	// Grace is how long a group with a complete quorum waits for its other live members before it fires. Those
	// that are later take part in the next update. Zero: it fires at once.
	Grace time.Duration `json:",omitempty"`

	// Micro is the number of parts of a worker's mini-batch, and ComputeDeadline how long it may compute:
	// once that has passed it begins no further part and reports the mean over those that it has, at least
	// one (DropCompute). Both are zero, or neither is.
	Micro           int
	ComputeDeadline time.Duration

	// Queue is the number of parts of a worker's share of the round. They wait in one queue for all
	// workers: a worker that has finished a part takes the next one, and when none is left reports the mean
	// over its parts, at least one. So all workers finish a round at about the same time, even if some are
	// slow (docs/modes.md, A queue of samples). Zero: each worker computes its own share.
	Queue int
}

// UnmarshalJSON also reads the names that MaxLead, Excluded and ComputeDeadline had before: Ahead, Held and Cap.
func (p *Plan) UnmarshalJSON(b []byte) error {
	type plan Plan
	return json.Unmarshal(b, &struct {
		*plan
		Ahead *int
		Held  *[]star.Worker
		Cap   *time.Duration
	}{(*plan)(p), &p.MaxLead, &p.Excluded, &p.ComputeDeadline})
}

// UnmarshalJSON also reads the name that NonBlocking had before: Again.
func (g *Group) UnmarshalJSON(b []byte) error {
	type group Group
	return json.Unmarshal(b, &struct {
		*group
		Again *bool
	}{(*group)(g), &g.NonBlocking})
}

// Part is the size in samples of the parts that w takes from the queue. def is its share where the plan has
// no shares.
func (p Plan) Part(w star.Worker, def int) int {
	return max(1, (p.Share(w, def)+p.Queue/2)/max(1, p.Queue))
}

// MaxGrace is the longest Grace: a worker that needs longer is not late, but another kind of slow.
const MaxGrace = 10 * time.Minute

// StepsOf is the local steps of a worker that needs mine seconds for a step, where the fastest one needs fastest
// and makes local. A time that is not known, zero, counts as that of the fastest.
func StepsOf(local int, mine, fastest float64) int {
	if !(mine > fastest) || !(fastest > 0) {
		return local
	}
	return max(1, int(float64(local)*fastest/mine+0.5))
}

// Steps is the local steps of w from one release to the next, between which one fragment is exchanged or all
// parameters; 0: none. def is its share where the plan has no shares.
func (p Plan) Steps(w star.Worker, def int) int {
	if p.Local == 0 {
		return 0
	}
	one := max(1, p.Fragments)
	if p.LocalSamples {
		one *= max(1, p.Share(w, def))
	}
	return max(1, (p.Local+one/2)/one)
}

// MaxFragments is the maximum number of fragments: each costs a message of every worker and shard.
const MaxFragments = 64

// StepSamples is the samples of a step of the worker that sent r: a def of [Plan.Steps] where the job's is not known.
func StepSamples(r *star.Record) int {
	steps, _ := r.Telemetry.Get(star.Parts)
	return r.Samples / max(1, int(steps))
}

// MaxQueue is the maximum number of parts of a share: each costs a message.
const MaxQueue = 1 << 10

// NoDeadline is a ComputeDeadline that never passes: a worker computes all parts, unless it gets a stop.
const NoDeadline = 24 * 365 * time.Hour

// SSGD waits for all n workers: one group with all of them.
func SSGD(n int) Plan { return XOrder(n, n) }

// ASGD waits for no worker: n groups of one.
func ASGD(n int) Plan {
	p := Plan{Groups: make([]Group, n)}
	for w := range n {
		p.Groups[w] = Group{Members: []star.Worker{star.Worker(w)}, Quorum: 1}
	}
	return p
}

// XOrder fires with the first x of n workers that have arrived since the last update (static x-order,
// K-async SGD). The workers of an update wait for its x-th; the others continue to compute on their present
// parameters.
func XOrder(n, x int) Plan {
	return Plan{Groups: []Group{{Members: ranks(n), Quorum: x}}}
}

// Backup waits for n-b of n workers and drops the gradients of the b that are late (Chen et al. 2016).
// XOrder(n, n-b) is the same without the dropping.
func Backup(n, b int) Plan {
	return Plan{Groups: []Group{{Members: ranks(n), Quorum: n - b, DropLate: true}}}
}

// Batches fires with every k gradients of any workers, which all continue at once (K-batch-async,
// Dutta et al. 2018); with drop, gradients on older parameters than the present ones are discarded
// (K-batch-sync).
func Batches(n, k int, drop bool) Plan {
	return Plan{Groups: []Group{{Members: ranks(n), Quorum: k, DropLate: drop, NonBlocking: true}}}
}

// maxBatches is the largest quorum of a group with NonBlocking.
const maxBatches = 1 << 12

// Ring waits for all workers but the riders, and includes riders that have arrived: the ring of an
// all-reduce without its stragglers. It keeps the slice riders, which must leave a worker in the ring.
func Ring(n int, riders ...star.Worker) Plan {
	g := Group{Riders: riders}
	for w := range star.Worker(n) {
		if !slices.Contains(riders, w) {
			g.Members = append(g.Members, w)
		}
	}
	g.Quorum = len(g.Members)
	return Plan{Groups: []Group{g}}
}

// Grouped makes each set a group that waits for all its members and for no others (dynamic x-order). It
// keeps the slices.
func Grouped(sets ...[]star.Worker) Plan {
	p := Plan{Groups: make([]Group, len(sets))}
	for i, s := range sets {
		p.Groups[i] = Group{Members: s, Quorum: len(s)}
	}
	return p
}

func ranks(n int) []star.Worker {
	ws := make([]star.Worker, n)
	for i := range ws {
		ws[i] = star.Worker(i)
	}
	return ws
}

// Validate reports whether p is a plan for the workers 0..n-1. The error names the first violation.
func (p Plan) Validate(n int) error {
	if n < 1 {
		return fmt.Errorf("modes: a plan for %d workers: at least one is needed", n)
	}
	if len(p.Groups) == 0 {
		return errors.New("modes: the plan has no groups: put every worker into one")
	}
	const none = -1
	// home is the group that has a worker as a member: at most one. placed also counts riders and excluded
	// workers. A worker may be a rider in several groups, also beside its membership in another one.
	home := make([]int, n)
	placed := make([]bool, n)
	for w := range home {
		home[w] = none
	}
	for i, g := range p.Groups {
		if len(g.Members) == 0 {
			return fmt.Errorf("modes: group %d has no members: give it at least one worker to wait for", i)
		}
		// Members that continue at once may be several times in one update, so its quorum may exceed their
		// number.
		if g.NonBlocking {
			switch {
			case g.Quorum < 1 || g.Quorum > maxBatches:
				return fmt.Errorf("modes: group %d: quorum %d is not in 1..%d", i, g.Quorum, maxBatches)
			case len(g.Riders) > 0 || p.MaxLead > 0 || p.Local > 0 || p.AutoTree || p.HasTree():
				return fmt.Errorf("modes: group %d: members that continue at once cannot be combined with riders, a tree, ahead or local", i)
			}
		} else if g.Quorum < 1 || g.Quorum > len(g.Members) {
			return fmt.Errorf("modes: group %d: quorum %d is not in 1..%d, the number of its members", i, g.Quorum, len(g.Members))
		}
		for _, w := range g.Members {
			if w < 0 || int(w) >= n {
				return fmt.Errorf("modes: group %d: worker %d is not in 0..%d", i, w, n-1)
			}
			if home[w] == i {
				return fmt.Errorf("modes: group %d names worker %d twice", i, w)
			}
			if home[w] != none {
				return fmt.Errorf("modes: worker %d is a member of group %d and of group %d: keep it in one", w, home[w], i)
			}
			home[w], placed[w] = i, true
		}
		// Several groups may name a rider, but each only once.
		riders := make(map[star.Worker]bool, len(g.Riders))
		for _, w := range g.Riders {
			if w < 0 || int(w) >= n {
				return fmt.Errorf("modes: group %d: rider %d is not in 0..%d", i, w, n-1)
			}
			if home[w] == i {
				return fmt.Errorf("modes: group %d: worker %d is member and rider: make it one of the two", i, w)
			}
			if riders[w] {
				return fmt.Errorf("modes: group %d names rider %d twice", i, w)
			}
			riders[w], placed[w] = true, true
		}
	}
	for _, w := range p.Excluded {
		switch {
		case w < 0 || int(w) >= n:
			return fmt.Errorf("modes: held worker %d is not in 0..%d", w, n-1)
		case placed[w]:
			return fmt.Errorf("modes: held worker %d is in a group as well, or named twice: name it once", w)
		}
		placed[w] = true
	}
	for w, ok := range placed {
		if !ok {
			return fmt.Errorf("modes: worker %d is in no group: its gradients would never be used", w)
		}
	}
	if err := p.validateSteps(); err != nil {
		return err
	}
	if p.Shares != nil && len(p.Shares) != n {
		return fmt.Errorf("modes: %d shares for %d workers: give one to each", len(p.Shares), n)
	}
	for w, s := range p.Shares {
		if s < 1 {
			return fmt.Errorf("modes: worker %d has a share of %d samples: give it at least 1", w, s)
		}
	}
	return p.validateTree(n)
}

// validateSteps checks the settings of iterations.
func (p Plan) validateSteps() error {
	// Errors have the words of Parse: ahead=S is MaxLead S + 1, because a MaxLead of zero means unset.
	tree := p.AutoTree || p.HasTree()
	switch {
	case p.Grace < 0 || p.Grace > MaxGrace:
		return fmt.Errorf("modes: grace %v is not in 0..%v", p.Grace, MaxGrace)
	case p.Local == 0 && p.Outer != outer.Rule{}:
		return fmt.Errorf("modes: outer=%v needs local steps: add local=H", p.Outer)
	case p.Local == 0 && p.StepsBySpeed:
		return errors.New("modes: steps=speed needs local steps: add local=H")
	case p.StepsBySpeed && p.Outer.Kind == outer.Mean:
		// The velocity after the mean of unequal numbers of steps is that of no worker.
		return errors.New("modes: steps=speed needs an outer rule: add outer=nesterov, or outer=nesterov(0,1) for the mean")
	case p.LocalSamples && p.Outer.Kind == outer.Mean:
		return errors.New("modes: local steps in samples need an outer rule: add outer=nesterov, or outer=nesterov(0,1) for the mean")
	case p.MaxLead < 0 || p.Local < 0 || p.Micro < 0 || p.ComputeDeadline < 0 || p.Queue < 0:
		return fmt.Errorf("modes: ahead %d, local %d, micro %d, cap %v and queue %d: none may be negative", p.MaxLead-1, p.Local, p.Micro, p.ComputeDeadline, p.Queue)
	case p.Queue > MaxQueue:
		return fmt.Errorf("modes: queue %d is too large: at most %d parts of a share", p.Queue, MaxQueue)
	case p.MaxLead > 1<<30 || p.Local > 1<<20 && !p.LocalSamples || p.Local > MaxBatch || p.Micro > 1<<20:
		return fmt.Errorf("modes: ahead %d, local %d or micro %d is too large: at most %d, %d and %d", p.MaxLead-1, p.Local, p.Micro, 1<<30-1, 1<<20, 1<<20)
	case (p.Micro > 0) != (p.ComputeDeadline > 0):
		return errors.New("modes: micro and cap belong together: give both, or neither")
	case p.Micro > 0 && p.Local > 0:
		return errors.New("modes: local steps have no parts: give either local or micro")
	case tree && (p.MaxLead > 0 || len(p.Excluded) > 0 || p.Local > 0 || p.Micro > 0):
		return errors.New("modes: a tree cannot be combined with ahead, held, local or micro: remove one of the two")
	}
	if err := p.validateFragments(); err != nil {
		return err
	}
	if err := p.Outer.Validate(); err != nil {
		return fmt.Errorf("modes: outer: %w", err)
	}
	if p.Grace > 0 && !slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Quorum < len(g.Members) && !g.NonBlocking }) {
		return errors.New("modes: grace needs a group with a quorum, which waits that long for the others: give x=K, backup=B or groups=SET:QUORUM, or remove it")
	}
	if p.Queue > 0 {
		// A queue has the samples of one round for all workers, so all workers must be in the same round.
		g := p.Groups[0]
		if len(p.Groups) > 1 || g.Quorum != len(g.Members) || len(g.Riders) > 0 || g.DropLate || g.NonBlocking || len(p.Excluded) > 0 || p.MaxLead > 0 || p.Local > 0 || p.Micro > 0 || tree {
			return errors.New("modes: a queue needs one group that waits for all its members: it combines only with shares")
		}
	}
	if p.MaxLead == 0 {
		return nil
	}
	for i, g := range p.Groups {
		// A quorum would be a second reason to wait: a group could wait for a member that may not begin its
		// iteration.
		if g.Quorum > 1 || len(g.Riders) > 0 || g.DropLate {
			return fmt.Errorf("modes: group %d: with ahead a worker waits only for the slowest: give the group quorum 1, no riders, and no dropping", i)
		}
	}
	return nil
}

// validateFragments checks Fragments.
func (p Plan) validateFragments() error {
	g := p.Groups[0]
	switch f := p.Fragments; {
	case f == 0:
	case p.Outer.Kind != outer.Nesterov:
		return errors.New("modes: fragments are of outer steps: add outer=nesterov")
	case f < 2 || f > MaxFragments:
		return fmt.Errorf("modes: %d fragments are not in 2..%d", f, MaxFragments)
	case !p.LocalSamples && (f > p.Local || p.Local%f != 0):
		return fmt.Errorf("modes: fragments=%d does not divide local=%d: workers make as many steps for each fragment", f, p.Local)
	case len(p.Groups) > 1 || g.Quorum != len(g.Members) || len(g.Riders) > 0 || len(p.Excluded) > 0 || p.MaxLead > 0:
		// Workers that are late would exchange other fragments than the rest.
		return errors.New("modes: fragments need one group that waits for all its members: use ssgd")
	}
	return nil
}

// sameBarrier reports whether a [Barrier] does the same with p and q.
func (p Plan) sameBarrier(q Plan) bool {
	// The other fields concern what an iteration computes and the way of its gradient, which a barrier does
	// not see.
	return p.SameGroups(q) && p.MaxLead == q.MaxLead && p.Grace == q.Grace && sameSet(p.Excluded, q.Excluded)
}

// Share is the size of w's mini-batch in samples; def where the plan has no shares.
func (p Plan) Share(w star.Worker, def int) int {
	if p.Shares == nil {
		return def
	}
	return p.Shares[w]
}

// WithWholeBatches is p for a job that must not cut or resize the workers' mini-batches of def samples, as
// for a program that normalises, compares or sums over a batch. A queue then hands out whole mini-batches,
// one to each worker, which is a plan without a queue. An error: p has shares of other sizes, or parts
// (Micro), for which there is no substitute.
func (p Plan) WithWholeBatches(def int) (Plan, error) {
	if p.Micro > 0 {
		return p, fmt.Errorf("modes: micro=%d cuts mini-batches, which must stay whole in this job", p.Micro)
	}
	for w, s := range p.Shares {
		if s != def {
			return p, fmt.Errorf("modes: shares give worker %d mini-batches of %d samples, which must have %d in this job", w, s, def)
		}
	}
	p.Queue = 0
	return p, nil
}

// Equal reports whether p and q behave alike: the same groups in the same order, whatever the order of
// workers within them, the same shares, and the same tree.
func (p Plan) Equal(q Plan) bool {
	return p.sameBarrier(q) && p.sameLocal(q) && p.Micro == q.Micro && p.ComputeDeadline == q.ComputeDeadline && p.Queue == q.Queue && p.sameTree(q) && p.AutoTree == q.AutoTree && (p.Shares == nil) == (q.Shares == nil) && slices.Equal(p.Shares, q.Shares)
}

// sameLocal reports whether the local steps of p and q are the same.
func (p Plan) sameLocal(q Plan) bool {
	return p.Local == q.Local && p.LocalSamples == q.LocalSamples && p.Outer == q.Outer && p.StepsBySpeed == q.StepsBySpeed && p.Fragments == q.Fragments
}

// SameGroups reports whether p and q have the same groups in the same order.
func (p Plan) SameGroups(q Plan) bool {
	return slices.EqualFunc(p.Groups, q.Groups, func(a, b Group) bool {
		return a.Quorum == b.Quorum && a.DropLate == b.DropLate && a.NonBlocking == b.NonBlocking &&
			sameSet(a.Members, b.Members) && sameSet(a.Riders, b.Riders)
	})
}

// sameSet reports whether a and b have the same workers, in any order.
func sameSet(a, b []star.Worker) bool {
	return slices.Equal(a, b) || slices.Equal(sorted(a), sorted(b))
}

func sorted(ws []star.Worker) []star.Worker {
	s := slices.Clone(ws)
	slices.Sort(s)
	return s
}

// Clone is a copy that shares no memory with p.
func (p Plan) Clone() Plan {
	q := p
	q.Groups, q.Shares, q.Parents, q.Excluded = slices.Clone(p.Groups), slices.Clone(p.Shares), slices.Clone(p.Parents), slices.Clone(p.Excluded)
	for i := range q.Groups {
		q.Groups[i].Members = slices.Clone(q.Groups[i].Members)
		q.Groups[i].Riders = slices.Clone(q.Groups[i].Riders)
	}
	return q
}

// Workers is the number of workers of p: the highest rank plus one.
func (p Plan) Workers() int {
	n := 0
	for _, g := range p.Groups {
		for _, w := range g.Members {
			n = max(n, int(w)+1)
		}
		for _, w := range g.Riders {
			n = max(n, int(w)+1)
		}
	}
	for _, w := range p.Excluded {
		n = max(n, int(w)+1)
	}
	return n
}

// String is p in the grammar of [Parse]: for a valid plan of n workers,
// Parse(p.String(), n) equals p.
func (p Plan) String() string {
	s := p.Name()
	switch {
	case p.AutoTree:
		s += " tree=auto"
	case p.HasTree():
		var b strings.Builder
		b.WriteString(s + " tree=")
		writeTree(&b, p.Parents)
		s = b.String()
	}
	return s + p.shares()
}

// shares is the shares of p in the grammar of Parse, with a leading space.
func (p Plan) shares() string {
	if p.Shares == nil {
		return ""
	}
	b := []byte(" shares=")
	for i, k := range p.Shares {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(k), 10)
	}
	return string(b)
}

// Name is String without shares and tree.
func (p Plan) Name() string { return p.mode() + p.steps() }

// steps is the settings of iterations in the grammar of Parse, each with a leading space.
func (p Plan) steps() string {
	var b strings.Builder
	if p.MaxLead > 0 && !p.isSSP() {
		fmt.Fprintf(&b, " ahead=%d", p.MaxLead-1)
	}
	if len(p.Excluded) > 0 {
		b.WriteString(" held=")
		writeSet(&b, p.Excluded)
	}
	if p.Grace > 0 {
		b.WriteString(" grace=" + p.Grace.String())
	}
	b.WriteString(p.localSteps())
	if p.Micro > 0 {
		fmt.Fprintf(&b, " micro=%d cap=", p.Micro)
		if p.ComputeDeadline == NoDeadline {
			b.WriteString("none")
		} else {
			b.WriteString(p.ComputeDeadline.String())
		}
	}
	if p.Queue > 0 {
		fmt.Fprintf(&b, " queue=%d", p.Queue)
	}
	return b.String()
}

// localSteps is the local steps in the grammar of Parse, each setting with a leading space.
func (p Plan) localSteps() (s string) {
	if p.Local > 0 {
		s = fmt.Sprintf(" local=%d", p.Local)
	}
	if p.LocalSamples {
		s += inSamples
	}
	if p.StepsBySpeed {
		s += " steps=speed"
	}
	if p.Outer != (outer.Rule{}) {
		s += " outer=" + p.Outer.String()
	}
	if p.Fragments > 0 {
		s += fmt.Sprintf(" fragments=%d", p.Fragments)
	}
	return s
}

// Words is given, the user's words for a mode, if they mean p; else String. Shares and local steps that
// given does not mention are appended.
func (p Plan) Words(given string) string {
	// Users look for their own words in logs, so these are kept where they are exact.
	q, err := Parse(given, max(p.Workers(), 1))
	if err != nil {
		return p.String()
	}
	more := ""
	if q.Shares == nil && p.Shares != nil {
		q.Shares = p.Shares
		more = p.shares()
	}
	if q.Local == 0 && p.Local > 0 {
		q.Local, q.LocalSamples, q.Outer, q.StepsBySpeed, q.Fragments = p.Local, p.LocalSamples, p.Outer, p.StepsBySpeed, p.Fragments
		more = p.localSteps() + more
	}
	// The words do not mean p, for example after a worker has joined or the mode was changed.
	if !q.Equal(p) {
		return p.String()
	}
	return strings.Join(strings.Fields(given), " ") + more
}

// isSSP reports whether p is written as ssp=S. With one worker it would be read back as another plan.
func (p Plan) isSSP() bool {
	n := p.Workers()
	return p.MaxLead > 0 && n > 1 && p.SameGroups(ASGD(n))
}

// mode is the shortest name of the groups of p that Parse reads back.
func (p Plan) mode() string {
	n := p.Workers()
	if p.isSSP() {
		return "ssp=" + strconv.Itoa(p.MaxLead-1)
	}
	// With one worker all modes are the same plan: its name is ssgd.
	if p.SameGroups(ASGD(n)) && n > 1 {
		return "asgd"
	}
	// Several names can mean the same groups, such as ssgd and x=N: the first one is used.
	if len(p.Groups) == 1 {
		switch q := p.Groups[0].Quorum; {
		case p.SameGroups(SSGD(n)):
			return "ssgd"
		case p.SameGroups(XOrder(n, q)):
			return "x=" + strconv.Itoa(q)
		case p.SameGroups(Backup(n, n-q)):
			return "backup=" + strconv.Itoa(n-q)
		case p.SameGroups(Batches(n, q, true)):
			return "kbatch=" + strconv.Itoa(q)
		case p.SameGroups(Batches(n, q, false)):
			return "kbatch-async=" + strconv.Itoa(q)
		}
	}
	var b strings.Builder
	b.WriteString("groups=")
	for i, g := range p.Groups {
		if i > 0 {
			b.WriteByte('/')
		}
		writeSet(&b, g.Members)
		if g.Quorum != len(g.Members) {
			fmt.Fprintf(&b, ":%d", g.Quorum)
		}
		if g.NonBlocking {
			b.WriteByte('*')
		}
		if g.DropLate {
			b.WriteByte('!')
		}
		if len(g.Riders) > 0 {
			b.WriteByte('+')
			writeSet(&b, g.Riders)
		}
	}
	return b.String()
}

// writeSet writes ws in ascending order, runs of three and more as first-last.
func writeSet(b *strings.Builder, ws []star.Worker) {
	ws = sorted(ws)
	for i := 0; i < len(ws); {
		j := i
		for j+1 < len(ws) && ws[j+1] == ws[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if j-i >= 2 {
			fmt.Fprintf(b, "%d-%d", ws[i], ws[j])
			i = j + 1
			continue
		}
		fmt.Fprintf(b, "%d", ws[i])
		i++
	}
}

// Grammar is the input of [Parse], for help texts and errors of words that are unknown.
const Grammar = "ssgd | asgd | ssp=S | x=K | backup=B | kbatch=K | kbatch-async=K | ring-minus=RIDERS | groups=SET/SET/… with SET = workers[:quorum][*][!][+riders] such as 0,1/2-5:3+6; then optionally tree=auto or tree=PARENT(CHILDREN),… such as 0(1,2(3)),4(5), shares=S0,S1,…, ahead=S, held=WORKERS, grace=DURATION, local=H (or local=Hsamples) with steps=speed and outer=RULE (mean, nesterov, delayed or lookahead, such as nesterov(0.9,0.7)) and fragments=F, micro=M cap=DURATION (or none), queue=M"

// Parse reads a mode for the workers 0..n-1:
//
//	ssgd              wait for all
//	asgd              wait for no worker
//	ssp=S             do not wait, unless S iterations ahead of the slowest: asgd ahead=S
//	x=K               wait for any K
//	backup=B          wait for any n-B and drop the others' late gradients
//	kbatch=K          wait for K gradients, some perhaps of the same worker, and drop late ones
//	kbatch-async=K    the same without the dropping
//	ring-minus=2,3    wait for all but these, which are riders
//	groups=0,1/2,3    wait within each set
//
// A set is a list of workers and ranges of workers (2-5). After it may follow a quorum (:3), a star that
// lets members continue at once (Group.NonBlocking), an exclamation mark that drops late gradients, and
// riders (+6,7). After the mode, separated by spaces, may follow
//
//	tree=0(1,2(3)),4(5)    workers in brackets report to the one before them
//	tree=auto              a tree is built from measurements, if one is needed
//	shares=32,32,64        each worker's mini-batch in samples
//	ahead=S                no worker begins an iteration more than S ahead of the slowest (Plan.MaxLead)
//	held=2,3               these wait for another plan, and are in no group
//	local=H                H local steps between releases
//	local=2048samples      as many as come nearest to that number of samples (Plan.LocalSamples)
//	steps=speed            H for the fastest worker, and fewer for slower ones (Plan.StepsBySpeed)
//	outer=nesterov(M,R)    what an update makes of them, with momentum M and rate R ([Outer])
//	fragments=F            the parameters are exchanged in F parts, one after the other (Plan.Fragments)
//	grace=200ms            a group with its quorum waits that long for its other members (Plan.Grace)
//	micro=M cap=120ms      M parts of a mini-batch, and none is begun after that time; cap=none: no limit
//	queue=M                M parts of a mini-batch in one queue: a worker takes one after the other (Plan.Queue)
//
// A tree without a mode before it has mode ssgd. The plan that Parse returns is valid for n workers.
func Parse(s string, n int) (Plan, error) {
	fail := func(format string, args ...any) (Plan, error) {
		return Plan{}, fmt.Errorf("modes: mode %q: %s", clip(s), fmt.Sprintf(format, args...))
	}
	unknown := func(format string, args ...any) (Plan, error) {
		return fail("%s; want %s", fmt.Sprintf(format, args...), Grammar)
	}
	if n < 1 {
		return fail("there are %d workers", n)
	}
	fields := strings.Fields(s)
	if len(fields) == 0 {
		return unknown("it is empty")
	}
	if strings.HasPrefix(fields[0], "tree=") {
		fields = append([]string{"ssgd"}, fields...)
	}
	var p Plan
	key, value, has := strings.Cut(fields[0], "=")
	switch key {
	case "ssgd", "asgd":
		if has {
			return fail("%s takes no value", key)
		}
		p = SSGD(n)
		if key == "asgd" {
			p = ASGD(n)
		}
	case "ssp":
		slack, err := strconv.Atoi(value)
		if err != nil || slack < 0 || slack > maxSlack {
			return fail("ssp is %q, not a number of iterations in 0..%d", clip(value), maxSlack)
		}
		p = ASGD(n)
		p.MaxLead = slack + 1
	case "x":
		x, err := strconv.Atoi(value)
		if err != nil || x < 1 || x > n {
			return fail("x is %q, not a number in 1..%d, the number of workers", clip(value), n)
		}
		p = XOrder(n, x)
	case "backup":
		b, err := strconv.Atoi(value)
		if err != nil || b < 0 || b >= n {
			return fail("backup is %q, not a number in 0..%d, fewer than the workers", clip(value), n-1)
		}
		p = Backup(n, b)
	case "kbatch", "kbatch-async":
		k, err := strconv.Atoi(value)
		if err != nil || k < 1 || k > maxBatches {
			return fail("%s is %q, not a number in 1..%d", key, clip(value), maxBatches)
		}
		p = Batches(n, k, key == "kbatch")
	case "ring-minus":
		riders, err := parseSet(value, n)
		if err != nil {
			return fail("%v", err)
		}
		slices.Sort(riders)
		if len(slices.Compact(slices.Clone(riders))) == n {
			return fail("no worker is left in the ring: leave one of the %d workers out of the list", n)
		}
		p = Ring(n, riders...)
	case "groups":
		for part := range strings.SplitSeq(value, "/") {
			g, err := parseGroup(part, n)
			if err != nil {
				return fail("group %q: %v", clip(part), err)
			}
			p.Groups = append(p.Groups, g)
		}
	default:
		return unknown("%q is not a mode", clip(key))
	}
	// The rest may come in any order, each word once.
	for _, f := range fields[1:] {
		if tree, ok := strings.CutPrefix(f, "tree="); ok && p.Parents == nil && !p.AutoTree {
			if p.AutoTree = tree == "auto"; p.AutoTree {
				continue
			}
			var err error
			if p.Parents, err = parseTree(tree, n); err != nil {
				return fail("tree %q: %v", clip(tree), err)
			}
			continue
		}
		if known, err := p.parseSteps(f, n); err != nil {
			return fail("%v", err)
		} else if known {
			continue
		}
		list, ok := strings.CutPrefix(f, "shares=")
		if !ok || p.Shares != nil {
			return unknown("%q is not understood", clip(f))
		}
		for part := range strings.SplitSeq(list, ",") {
			k, err := strconv.Atoi(part)
			if err != nil {
				return fail("share %q is not a number of samples", clip(part))
			}
			p.Shares = append(p.Shares, k)
		}
	}
	if err := p.Validate(n); err != nil {
		return fail("%s", strings.TrimPrefix(err.Error(), "modes: "))
	}
	return p, nil
}

// inSamples follows the number of local=H if it counts samples.
const inSamples = "samples"

// maxSlack is the largest S of ssp=S.
const maxSlack = 1<<30 - 1

// parseSteps reads one of ahead, held, local, steps, outer, fragments, grace, micro, cap and queue; false: another
// word.
func (p *Plan) parseSteps(f string, n int) (known bool, err error) {
	key, value, _ := strings.Cut(f, "=")
	// number reads a value in least..most. The field gets add more, so that it is never zero, which means
	// unset.
	number := func(into *int, least, most, add int) error {
		k, err := strconv.Atoi(value)
		if err != nil || k < least || k > most {
			return fmt.Errorf("%s is %q, not a number in %d..%d", key, clip(value), least, most)
		}
		if *into != 0 {
			return fmt.Errorf("%s is given twice", key)
		}
		*into = k + add
		return nil
	}
	switch key {
	case "ahead":
		return true, number(&p.MaxLead, 0, maxSlack, 1)
	case "local":
		most := 1 << 20
		if v, ok := strings.CutSuffix(value, inSamples); ok {
			value, most, p.LocalSamples = v, MaxBatch, true
		}
		return true, number(&p.Local, 1, most, 0)
	case "micro":
		return true, number(&p.Micro, 1, 1<<20, 0)
	case "queue":
		return true, number(&p.Queue, 1, MaxQueue, 0)
	case "fragments":
		return true, number(&p.Fragments, 2, MaxFragments, 0)
	case "steps":
		if value != "speed" || p.StepsBySpeed {
			return true, fmt.Errorf("steps is %q, not speed, or given twice", clip(value))
		}
		p.StepsBySpeed = true
		return true, nil
	case "outer":
		if p.Outer != (outer.Rule{}) {
			return true, errors.New("outer is given twice")
		}
		if p.Outer, err = outer.Parse(value); err != nil {
			err = fmt.Errorf("outer: %w", err)
		}
		return true, err
	case "grace":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 || d > MaxGrace || p.Grace != 0 {
			return true, fmt.Errorf("grace is %q, not a duration such as 200ms up to %v, or given twice", clip(value), MaxGrace)
		}
		p.Grace = d
		return true, nil
	case "cap":
		d, err := NoDeadline, error(nil)
		if value != "none" {
			d, err = time.ParseDuration(value)
		}
		if err != nil || d <= 0 {
			return true, fmt.Errorf("cap is %q, not a duration such as 120ms, nor none", clip(value))
		}
		if p.ComputeDeadline != 0 {
			return true, errors.New("cap is given twice")
		}
		p.ComputeDeadline = d
		return true, nil
	case "held":
		if p.Excluded != nil {
			return true, errors.New("held is given twice")
		}
		p.Excluded, err = parseSet(value, n)
		return true, err
	}
	return false, nil
}

// parseGroup reads a set of Parse: MEMBERS[:quorum][*][!][+riders].
func parseGroup(s string, n int) (Group, error) {
	var g Group
	var err error
	// The marks come in one order, so they are cut off from the end.
	s, riders, rides := strings.Cut(s, "+")
	s, g.DropLate = strings.CutSuffix(s, "!")
	s, g.NonBlocking = strings.CutSuffix(s, "*")
	s, quorum, has := strings.Cut(s, ":")
	if g.Members, err = parseSet(s, n); err != nil {
		return g, err
	}
	g.Quorum = len(g.Members)
	if has {
		if g.Quorum, err = strconv.Atoi(quorum); err != nil {
			return g, fmt.Errorf("quorum %q is not a number", clip(quorum))
		}
	}
	if rides {
		g.Riders, err = parseSet(riders, n)
	}
	return g, err
}

// parseSet reads "0,2,4-7". A range is checked against n before it is expanded.
func parseSet(s string, n int) ([]star.Worker, error) {
	var ws []star.Worker
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err := strconv.Atoi(lo)
		last, err2 := strconv.Atoi(hi)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("%q is not a worker or a range of workers", clip(part))
		}
		if first < 0 || last >= n || first > last {
			return nil, fmt.Errorf("worker %s is not in 0..%d", clip(part), n-1)
		}
		if len(ws)+last-first+1 > n {
			return nil, fmt.Errorf("%q names a worker twice", clip(s))
		}
		for w := first; w <= last; w++ {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws, nil
}

// clip limits how much of a setting an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// SameKind reports whether a controller's measurements of p hold for q: they differ at most in the sizes of
// shares and in the number of local steps.
func (p Plan) SameKind(q Plan) bool {
	return p.sameBarrier(q) && p.sameTree(q) && (p.Shares == nil) == (q.Shares == nil) && (p.Queue == 0) == (q.Queue == 0) && (p.Local == 0) == (q.Local == 0) && p.LocalSamples == q.LocalSamples && p.Outer == q.Outer && p.StepsBySpeed == q.StepsBySpeed && p.Fragments == q.Fragments
}

// MaxBatch is the largest share of a worker in calculations. Larger ones would exceed any memory, and rounds
// of many such workers the integers that are counted exactly.
const MaxBatch = 1 << 30
