package transport

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"star"
)

// Limits of what a header may say. They bound memory, not ambition: change
// them here and in docs/protocol.md together.
const (
	MaxWorkers = star.MaxWorkers
	MaxShards  = 1024
	MaxParams  = 1 << 40 // elements

	maxName  = 255     // bytes of a name, a host or an address
	maxCodec = 32      // bytes of a codec's name
	maxToken = 1 << 10 // bytes
	maxModel = 16 << 10
	maxText  = 4 << 10 // bytes of a reason or an error
	maxArgs  = 64      // words of a Control
	maxArg   = 1 << 10 // bytes of one of them

	maxTime   = 1_000_000_000_000_000_000 // nanoseconds: 31 years, of which some can be added up
	maxAmount = 1e18
)

// Message is what a header says. AppendTo appends the header to dst.
type Message interface {
	Kind() Kind
	AppendTo(dst []byte) []byte
}

var kindNames = [...]string{
	KindHello: "hello", KindWelcome: "welcome", KindReject: "reject", KindAssign: "assign",
	KindReady: "ready", KindJoined: "joined", KindArrive: "arrive", KindStored: "stored",
	KindFire: "fire", KindNorm: "norm", KindApply: "apply", KindRelease: "release",
	KindPush: "push", KindParams: "params", KindPull: "pull", KindInit: "init",
	KindBuffers: "buffers", KindEvalResult: "eval-result", KindSave: "save", KindSaved: "saved",
	KindLeave: "leave", KindControl: "control", KindReply: "reply", KindPing: "ping", KindPong: "pong",
	KindRing: "ring", KindFormed: "formed", KindTally: "tally", KindFault: "fault",
	KindBranch: "branch", KindBundle: "bundle", KindDetach: "detach", KindWant: "want", KindCompression: "compression",
	KindEnlist: "enlist", KindUsage: "usage", KindAsk: "ask", KindGrant: "grant", KindOrder: "order", KindObeyed: "obeyed", KindYield: "yield",
	KindAdopt: "adopt", KindHand: "hand", KindMoved: "moved", KindState: "state", KindSlot: "slot", KindRoute: "route", KindCancel: "cancel",
	KindComputed: "computed", KindClose: "close", KindPoison: "poison",
	KindBallot: "ballot", KindStanding: "standing", KindElsewhere: "elsewhere",
	KindView: "view", KindHeld: "held", KindTurn: "turn", KindAhead: "ahead",
}

// Valid says whether k is a kind of this version of the protocol.
func (k Kind) Valid() bool { return k >= KindHello && k <= lastKind }

// String is the kind's name in logs and in docs/protocol.md.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// What several messages have in common.

func (p *parser) worker(field string) star.Worker {
	return star.Worker(p.within(field, 0, MaxWorkers-1))
}

// member is a worker, or -1 for a process that is none.
func (p *parser) member(field string) int {
	return int(p.within(field, -1, MaxWorkers-1))
}

func (p *parser) shard(field string) int {
	return int(p.within(field, 0, MaxShards-1))
}

func (p *parser) count(field string) int {
	return int(p.within(field, 0, 1<<31-1))
}

func (p *parser) duration(field string) time.Duration {
	return time.Duration(p.within(field, -maxTime, maxTime))
}

func appendShards(dst []byte, ss []ShardInfo) []byte {
	dst = appendArray(dst, len(ss))
	for _, s := range ss {
		dst = appendArray(dst, 4)
		dst = appendInt(dst, int64(s.Shard))
		dst = appendString(dst, s.Addr)
		dst = appendInt(dst, s.From)
		dst = appendInt(dst, s.To)
	}
	return dst
}

func (p *parser) shards(field string) []ShardInfo {
	p.left--
	n := p.arrayLen(field, MaxShards)
	if n == 0 {
		return nil
	}
	ss := make([]ShardInfo, 0, n)
	for range n {
		extra := p.row(field, 4)
		s := ShardInfo{
			Shard: int(p.between(field, 0, MaxShards-1)),
			Addr:  p.words(field, maxName),
			From:  p.between(field, 0, MaxParams),
			To:    p.between(field, 0, MaxParams),
		}
		p.skip(extra)
		if p.err != nil {
			return nil
		}
		ss = append(ss, s)
	}
	return ss
}

func appendGradients(dst []byte, gs []Gradient) []byte {
	dst = appendArray(dst, len(gs))
	for _, g := range gs {
		dst = appendArray(dst, 3)
		dst = appendInt(dst, int64(g.Worker))
		dst = appendInt(dst, g.Step)
		dst = appendFloat32(dst, g.Weight)
	}
	return dst
}

// gradients reads into the memory of gs.
func (p *parser) gradients(field string, gs []Gradient) []Gradient {
	p.left--
	gs = gs[:0]
	for range p.arrayLen(field, MaxWorkers) {
		extra := p.row(field, 3)
		g := Gradient{
			Worker: star.Worker(p.between(field, 0, MaxWorkers-1)),
			Step:   p.between(field, 0, 1<<63-1),
			Weight: float32(p.real(field)),
		}
		p.skip(extra)
		if p.err != nil {
			return gs
		}
		gs = append(gs, g)
	}
	return gs
}

func appendWorkers(dst []byte, ws []star.Worker) []byte {
	dst = appendArray(dst, len(ws))
	for _, w := range ws {
		dst = appendInt(dst, int64(w))
	}
	return dst
}

func (p *parser) workers(field string) []star.Worker {
	p.left--
	var ws []star.Worker
	for range p.arrayLen(field, MaxWorkers) {
		ws = append(ws, star.Worker(p.between(field, 0, MaxWorkers-1)))
	}
	return ws
}

func appendCounts(dst []byte, ns []int) []byte {
	dst = appendArray(dst, len(ns))
	for _, n := range ns {
		dst = appendInt(dst, int64(n))
	}
	return dst
}

func (p *parser) counts(field string) []int {
	p.left--
	var ns []int
	for range p.arrayLen(field, MaxWorkers) {
		ns = append(ns, int(p.between(field, 0, 1<<31-1)))
	}
	return ns
}

// MaxPieces bounds of how many pieces of the stream a batch is, beside the first.
const MaxPieces = 1 << 12

func appendPieces(dst []byte, ps []Piece) []byte {
	dst = appendArray(dst, len(ps))
	for _, s := range ps {
		dst = appendArray(dst, 2)
		dst = appendInt(dst, s.Start)
		dst = appendInt(dst, int64(s.Count))
	}
	return dst
}

func (p *parser) pieces(field string) []Piece {
	p.left--
	var ps []Piece
	for range p.arrayLen(field, MaxPieces) {
		extra := p.row(field, 2)
		s := Piece{Start: p.between(field, 0, 1<<63-1), Count: int(p.between(field, 1, 1<<31-1))}
		p.skip(extra)
		if p.err != nil {
			return nil
		}
		ps = append(ps, s)
	}
	return ps
}

func appendRiders(dst []byte, rs []Rider) []byte {
	dst = appendArray(dst, len(rs))
	for _, r := range rs {
		dst = appendArray(dst, 2)
		dst = appendInt(dst, int64(r.Worker))
		dst = appendInt(dst, int64(r.Parent))
	}
	return dst
}

func (p *parser) riders(field string) []Rider {
	p.left--
	var rs []Rider
	for range p.arrayLen(field, MaxWorkers) {
		extra := p.row(field, 2)
		r := Rider{
			Worker: star.Worker(p.between(field, 0, MaxWorkers-1)),
			Parent: star.Worker(p.between(field, 0, MaxWorkers-1)),
		}
		p.skip(extra)
		if p.err != nil {
			return nil
		}
		rs = append(rs, r)
	}
	return rs
}

func (Hello) Kind() Kind { return KindHello }

func (m Hello) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 15)
	dst = appendString(dst, m.Service)
	dst = appendString(dst, m.Role)
	dst = appendString(dst, m.Job)
	dst = appendString(dst, m.Token)
	dst = appendText(dst, m.Version, maxName)
	dst = appendText(dst, m.Host, maxName)
	dst = appendInt(dst, int64(m.Rank))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Addr)
	dst = appendInt(dst, int64(m.Shards))
	dst = appendText(dst, m.Model, maxModel)
	dst = appendString(dst, m.ModelHash)
	dst = appendInt(dst, m.Params)
	dst = appendInt(dst, m.Buffers)
	return appendString(dst, m.Pass)
}

// ParseHello parses the header of a Hello.
func ParseHello(b []byte) (Hello, error) {
	p := parse(KindHello, b, 14)
	m := Hello{
		Service:   p.string("service", maxName),
		Role:      p.string("role", maxName),
		Job:       p.string("job", maxName),
		Token:     p.string("token", maxToken),
		Version:   p.string("version", maxName),
		Host:      p.string("host", maxName),
		Rank:      p.member("rank"),
		Shard:     p.shard("shard"),
		Addr:      p.string("addr", maxName),
		Shards:    int(p.within("shards", 0, MaxShards)),
		Model:     p.string("model", maxModel),
		ModelHash: p.string("model_hash", maxName),
		Params:    p.within("params", 0, MaxParams),
		Buffers:   p.within("buffers", 0, MaxParams),
	}
	if p.err == nil && p.left > 0 { // absent from older peers
		m.Pass = p.string("pass", maxName)
	}
	return m, p.end()
}

func (Welcome) Kind() Kind { return KindWelcome }

func (m Welcome) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 10)
	dst = appendInt(dst, int64(m.Rank))
	dst = appendInt(dst, int64(m.Workers))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendBool(dst, m.Seed)
	dst = appendShards(dst, m.Shards)
	dst = appendInt(dst, int64(m.Elapsed))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, m.Term)
	return appendString(dst, m.Pass)
}

// ParseWelcome parses the header of a Welcome.
func ParseWelcome(b []byte) (Welcome, error) {
	p := parse(KindWelcome, b, 8)
	m := Welcome{
		Rank:       p.member("rank"),
		Workers:    int(p.within("workers", 0, MaxWorkers)),
		Generation: p.natural("generation"),
		Version:    p.natural("version"),
		Seed:       p.bool("seed"),
		Shards:     p.shards("shards"),
		Elapsed:    p.duration("elapsed"),
		Step:       p.natural("step"),
	}
	if p.err == nil && p.left > 0 { // absent from older peers
		m.Term = p.natural("term")
	}
	if p.err == nil && p.left > 0 {
		m.Pass = p.string("pass", maxName)
	}
	return m, p.end()
}

func (Reject) Kind() Kind { return KindReject }

func (m Reject) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Exit))
	return appendText(dst, m.Reason, maxText)
}

// ParseReject parses the header of a Reject.
func ParseReject(b []byte) (Reject, error) {
	p := parse(KindReject, b, 2)
	m := Reject{Exit: int(p.within("exit", 0, 255)), Reason: p.string("reason", maxText)}
	return m, p.end()
}

func (Assign) Kind() Kind { return KindAssign }

func (m Assign) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendShards(dst, m.Shards)
	dst = appendInt(dst, int64(m.Of))
	dst = appendInt(dst, m.Params)
	dst = appendInt(dst, int64(m.Workers))
	dst = appendInt(dst, m.Generation)
	return appendString(dst, m.Key)
}

// ParseAssign parses the header of an Assign.
func ParseAssign(b []byte) (Assign, error) {
	p := parse(KindAssign, b, 5)
	m := Assign{
		Shards:     p.shards("shards"),
		Of:         int(p.within("of", 0, MaxShards)),
		Params:     p.within("params", 0, MaxParams),
		Workers:    int(p.within("workers", 0, MaxWorkers)),
		Generation: p.natural("generation"),
	}
	if p.err == nil && p.left > 0 { // absent from older peers
		m.Key = p.string("key", maxName)
	}
	return m, p.end()
}

func (Ready) Kind() Kind { return KindReady }

func (m Ready) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	return appendInt(dst, m.Version)
}

// ParseReady parses the header of a Ready.
func ParseReady(b []byte) (Ready, error) {
	p := parse(KindReady, b, 2)
	m := Ready{Shard: p.shard("shard"), Version: p.natural("version")}
	return m, p.end()
}

func (Joined) Kind() Kind { return KindJoined }

func (m Joined) AppendTo(dst []byte) []byte {
	return appendInt(appendArray(dst, 1), int64(m.Worker))
}

// ParseJoined parses the header of a Joined.
func ParseJoined(b []byte) (Joined, error) {
	p := parse(KindJoined, b, 1)
	m := Joined{Worker: p.worker("worker")}
	return m, p.end()
}

func (Arrive) Kind() Kind { return KindArrive }

func (m Arrive) AppendTo(dst []byte) []byte {
	r := &m.Record
	dst = appendArray(dst, 18)
	dst = appendInt(dst, int64(r.Worker))
	dst = appendInt(dst, r.Step)
	dst = appendInt(dst, r.Basis)
	dst = appendInt(dst, int64(r.At))
	dst = appendInt(dst, int64(r.Compute))
	dst = appendInt(dst, int64(r.Load))
	dst = appendInt(dst, int64(r.Push))
	dst = appendInt(dst, int64(r.Wait))
	dst = appendInt(dst, int64(r.Pull))
	dst = appendInt(dst, int64(r.Injected))
	dst = appendInt(dst, int64(r.Samples))
	dst = appendFloat64(dst, r.Loss)
	dst = appendFloat64(dst, r.Norm2)
	dst = appendFloat64(dst, r.CPU)
	dst = appendFloat64(dst, r.NetIn)
	dst = appendFloat64(dst, r.NetOut)
	return appendTelemetry(dst, &r.Telemetry)
}

// appendTelemetry appends which metrics there are, and their values.
func appendTelemetry(dst []byte, t *star.Telemetry) []byte {
	const known = 1<<star.NumMetrics - 1
	dst = appendInt(dst, int64(t.Seen&known))
	dst = appendArray(dst, bits.OnesCount64(t.Seen&known))
	for m := range star.NumMetrics {
		if t.Seen>>m&1 != 0 {
			dst = appendFloat32(dst, t.Values[m])
		}
	}
	return dst
}

// telemetry reads what appendTelemetry wrote, or what a peer wrote that knows more
// metrics, or one that knows of none. What is not finite counts as not measured.
func (p *parser) telemetry() (t star.Telemetry) {
	if p.err != nil || p.left == 0 {
		return t
	}
	seen := uint64(p.natural("seen"))
	if p.err == nil && p.left == 0 {
		p.fail("telemetry", errShort)
	}
	p.left--
	n, want := p.arrayLen("telemetry", 63), bits.OnesCount64(seen)
	if p.err == nil && n != want {
		p.fail("telemetry", fmt.Errorf("%d values for %d bits of seen", n, want))
	}
	for ; seen != 0 && p.err == nil; seen &= seen - 1 {
		v := p.real("telemetry")
		if m := star.Metric(bits.TrailingZeros64(seen)); m < star.NumMetrics && p.err == nil {
			t.Set(m, v)
		}
	}
	return t
}

// ParseArrive parses the header of an Arrive. It does not allocate.
func ParseArrive(b []byte) (Arrive, error) {
	p := parse(KindArrive, b, 16)
	m := Arrive{star.Record{
		Worker:   p.worker("worker"),
		Step:     p.natural("step"),
		Basis:    p.natural("basis"),
		At:       p.duration("at"),
		Compute:  p.duration("compute"),
		Load:     p.duration("load"),
		Push:     p.duration("push"),
		Wait:     p.duration("wait"),
		Pull:     p.duration("pull"),
		Injected: p.duration("injected"),
		Samples:  p.count("samples"),
		Loss:     p.float("loss"),
		Norm2:    p.float("norm2"),
		CPU:      p.float("cpu"),
		NetIn:    p.float("net_in"),
		NetOut:   p.float("net_out"),

		Telemetry: p.telemetry(),
	}}
	return m, p.end()
}

func (Stored) Kind() Kind { return KindStored }

func (m Stored) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	return appendFloat64(dst, m.Sum2)
}

// ParseStored parses the header of a Stored. It does not allocate.
func ParseStored(b []byte) (Stored, error) {
	p := parse(KindStored, b, 3)
	m := Stored{Shard: p.shard("shard"), Worker: p.worker("worker"), Step: p.natural("step"), Sum2: -1}
	if p.err == nil && p.left > 0 { // absent from older shards
		m.Sum2 = p.float("sum2")
	}
	return m, p.end()
}

func (Fire) Kind() Kind { return KindFire }

func (m Fire) AppendTo(dst []byte) []byte {
	samples := m.Samples
	if m.Local > 0 {
		samples = ^samples // so that a shard that knows of no steps refuses them, in place of taking them for gradients
	}
	dst = appendArray(dst, 9)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, samples)
	dst = appendGradients(dst, m.Gradients)
	dst = appendGradients(dst, m.Dropped)
	dst = appendArray(dst, len(m.Quiet))
	for _, w := range m.Quiet {
		dst = appendInt(dst, int64(w))
	}
	dst = appendBool(dst, m.NormFirst)
	dst = appendBool(dst, m.Report)
	return appendInt(dst, int64(m.Local))
}

// Parse parses the header of a Fire into m and reuses the memory of m's lists,
// so that it allocates only when a list outgrows all before it. After an error
// m's fields mean nothing.
func (m *Fire) Parse(b []byte) error { return m.parse(KindFire, b) }

func (m *Fire) parse(k Kind, b []byte) error {
	p := parse(k, b, 8)
	m.Seq = p.natural("seq")
	m.Version = p.natural("version")
	m.Samples = p.within("samples", math.MinInt64, math.MaxInt64)
	m.Gradients = p.gradients("gradients", m.Gradients)
	m.Dropped = p.gradients("dropped", m.Dropped)
	p.left--
	m.Quiet = m.Quiet[:0]
	for range p.arrayLen("quiet", MaxWorkers) {
		m.Quiet = append(m.Quiet, star.Worker(p.between("quiet", 0, MaxWorkers-1)))
	}
	m.NormFirst = p.bool("norm_first")
	m.Report = p.bool("report")
	if m.Local = 0; p.err == nil && p.left > 0 { // absent from older coordinators
		m.Local = int(p.within("local", 0, maxSteps))
	}
	switch steps := m.Samples < 0; {
	case steps != (m.Local > 0):
		p.fail("samples", fmt.Errorf("%d with %d local steps: want a negative number with such steps, and none without", m.Samples, m.Local))
	case steps:
		m.Samples = ^m.Samples
	}
	return p.end()
}

// ParseFire parses the header of a Fire into fresh memory.
func ParseFire(b []byte) (Fire, error) {
	var m Fire
	err := m.Parse(b)
	return m, err
}

func (Norm) Kind() Kind { return KindNorm }

func (m Norm) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Seq)
	return appendFloat64(dst, m.Sum2)
}

// ParseNorm parses the header of a Norm.
func ParseNorm(b []byte) (Norm, error) {
	p := parse(KindNorm, b, 3)
	m := Norm{Shard: p.shard("shard"), Seq: p.natural("seq"), Sum2: p.float("sum2")}
	return m, p.end()
}

func (Apply) Kind() Kind { return KindApply }

func (m Apply) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendFloat64(dst, m.Norm)
	return appendFloat64(dst, m.Factor)
}

// ParseApply parses the header of an Apply.
func ParseApply(b []byte) (Apply, error) {
	p := parse(KindApply, b, 3)
	m := Apply{Seq: p.natural("seq"), Norm: p.float("norm"), Factor: p.float("factor")}
	return m, p.end()
}

func (Release) Kind() Kind { return KindRelease }

func (m Release) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 17)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, int64(m.Action))
	dst = appendInt(dst, m.Start)
	dst = appendInt(dst, int64(m.Count))
	dst = appendBool(dst, m.Pull)
	dst = appendInt(dst, m.Eval)
	dst = appendInt(dst, m.From)
	dst = appendInt(dst, m.To)
	dst = appendInt(dst, m.Total)
	dst = appendBool(dst, m.Dropped)
	dst = appendInt(dst, int64(m.Delay))
	dst = appendInt(dst, int64(m.Local))
	dst = appendInt(dst, int64(m.Micro))
	dst = appendInt(dst, int64(m.Cap))
	dst = appendInt(dst, int64(m.Part))
	return appendPieces(dst, m.More)
}

// maxSteps bounds the steps, and the parts, of one batch.
const maxSteps = 1 << 20

// ParseRelease parses the header of a Release. It does not allocate, unless the batch is of several pieces.
func ParseRelease(b []byte) (Release, error) {
	p := parse(KindRelease, b, 11)
	m := Release{
		Worker:  p.worker("worker"),
		Version: p.natural("version"),
		Action:  Action(p.within("action", int64(Continue), int64(Stop))),
		Start:   p.natural("start"),
		Count:   p.count("count"),
		Pull:    p.bool("pull"),
		Eval:    p.natural("eval"),
		From:    p.within("from", 0, 10_000),
		To:      p.within("to", 0, 10_000),
		Total:   p.natural("total"),
		Dropped: p.bool("dropped"),
	}
	if p.err == nil && p.left > 0 { // absent from older coordinators
		m.Delay = time.Duration(p.natural("delay"))
	}
	if p.err == nil && p.left > 0 { // likewise
		m.Local = int(p.within("local", 0, maxSteps))
	}
	if p.err == nil && p.left > 0 {
		m.Micro = int(p.within("micro", 0, maxSteps))
	}
	if p.err == nil && p.left > 0 {
		m.Cap = time.Duration(p.natural("cap"))
	}
	if p.err == nil && p.left > 0 {
		m.Part = p.count("part")
	}
	if p.err == nil && p.left > 0 {
		m.More = p.pieces("more")
	}
	return m, p.end()
}

func (Push) Kind() Kind { return KindPush }

func (m Push) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, m.Basis)
	dst = appendInt(dst, int64(m.Samples))
	return appendString(dst, m.Codec)
}

// Parse parses the header of a Push into m. It allocates only when the codec is
// another one than m had. After an error m's fields mean nothing.
func (m *Push) Parse(b []byte) error {
	p := parse(KindPush, b, 6)
	m.Shard = p.shard("shard")
	m.Worker = p.worker("worker")
	m.Step = p.natural("step")
	m.Basis = p.natural("basis")
	m.Samples = p.count("samples")
	p.left--
	if name := p.text("codec", maxCodec); m.Codec != string(name) {
		m.Codec = string(name)
	}
	return p.end()
}

// ParsePush parses the header of a Push. It does not allocate if there is no codec.
func ParsePush(b []byte) (Push, error) {
	var m Push
	err := m.Parse(b)
	return m, err
}

func (Params) Kind() Kind { return KindParams }

func (m Params) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	return appendInt(dst, m.Version)
}

// ParseParams parses the header of a Params. It does not allocate.
func ParseParams(b []byte) (Params, error) {
	p := parse(KindParams, b, 2)
	m := Params{Shard: p.shard("shard"), Version: p.natural("version")}
	return m, p.end()
}

func (Pull) Kind() Kind { return KindPull }

func (m Pull) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	return appendInt(dst, int64(m.Worker))
}

// ParsePull parses the header of a Pull. It does not allocate.
func ParsePull(b []byte) (Pull, error) {
	p := parse(KindPull, b, 2)
	m := Pull{Shard: p.shard("shard"), Worker: p.worker("worker")}
	return m, p.end()
}

func (Init) Kind() Kind { return KindInit }

func (m Init) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	return appendInt(dst, int64(m.Worker))
}

// ParseInit parses the header of an Init.
func ParseInit(b []byte) (Init, error) {
	p := parse(KindInit, b, 2)
	m := Init{Shard: p.shard("shard"), Worker: p.worker("worker")}
	return m, p.end()
}

func (Buffers) Kind() Kind { return KindBuffers }

func (m Buffers) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	return appendInt(dst, m.Eval)
}

// ParseBuffers parses the header of a Buffers.
func ParseBuffers(b []byte) (Buffers, error) {
	p := parse(KindBuffers, b, 2)
	m := Buffers{Worker: p.worker("worker"), Eval: p.natural("eval")}
	return m, p.end()
}

func (EvalResult) Kind() Kind { return KindEvalResult }

func (m EvalResult) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Eval)
	dst = appendInt(dst, m.Version)
	dst = appendFloat64(dst, m.LossSum)
	dst = appendInt(dst, m.Correct)
	dst = appendInt(dst, m.Count)
	return appendInt(dst, int64(m.Took))
}

// ParseEvalResult parses the header of an EvalResult.
func ParseEvalResult(b []byte) (EvalResult, error) {
	p := parse(KindEvalResult, b, 7)
	m := EvalResult{
		Worker:  p.worker("worker"),
		Eval:    p.natural("eval"),
		Version: p.natural("version"),
		LossSum: p.float("loss_sum"),
		Correct: p.natural("correct"),
		Count:   p.natural("count"),
		Took:    p.duration("took"),
	}
	return m, p.end()
}

func (Save) Kind() Kind { return KindSave }

func (m Save) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	return appendString(dst, m.ID)
}

// ParseSave parses the header of a Save.
func ParseSave(b []byte) (Save, error) {
	p := parse(KindSave, b, 3)
	m := Save{Seq: p.natural("seq"), Version: p.natural("version"), ID: p.string("id", maxName)}
	return m, p.end()
}

func (Saved) Kind() Kind { return KindSaved }

func (m Saved) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.ID)
	return appendText(dst, m.Err, maxText)
}

// ParseSaved parses the header of a Saved.
func ParseSaved(b []byte) (Saved, error) {
	p := parse(KindSaved, b, 3)
	m := Saved{Shard: p.shard("shard"), ID: p.string("id", maxName), Err: p.string("err", maxText)}
	return m, p.end()
}

func (Leave) Kind() Kind { return KindLeave }

func (m Leave) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.Exit))
	return appendText(dst, m.Reason, maxText)
}

// ParseLeave parses the header of a Leave. Its Worker is -1 where a process
// leaves that is no worker.
func ParseLeave(b []byte) (Leave, error) {
	p := parse(KindLeave, b, 3)
	m := Leave{
		Worker: star.Worker(p.member("worker")),
		Exit:   int(p.within("exit", 0, 255)),
		Reason: p.string("reason", maxText),
	}
	return m, p.end()
}

func (Control) Kind() Kind { return KindControl }

func (m Control) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendArray(dst, len(m.Args))
	for _, a := range m.Args {
		dst = appendString(dst, a)
	}
	return dst
}

// ParseControl parses the header of a Control.
func ParseControl(b []byte) (Control, error) {
	p := parse(KindControl, b, 1)
	var m Control
	p.left--
	for range p.arrayLen("args", maxArgs) {
		m.Args = append(m.Args, p.words("args", maxArg))
	}
	return m, p.end()
}

func (Reply) Kind() Kind { return KindReply }

func (m Reply) AppendTo(dst []byte) []byte {
	return appendText(appendArray(dst, 1), m.Err, maxText)
}

// ParseReply parses the header of a Reply.
func ParseReply(b []byte) (Reply, error) {
	p := parse(KindReply, b, 1)
	m := Reply{Err: p.string("err", maxText)}
	return m, p.end()
}

func (Ping) Kind() Kind { return KindPing }

func (m Ping) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Sent)
	return appendInt(dst, m.Want)
}

// ParsePing parses the header of a Ping. It does not allocate.
func ParsePing(b []byte) (Ping, error) {
	p := parse(KindPing, b, 3)
	m := Ping{Seq: p.integer("seq"), Sent: p.integer("sent"), Want: p.natural("want")}
	return m, p.end()
}

func (Pong) Kind() Kind { return KindPong }

func (m Pong) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Sent)
	return appendInt(dst, m.Now)
}

// ParsePong parses the header of a Pong. It does not allocate.
func ParsePong(b []byte) (Pong, error) {
	p := parse(KindPong, b, 3)
	m := Pong{Seq: p.integer("seq"), Sent: p.integer("sent"), Now: p.integer("now")}
	return m, p.end()
}

func (Ring) Kind() Kind { return KindRing }

func (m Ring) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 10)
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.From)
	dst = appendWorkers(dst, m.Members)
	dst = appendString(dst, m.Addr)
	dst = appendRiders(dst, m.Riders)
	dst = appendString(dst, m.Door)
	dst = appendInt(dst, m.Of)
	dst = appendInt(dst, int64(m.Wait))
	dst = appendInt(dst, m.MaxStale)
	return appendBool(dst, m.Now)
}

// ParseRing parses the header of a Ring.
func ParseRing(b []byte) (Ring, error) {
	p := parse(KindRing, b, 10)
	m := Ring{
		Generation: p.natural("generation"),
		From:       p.within("from", -1, 1<<63-1),
		Members:    p.workers("members"),
		Addr:       p.string("addr", maxName),
		Riders:     p.riders("riders"),
		Door:       p.string("door", maxName),
		Of:         p.natural("of"),
		Wait:       p.duration("wait"),
		MaxStale:   p.natural("max_stale"),
		Now:        p.bool("now"),
	}
	return m, p.end()
}

func (Formed) Kind() Kind { return KindFormed }

func (m Formed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	return appendInt(dst, m.Version)
}

// ParseFormed parses the header of a Formed.
func ParseFormed(b []byte) (Formed, error) {
	p := parse(KindFormed, b, 3)
	m := Formed{Worker: p.worker("worker"), Generation: p.natural("generation"), Version: p.natural("version")}
	return m, p.end()
}

func (Tally) Kind() Kind { return KindTally }

func (m Tally) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 9)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, m.Hash)
	dst = appendGradients(dst, m.Carried)
	dst = appendGradients(dst, m.Dropped)
	dst = appendFloat64(dst, m.Sum2)
	dst = appendCounts(dst, m.Samples)
	return appendCounts(dst, m.Behind)
}

// ParseTally parses the header of a Tally.
func ParseTally(b []byte) (Tally, error) {
	p := parse(KindTally, b, 7)
	m := Tally{
		Worker: p.worker("worker"), Generation: p.natural("generation"), Version: p.natural("version"), Hash: p.within("hash", 0, 1<<32-1),
		Carried: p.gradients("carried", nil), Dropped: p.gradients("dropped", nil), Sum2: p.float("sum2"),
	}
	if p.err == nil && p.left > 0 { // absent from older members
		m.Samples = p.counts("samples")
	}
	if p.err == nil && p.left > 0 {
		m.Behind = p.counts("behind")
	}
	return m, p.end()
}

func (Fault) Kind() Kind { return KindFault }

func (m Fault) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, int64(m.Suspect))
	return appendText(dst, m.Reason, maxText)
}

// ParseFault parses the header of a Fault.
func ParseFault(b []byte) (Fault, error) {
	p := parse(KindFault, b, 4)
	m := Fault{
		Worker: p.worker("worker"), Generation: p.natural("generation"), Suspect: p.member("suspect"),
		Reason: p.string("reason", maxText),
	}
	return m, p.end()
}
