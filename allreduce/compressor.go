package allreduce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"star/internal/compress"
	"star/internal/kernel"
)

// CompressorConfig configures a Compressor. Len, Codec, Tensors and Seed must
// be equal on all ranks.
type CompressorConfig struct {
	// Len is the number of elements of the whole vector.
	Len int

	// Codec is a name of compress.New, or auto, which measures the links of the
	// group and chooses none, fp16 or int8.
	Codec string

	// Tensors describes the vector; powersgd needs it.
	Tensors []compress.Tensor

	// Seed is for random numbers.
	Seed uint64
}

// Compressor adds up vectors across the ranks of a group in fewer bytes, and
// adds what was left out to the next vector (error feedback): a residual as
// long as the vector. In exact arithmetic the sum of all returned vectors and
// of the residuals of all ranks is the sum of all given vectors. All ranks get
// the same bits.
//
// Codecs that can be cut (fp16, bf16, int8, int8-stochastic) take two steps, as
// the compressed all-reduce of 1-bit Adam (H. Tang et al.: 1-bit Adam. ICML
// 2021, section 5), which is DoubleSqueeze (H. Tang et al., ICML 2019) without
// a server:
//
//	rank r has v, residual e;  b(j): block j of n, one for each rank
//	m = C(v + e);  e ← v + e − m             block j of m goes to rank j
//	s = Σ b(r) of all m, in float32          in order of rank
//	t = C(s);  e(b(r)) ← e(b(r)) + s − t     t goes to all ranks
//	v ← t of all ranks
//
// So every value is rounded twice, whatever the number of ranks, while an
// all-reduce of 16-bit floats rounds after each addition. Both errors are kept,
// the second one by the rank that made it. A rank sends 2(n−1)/n of an encoded
// vector.
//
// topk does not encode the sum again: what it would leave out of a sum that is
// sparse already would be most of it. Each rank sends its message to all and
// adds up the messages in order of rank. It sends n−1 messages. powersgd is
// compress.Averager, with an all-reduce after each of its two steps.
//
// A Compressor may be used with one group after another. It is for one
// goroutine at a time.
//
//	NewCompressor ──Join──► ready ──AllReduce, for each piece──► round ──Keep──► ready
//	                          ▲                                    │ error
//	                          └──Join◄── Undo or Keep ◄────────────┘
type Compressor struct {
	cfg CompressorConfig
	// tuner is nil if the codec is fixed.
	tuner *choice

	g *Group
	// Of the codec in use.
	name string
	spec compress.Spec
	// codec is nil if spec averages.
	codec compress.Codec
	plain bool // codec none

	residual []float32
	// before is the residual before the calls since the last Keep.
	before []float32
	// recent has the pieces of these calls.
	recent []extent

	parts map[extent]*part
	buf   []byte

	// warm is for powersgd, drawn for int8-stochastic; both are set by Recall.
	warm   map[extent]compress.Memory
	drawn  uint64
	joined bool
}

// extent is elements from to to of a vector.
type extent struct{ from, to int }

// part is what is allocated once for one piece of the vector.
type part struct {
	// flushed, with none: the residual was sent.
	flushed bool

	feedback *compress.Feedback
	// For codecs that can be cut: the borders of blocks, the sum of this rank's
	// block, and its encoder.
	elements []int
	sum      []float32
	second   *compress.Feedback
	delivery *delivery
	collect  *collection

	// For topk: this rank's message.
	own   []byte
	sizes []int64 // of all messages
	bytes []int

	averager *compress.Averager
}

// NewCompressor checks the configuration.
func NewCompressor(cfg CompressorConfig) (*Compressor, error) {
	if cfg.Len < 1 || cfg.Len > compress.MaxLen {
		return nil, fmt.Errorf("allreduce: compressor: the vector has %d elements; use 1 to %d", cfg.Len, compress.MaxLen)
	}
	if err := compress.Check(cfg.Codec); err != nil {
		return nil, fmt.Errorf("allreduce: compressor: %w", err)
	}
	c := &Compressor{cfg: cfg, residual: make([]float32, cfg.Len), before: make([]float32, cfg.Len)}
	if cfg.Codec == compress.Auto {
		c.tuner = newChoice(cfg.Len)
	}
	if spec, err := compress.ParseSpec(cfg.Codec); err == nil && spec.Averages() {
		if len(compress.Matrices(cfg.Tensors, 0, cfg.Len)) == 0 {
			return nil, fmt.Errorf("allreduce: compressor: %s needs the shapes of tensors, at least one of two dimensions; choose another codec", cfg.Codec)
		}
		if _, err := spec.New(compress.Slice{To: cfg.Len, Tensors: cfg.Tensors}, 0); err != nil {
			return nil, fmt.Errorf("allreduce: compressor: %w", err)
		}
	}
	return c, nil
}

// Codec is the name of the codec in use; empty before Join.
func (c *Compressor) Codec() string { return c.name }

// Residual returns what was left out so far. The slice is shared and valid
// until the next call.
func (c *Compressor) Residual() []float32 { return c.residual }

// Join makes the following calls use g. All ranks of g must call it at the same
// time. They compare their configurations and, with auto, measure and choose a
// codec. The residual from other groups is sent in this one. After an error g
// is unchanged, unless the error is an *Error.
func (c *Compressor) Join(ctx context.Context, g *Group) (Decision, error) {
	c.g, c.parts = nil, map[extent]*part{}
	if err := c.compare(ctx, g); err != nil {
		return Decision{}, err
	}
	if err := c.agreed(ctx, g); err != nil {
		return Decision{}, err
	}
	c.g = g
	if c.tuner == nil {
		err := c.use(c.cfg.Codec)
		return Decision{Codec: c.cfg.Codec, Why: "configured"}, err
	}
	return c.Choose(ctx)
}

// compare checks that all ranks have the same configuration.
func (c *Compressor) compare(ctx context.Context, g *Group) error {
	// For each rank: length, hash of shapes, name of the codec.
	// Numbers of a fixed size: ranks that disagree about the vector must still
	// be able to run this operation.
	const words = 10
	var name [8 * (words - 2)]byte
	copy(name[:], c.cfg.Codec)
	shapes := fnv.New64a()
	for _, t := range c.cfg.Tensors {
		fmt.Fprintln(shapes, t.Offset, t.Shape)
	}
	all := make([]int64, words*g.Size())
	own := all[words*g.Rank():][:words]
	own[0], own[1] = int64(c.cfg.Len), int64(shapes.Sum64()^c.cfg.Seed)
	for i := range own[2:] {
		own[2+i] = int64(binary.LittleEndian.Uint64(name[8*i:]))
	}
	if err := AllGather(ctx, g, all); err != nil {
		return err
	}
	first := all[:words]
	for r := 1; r < g.Size(); r++ {
		if theirs := all[words*r:][:words]; !slices.Equal(theirs, first) {
			say := func(v []int64) string {
				var b []byte
				for _, w := range v[2:] {
					b = binary.LittleEndian.AppendUint64(b, uint64(w))
				}
				end := len(b)
				for end > 0 && b[end-1] == 0 {
					end--
				}
				return fmt.Sprintf("codec %q for %d values (shapes and seed %016x)", b[:end], v[0], uint64(v[1]))
			}
			return fmt.Errorf("allreduce: compressor: rank 0 has %s, rank %d has %s; all ranks need the same", say(first), r, say(theirs))
		}
	}
	return nil
}

// use changes the codec.
func (c *Compressor) use(name string) (err error) {
	c.name, c.codec, c.plain = name, nil, name == compress.Float32.Name()
	c.parts = map[extent]*part{}
	if c.spec, err = compress.ParseSpec(name); err != nil || c.spec.Averages() {
		return err
	}
	// Ranks with equal random numbers would add up their rounding errors.
	seed := c.cfg.Seed + uint64(c.g.rank+1)*0x9e3779b97f4a7c15
	if c.codec, err = c.spec.New(compress.Slice{}, seed); err == nil {
		err = compress.Recall(c.codec, compress.Memory{Drawn: c.drawn})
	}
	return err
}

// AllReduce makes v the sum of the v of all ranks, as far as the codec can. v
// is the piece of the whole vector that begins at element from. Every rank
// gives the same pieces in the same order. To give a piece again, first call
// Keep. After an error v is undefined; call Undo or Keep, then Join.
func (c *Compressor) AllReduce(ctx context.Context, v []float32, from int) error {
	at := extent{from, from + len(v)}
	switch {
	case c.g == nil:
		return errors.New("allreduce: compressor: call Join first")
	case from < 0 || at.to > c.cfg.Len:
		return fmt.Errorf("allreduce: compressor: elements %d to %d are not in the vector of %d", at.from, at.to, c.cfg.Len)
	case len(v) == 0:
		return nil
	}
	p := c.parts[at]
	if p == nil {
		var err error
		if p, err = c.part(at); err != nil {
			return err
		}
		c.parts[at] = p
	}
	if slices.Contains(c.recent, at) {
		c.Keep()
	}
	if !p.flushed {
		// Undo restores this.
		copy(c.before[at.from:at.to], c.residual[at.from:at.to])
		c.recent = append(c.recent, at)
	}
	switch {
	case c.plain || len(c.g.peers) == 1:
		if e := c.residual[at.from:at.to]; !p.flushed { // of another codec
			kernel.Add(v, e)
			clear(e)
			p.flushed = true
		}
		return c.g.AllReduce(ctx, Sum, v)
	case p.averager != nil:
		return c.lowRank(ctx, p.averager, v)
	case p.delivery != nil:
		return c.twice(ctx, p, v, c.residual[at.from:at.to])
	}
	return c.gather(ctx, p, v)
}

// part prepares a piece of the vector.
func (c *Compressor) part(at extent) (*part, error) {
	n, p := len(c.g.peers), new(part)
	if n == 1 || c.plain {
		return p, nil
	}
	e := c.residual[at.from:at.to:at.to]
	if c.codec == nil {
		ms := compress.Matrices(c.cfg.Tensors, at.from, at.to)
		a, err := c.spec.Averager(e, ms, c.cfg.Seed+uint64(at.from))
		if m, ok := c.warm[at]; ok && err == nil {
			// All have the same: if it does not fit, all start without memory.
			_ = a.Recall(m)
		}
		p.averager = a
		return p, err
	}
	p.feedback = compress.FeedbackOver(c.codec, e)
	p.bytes = make([]int, n)
	// A message that cannot be cut has a size that only its rank knows: every
	// rank collects the messages of all.
	unit, cut := compress.Unit(c.codec)
	if !cut {
		p.sizes = make([]int64, n)
		for r := range p.bytes {
			p.bytes[r] = 1
		}
		p.own = make([]byte, 0, c.codec.MaxBytes(len(e)))
		p.collect = newCollection(n, c.g.rank, p.bytes)
		return p, nil
	}
	p.elements = make([]int, n+1)
	// A unit is encoded as a whole, so blocks begin with one.
	units := (len(e) + unit - 1) / unit
	for r := range n {
		_, hi := Block(units, n, r)
		p.elements[r+1] = min(hi*unit, len(e))
		p.bytes[r] = c.codec.MaxBytes(p.elements[r+1] - p.elements[r])
	}
	p.sum = make([]float32, p.elements[c.g.rank+1]-p.elements[c.g.rank])
	p.second = compress.FeedbackOver(c.codec, p.sum)
	p.delivery = newDelivery(n, c.g.rank, p.bytes)
	p.collect = newCollection(n, c.g.rank, p.bytes)
	return p, nil
}

// twice encodes, adds up blocks, and encodes the sums.
func (c *Compressor) twice(ctx context.Context, p *part, v, e []float32) error {
	g, cuts := c.g, p.delivery.cuts
	me, n := g.rank, len(g.peers)
	c.buf = room(c.buf, p.delivery.size())
	p.feedback.Encode(c.buf[:0], v)
	if err := p.delivery.run(ctx, g, c.buf); err != nil {
		return err
	}
	own := c.buf[cuts[me]:cuts[me+1]]
	clear(p.sum)
	for r := range n {
		// As the others decode it.
		theirs := own
		if r != me {
			theirs = c.buf[cuts[n+r]:cuts[n+r+1]]
		}
		if err := c.codec.DecodeAdd(p.sum, 1, theirs); err != nil {
			return g.spoil(r, err)
		}
	}
	p.second.Encode(own[:0], nil)
	kernel.Add(e[p.elements[me]:p.elements[me+1]], p.sum)
	if err := p.collect.run(ctx, g, c.buf); err != nil {
		return err
	}
	if err := c.codec.Decode(v, c.buf[:p.collect.size()]); err != nil {
		return g.spoil(None, err)
	}
	return nil
}

// gather adds up the messages of all ranks.
func (c *Compressor) gather(ctx context.Context, p *part, v []float32) error {
	g := c.g
	p.own = p.feedback.Encode(p.own[:0], v)
	clear(p.sizes)
	p.sizes[g.rank] = int64(len(p.own))
	if err := AllReduce(ctx, g, Max, p.sizes); err != nil {
		return err
	}
	most := int64(c.codec.MaxBytes(len(v)))
	for r, size := range p.sizes {
		if size < 1 || size > most {
			return g.spoil(r, fmt.Errorf("its message has %d bytes, but %s makes 1 to %d of %d values", size, c.name, most, len(v)))
		}
		p.bytes[r] = int(size)
	}
	p.collect.resize(p.bytes)
	c.buf = room(c.buf, p.collect.size())
	cuts := p.collect.cuts
	copy(c.buf[cuts[g.rank]:], p.own)
	if err := p.collect.run(ctx, g, c.buf); err != nil {
		return err
	}
	clear(v)
	for r := range p.sizes {
		if err := c.codec.DecodeAdd(v, 1, c.buf[cuts[r]:cuts[r+1]]); err != nil {
			return g.spoil(r, err)
		}
	}
	return nil
}

// lowRank is a round of PowerSGD.
func (c *Compressor) lowRank(ctx context.Context, a *compress.Averager, v []float32) error {
	if err := c.g.AllReduce(ctx, Sum, a.Project(v)); err != nil {
		// No rank can have finished this without us: Undo is next.
		return err
	}
	err := c.g.AllReduce(ctx, Sum, a.Refine())
	// Our residual does not depend on the others' share.
	a.Reconstruct(v)
	return err
}

// Keep confirms that the results since the last Keep or Undo were used.
func (c *Compressor) Keep() { c.recent = c.recent[:0] }

// Undo reverts the residual: the results since the last Keep were used on no
// rank, and the same vectors will be given again. Join is next.
func (c *Compressor) Undo() {
	for _, at := range slices.Backward(c.recent) {
		copy(c.residual[at.from:at.to], c.before[at.from:at.to])
	}
	c.recent = c.recent[:0]
	c.g, c.parts = nil, map[extent]*part{}
}

// Decision is the codec that a Compressor uses from now on.
type Decision struct {
	Codec string
	Why   string
}

// choice is the policy auto.
type choice struct {
	candidates []compress.Candidate
	// current is an index of candidates; -1: none.
	current int
	decided bool
}

func newChoice(n int) *choice {
	begun := time.Now()
	return &choice{candidates: compress.Gauge(n, compress.Typical(), func() float64 { return time.Since(begun).Seconds() })}
}

// Choose measures the links of the group again, if the codec is auto. All ranks
// must call it at the same time; rank 0 decides. The codec changes if it would
// not be chosen at the measured speed, nor at a quarter more or a fifth less.
func (c *Compressor) Choose(ctx context.Context) (Decision, error) {
	g, t := c.g, c.tuner
	switch {
	case g == nil:
		return Decision{}, errors.New("allreduce: compressor: call Join first")
	case t == nil:
		return Decision{c.name, "configured"}, nil
	}
	pick, why, err := c.pick(ctx)
	if err != nil {
		return Decision{}, err
	}
	word := []int64{int64(pick)}
	if err := Broadcast(ctx, g, 0, word); err != nil {
		return Decision{}, err
	}
	if word[0] < -1 || word[0] >= int64(len(t.candidates)) {
		return Decision{}, g.spoil(0, fmt.Errorf("it chose codec %d of %d", word[0], len(t.candidates)))
	}
	pick = int(word[0])
	if t.decided && pick == t.current && c.name != "" {
		return Decision{c.name, why}, nil
	}
	t.decided, t.current = true, pick
	name := compress.Float32.Name()
	if pick >= 0 {
		name = t.candidates[pick].Codec.Name()
	}
	if g.rank != 0 {
		why = "rank 0 decides"
	}
	return Decision{name, why}, c.use(name)
}

// pick returns this rank's choice; all ranks take part in the measurement.
func (c *Compressor) pick(ctx context.Context) (int, string, error) {
	g, t := c.g, c.tuner
	none := compress.Float32.Name()
	if len(g.peers) == 1 {
		return -1, none + ": the group has one rank", nil
	}
	remote := []int64{0}
	for kind := range g.Transports() {
		if kind != "shm" && kind != "unix" {
			remote[0] = 1
		}
	}
	if err := AllReduce(ctx, g, Max, remote); err != nil {
		return 0, "", err
	}
	if remote[0] == 0 {
		return -1, none + ": all ranks are on one host, where sending bytes costs no more than a codec", nil
	}
	bps, err := g.speed(ctx, 4*int64(c.cfg.Len))
	if err != nil {
		return 0, "", err
	}
	pick, why := t.at(bps, len(g.peers), c.cfg.Len)
	return pick, why, nil
}

// at returns the candidate for vectors of n values on links of bps bytes per
// second, or -1.
func (t *choice) at(bps float64, ranks, n int) (pick int, why string) {
	share := 1 / float64(ranks)
	// The second of the two encodings is of a block only; both decode a whole
	// vector.
	candidates := slices.Clone(t.candidates)
	for i := range candidates {
		candidates[i].Encode /= 1 + share
	}
	choose := func(bps float64) (int, string) {
		c := compress.Choose(compress.Link{Bps: bps, Crossings: 2 * (1 - share), Decodes: 2}, n, candidates)
		return slices.IndexFunc(candidates, func(a compress.Candidate) bool { return a.Codec == c.Codec }), c.Why
	}
	pick, why = choose(bps)
	if t.decided && pick != t.current {
		for _, f := range []float64{1.25, 1 / 1.25} {
			if stay, _ := choose(bps * f); stay == t.current {
				return stay, why
			}
		}
	}
	return pick, why
}

// speed measures how many bytes per second a rank sends in an all-reduce of a
// long vector of at most most bytes: the same number on all ranks. It takes 0.1
// s, or the time of four all-reduces of 64 KiB.
func (g *Group) speed(ctx context.Context, most int64) (float64, error) {
	const (
		least = 64 << 10
		// Seconds: well above bursts and the resolution of the clock.
		enough = 0.02
	)
	most = min(max(most, least), 64<<20)
	v := make([]float32, most/4)
	once := func(elements int64) (float64, error) {
		if err := g.Barrier(ctx); err != nil {
			return 0, err
		}
		begun := time.Now()
		if err := g.AllReduce(ctx, Sum, v[:elements]); err != nil {
			return 0, err
		}
		took := []float64{time.Since(begun).Seconds()}
		err := AllReduce(ctx, g, Max, took)
		return took[0], err
	}
	var empty, took float64
	var err error
	// The first one warms up.
	for range 2 {
		if empty, err = once(1); err != nil {
			return 0, err
		}
	}
	size := int64(least)
	for ; ; size = min(2*size, most) {
		if took, err = once(size / 4); err != nil {
			return 0, err
		}
		if took >= enough || size == most {
			break
		}
	}
	times := []float64{took}
	for range 2 {
		if took, err = once(size / 4); err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return bandwidth(size, len(g.peers), times[1], empty), nil
}

// bandwidth returns how many bytes per second a rank sends in an all-reduce of
// size bytes. The time of an empty one is subtracted.
func bandwidth(size int64, ranks int, seconds, empty float64) float64 {
	n := float64(ranks)
	return 2 * (n - 1) / n * float64(size) / math.Max(seconds-empty, seconds/10)
}
