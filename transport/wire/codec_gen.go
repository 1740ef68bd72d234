// Code generated from messages.go by go generate; DO NOT EDIT.

package wire

import (
	"math"
	"slices"
	"time"

	"star"
)

// The kinds of frames. LastKind is the greatest one.
const (
	KindHello       Kind = 1
	KindWelcome     Kind = 2
	KindReject      Kind = 3
	KindAssign      Kind = 4
	KindReady       Kind = 5
	KindJoined      Kind = 6
	KindArrive      Kind = 7
	KindStored      Kind = 8
	KindFire        Kind = 9
	KindNorm        Kind = 10
	KindApply       Kind = 11
	KindRelease     Kind = 12
	KindPush        Kind = 13
	KindParams      Kind = 14
	KindPull        Kind = 15
	KindInit        Kind = 16
	KindBuffers     Kind = 17
	KindEvalResult  Kind = 18
	KindSave        Kind = 19
	KindSaved       Kind = 20
	KindLeave       Kind = 21
	KindControl     Kind = 22
	KindReply       Kind = 23
	KindPing        Kind = 24
	KindPong        Kind = 25
	KindRing        Kind = 26
	KindFormed      Kind = 27
	KindTally       Kind = 28
	KindFault       Kind = 29
	KindBranch      Kind = 30
	KindBundle      Kind = 31
	KindDetach      Kind = 32
	KindWant        Kind = 33
	KindCompression Kind = 34
	KindEnlist      Kind = 35
	KindUsage       Kind = 36
	KindAsk         Kind = 37
	KindGrant       Kind = 38
	KindOrder       Kind = 39
	KindObeyed      Kind = 40
	KindYield       Kind = 41
	KindAdopt       Kind = 42
	KindHand        Kind = 43
	KindMoved       Kind = 44
	KindState       Kind = 45
	KindSlot        Kind = 46
	KindRoute       Kind = 47
	KindCancel      Kind = 48
	KindComputed    Kind = 49
	KindClose       Kind = 50
	KindPoison      Kind = 51
	KindBallot      Kind = 52
	KindStanding    Kind = 53
	KindElsewhere   Kind = 54
	KindView        Kind = 55
	KindHeld        Kind = 56
	KindTurn        Kind = 57
	KindAhead       Kind = 58
	KindHalt        Kind = 59

	LastKind = KindHalt
)

var kindNames = [...]string{
	KindHello:       "hello",
	KindWelcome:     "welcome",
	KindReject:      "reject",
	KindAssign:      "assign",
	KindReady:       "ready",
	KindJoined:      "joined",
	KindArrive:      "arrive",
	KindStored:      "stored",
	KindFire:        "fire",
	KindNorm:        "norm",
	KindApply:       "apply",
	KindRelease:     "release",
	KindPush:        "push",
	KindParams:      "params",
	KindPull:        "pull",
	KindInit:        "init",
	KindBuffers:     "buffers",
	KindEvalResult:  "eval-result",
	KindSave:        "save",
	KindSaved:       "saved",
	KindLeave:       "leave",
	KindControl:     "control",
	KindReply:       "reply",
	KindPing:        "ping",
	KindPong:        "pong",
	KindRing:        "ring",
	KindFormed:      "formed",
	KindTally:       "tally",
	KindFault:       "fault",
	KindBranch:      "branch",
	KindBundle:      "bundle",
	KindDetach:      "detach",
	KindWant:        "want",
	KindCompression: "compression",
	KindEnlist:      "enlist",
	KindUsage:       "usage",
	KindAsk:         "ask",
	KindGrant:       "grant",
	KindOrder:       "order",
	KindObeyed:      "obeyed",
	KindYield:       "yield",
	KindAdopt:       "adopt",
	KindHand:        "hand",
	KindMoved:       "moved",
	KindState:       "state",
	KindSlot:        "slot",
	KindRoute:       "route",
	KindCancel:      "cancel",
	KindComputed:    "computed",
	KindClose:       "close",
	KindPoison:      "poison",
	KindBallot:      "ballot",
	KindStanding:    "standing",
	KindElsewhere:   "elsewhere",
	KindView:        "view",
	KindHeld:        "held",
	KindTurn:        "turn",
	KindAhead:       "ahead",
	KindHalt:        "halt",
}

var payloads = [...]Payload{
	KindHello:    Text,
	KindWelcome:  Data,
	KindAssign:   Text,
	KindFire:     Memo,
	KindNorm:     Bins,
	KindRelease:  Memo,
	KindPush:     Data,
	KindParams:   Data,
	KindInit:     Data,
	KindBuffers:  Data,
	KindSaved:    Text,
	KindReply:    Text,
	KindPing:     Probe,
	KindPong:     Probe,
	KindBundle:   Data,
	KindState:    Data,
	KindSlot:     Data,
	KindBallot:   Text,
	KindStanding: Text,
	KindAhead:    Memo,
	LastKind + 1: None,
}

// Kind is hello.
func (Hello) Kind() Kind { return KindHello }

// AppendTo appends the header of m to dst.
func (m Hello) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 18)
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
	dst = appendString(dst, m.Pass)
	dst = appendString(dst, m.Process)
	dst = appendText(dst, m.Commit, maxName)
	dst = appendString(dst, m.Codec)
	return dst
}

// Parse parses the header of a Hello into m and reuses its memory.
func (m *Hello) Parse(b []byte) error {
	reader := parse(KindHello, b, 14)
	p := &reader
	p.left--
	if s := p.text("service", maxName); m.Service != string(s) {
		m.Service = string(s)
	}
	p.left--
	if s := p.text("role", maxName); m.Role != string(s) {
		m.Role = string(s)
	}
	p.left--
	if s := p.text("job", maxName); m.Job != string(s) {
		m.Job = string(s)
	}
	p.left--
	if s := p.text("token", maxToken); m.Token != string(s) {
		m.Token = string(s)
	}
	p.left--
	if s := p.text("version", maxName); m.Version != string(s) {
		m.Version = string(s)
	}
	p.left--
	if s := p.text("host", maxName); m.Host != string(s) {
		m.Host = string(s)
	}
	m.Rank = int(p.within("rank", -1, MaxWorkers-1))
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	p.left--
	if s := p.text("addr", maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	m.Shards = int(p.within("shards", 0, MaxShards))
	p.left--
	if s := p.text("model", maxModel); m.Model != string(s) {
		m.Model = string(s)
	}
	p.left--
	if s := p.text("model_hash", maxName); m.ModelHash != string(s) {
		m.ModelHash = string(s)
	}
	m.Params = p.within("params", 0, MaxParams)
	m.Buffers = p.within("buffers", 0, MaxParams)
	if m.Pass = ""; p.more() {
		p.left--
		if s := p.text("pass", maxName); m.Pass != string(s) {
			m.Pass = string(s)
		}
	}
	if m.Process = ""; p.more() {
		p.left--
		if s := p.text("process", maxName); m.Process != string(s) {
			m.Process = string(s)
		}
	}
	if m.Commit = ""; p.more() {
		p.left--
		if s := p.text("commit", maxName); m.Commit != string(s) {
			m.Commit = string(s)
		}
	}
	if m.Codec = ""; p.more() {
		p.left--
		if s := p.text("codec", maxCodec); m.Codec != string(s) {
			m.Codec = string(s)
		}
	}
	return p.end()
}

// ParseHello parses the header of a Hello into new memory. Errors are a *ParseError.
func ParseHello(b []byte) (m Hello, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is welcome.
func (Welcome) Kind() Kind { return KindWelcome }

// AppendTo appends the header of m to dst.
func (m Welcome) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 13)
	dst = appendInt(dst, int64(m.Rank))
	dst = appendInt(dst, int64(m.Workers))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendBool(dst, m.Seed)
	dst = appendArray(dst, len(m.Shards))
	for i := range m.Shards {
		dst = m.Shards[i].appendRow(dst)
	}
	dst = appendInt(dst, int64(m.Elapsed))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, m.Term)
	dst = appendString(dst, m.Pass)
	dst = appendInt(dst, int64(m.Batch))
	dst = appendString(dst, m.Optimizer)
	dst = appendInt(dst, int64(m.Trailing))
	return dst
}

// Parse parses the header of a Welcome into m and reuses its memory.
func (m *Welcome) Parse(b []byte) error {
	reader := parse(KindWelcome, b, 8)
	p := &reader
	m.Rank = int(p.within("rank", -1, MaxWorkers-1))
	m.Workers = int(p.within("workers", 0, MaxWorkers))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	m.Seed = p.truth("seed")
	p.left--
	m.Shards = m.Shards[:0]
	if n := p.arrayLen("shards", MaxShards); n > 0 {
		m.Shards = slices.Grow(m.Shards, n)
		for range n {
			var v ShardInfo
			if v.parseRow(p, "shards"); p.err != nil {
				break
			}
			m.Shards = append(m.Shards, v)
		}
	}
	m.Elapsed = time.Duration(p.within("elapsed", -maxTime, maxTime))
	m.Step = p.within("step", 0, math.MaxInt64)
	if m.Term = 0; p.more() {
		m.Term = p.within("term", 0, math.MaxInt64)
	}
	if m.Pass = ""; p.more() {
		p.left--
		if s := p.text("pass", maxName); m.Pass != string(s) {
			m.Pass = string(s)
		}
	}
	if m.Batch = 0; p.more() {
		m.Batch = int(p.within("batch", 0, maxCount))
	}
	if m.Optimizer = ""; p.more() {
		p.left--
		if s := p.text("optimizer", MaxOptimizer); m.Optimizer != string(s) {
			m.Optimizer = string(s)
		}
	}
	if m.Trailing = 0; p.more() {
		m.Trailing = int(p.within("trailing", 0, maxOptimizer))
	}
	return p.end()
}

// ParseWelcome parses the header of a Welcome into new memory. Errors are a *ParseError.
func ParseWelcome(b []byte) (m Welcome, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is reject.
func (Reject) Kind() Kind { return KindReject }

// AppendTo appends the header of m to dst.
func (m Reject) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Exit))
	dst = appendText(dst, m.Reason, maxText)
	return dst
}

// Parse parses the header of a Reject into m and reuses its memory.
func (m *Reject) Parse(b []byte) error {
	reader := parse(KindReject, b, 2)
	p := &reader
	m.Exit = int(p.within("exit", 0, 255))
	p.left--
	if s := p.text("reason", maxText); m.Reason != string(s) {
		m.Reason = string(s)
	}
	return p.end()
}

// ParseReject parses the header of a Reject into new memory. Errors are a *ParseError.
func ParseReject(b []byte) (m Reject, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is assign.
func (Assign) Kind() Kind { return KindAssign }

// AppendTo appends the header of m to dst.
func (m Assign) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendArray(dst, len(m.Shards))
	for i := range m.Shards {
		dst = m.Shards[i].appendRow(dst)
	}
	dst = appendInt(dst, int64(m.Of))
	dst = appendInt(dst, m.Params)
	dst = appendInt(dst, int64(m.Workers))
	dst = appendInt(dst, m.Generation)
	dst = appendString(dst, m.Key)
	return dst
}

// Parse parses the header of an Assign into m and reuses its memory.
func (m *Assign) Parse(b []byte) error {
	reader := parse(KindAssign, b, 5)
	p := &reader
	p.left--
	m.Shards = m.Shards[:0]
	if n := p.arrayLen("shards", MaxShards); n > 0 {
		m.Shards = slices.Grow(m.Shards, n)
		for range n {
			var v ShardInfo
			if v.parseRow(p, "shards"); p.err != nil {
				break
			}
			m.Shards = append(m.Shards, v)
		}
	}
	m.Of = int(p.within("of", 0, MaxShards))
	m.Params = p.within("params", 0, MaxParams)
	m.Workers = int(p.within("workers", 0, MaxWorkers))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	if m.Key = ""; p.more() {
		p.left--
		if s := p.text("key", maxName); m.Key != string(s) {
			m.Key = string(s)
		}
	}
	return p.end()
}

// ParseAssign parses the header of an Assign into new memory. Errors are a *ParseError.
func ParseAssign(b []byte) (m Assign, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ready.
func (Ready) Kind() Kind { return KindReady }

// AppendTo appends the header of m to dst.
func (m Ready) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Version)
	return dst
}

// Parse parses the header of a Ready into m and reuses its memory.
func (m *Ready) Parse(b []byte) error {
	reader := parse(KindReady, b, 2)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	return p.end()
}

// ParseReady parses the header of a Ready into new memory. Errors are a *ParseError.
func ParseReady(b []byte) (m Ready, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is joined.
func (Joined) Kind() Kind { return KindJoined }

// AppendTo appends the header of m to dst.
func (m Joined) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendInt(dst, int64(m.Worker))
	return dst
}

// Parse parses the header of a Joined into m and reuses its memory.
func (m *Joined) Parse(b []byte) error {
	reader := parse(KindJoined, b, 1)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	return p.end()
}

// ParseJoined parses the header of a Joined into new memory. Errors are a *ParseError.
func ParseJoined(b []byte) (m Joined, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is arrive.
func (Arrive) Kind() Kind { return KindArrive }

// AppendTo appends the header of m to dst.
func (m Arrive) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 18)
	dst = appendInt(dst, int64(m.Record.Worker))
	dst = appendInt(dst, m.Record.Step)
	dst = appendInt(dst, m.Record.Basis)
	dst = appendInt(dst, int64(m.Record.At))
	dst = appendInt(dst, int64(m.Record.Compute))
	dst = appendInt(dst, int64(m.Record.Load))
	dst = appendInt(dst, int64(m.Record.Push))
	dst = appendInt(dst, int64(m.Record.Wait))
	dst = appendInt(dst, int64(m.Record.Pull))
	dst = appendInt(dst, int64(m.Record.Injected))
	dst = appendInt(dst, int64(m.Record.Samples))
	dst = appendFloat64(dst, m.Record.Loss)
	dst = appendFloat64(dst, m.Record.Norm2)
	dst = appendFloat64(dst, m.Record.CPU)
	dst = appendFloat64(dst, m.Record.NetIn)
	dst = appendFloat64(dst, m.Record.NetOut)
	dst = appendTelemetry(dst, &m.Record.Telemetry)
	return dst
}

// Parse parses the header of an Arrive into m and reuses its memory.
func (m *Arrive) Parse(b []byte) error {
	reader := parse(KindArrive, b, 16)
	p := &reader
	m.Record.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Record.Step = p.within("step", 0, math.MaxInt64)
	m.Record.Basis = p.within("basis", 0, math.MaxInt64)
	m.Record.At = time.Duration(p.within("at", -maxTime, maxTime))
	m.Record.Compute = time.Duration(p.within("compute", -maxTime, maxTime))
	m.Record.Load = time.Duration(p.within("load", -maxTime, maxTime))
	m.Record.Push = time.Duration(p.within("push", -maxTime, maxTime))
	m.Record.Wait = time.Duration(p.within("wait", -maxTime, maxTime))
	m.Record.Pull = time.Duration(p.within("pull", -maxTime, maxTime))
	m.Record.Injected = time.Duration(p.within("injected", -maxTime, maxTime))
	m.Record.Samples = int(p.within("samples", 0, maxCount))
	p.left--
	m.Record.Loss = p.real("loss")
	p.left--
	m.Record.Norm2 = p.real("norm2")
	p.left--
	m.Record.CPU = p.real("cpu")
	p.left--
	m.Record.NetIn = p.real("net_in")
	p.left--
	m.Record.NetOut = p.real("net_out")
	p.telemetry(&m.Record.Telemetry)
	return p.end()
}

// ParseArrive parses the header of an Arrive into new memory. Errors are a *ParseError.
func ParseArrive(b []byte) (m Arrive, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is stored.
func (Stored) Kind() Kind { return KindStored }

// AppendTo appends the header of m to dst.
func (m Stored) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendFloat64(dst, m.Sum2)
	return dst
}

// Parse parses the header of a Stored into m and reuses its memory.
func (m *Stored) Parse(b []byte) error {
	reader := parse(KindStored, b, 3)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	if m.Sum2 = -1; p.more() {
		p.left--
		m.Sum2 = p.real("sum2")
	}
	return p.end()
}

// ParseStored parses the header of a Stored into new memory. Errors are a *ParseError.
func ParseStored(b []byte) (m Stored, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is fire.
func (Fire) Kind() Kind { return KindFire }

// AppendTo appends the header of m to dst.
func (m Fire) AppendTo(dst []byte) []byte {
	m.sending()
	dst = appendArray(dst, 10)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, m.Samples)
	dst = appendArray(dst, len(m.Gradients))
	for i := range m.Gradients {
		dst = m.Gradients[i].appendRow(dst)
	}
	dst = appendArray(dst, len(m.Dropped))
	for i := range m.Dropped {
		dst = m.Dropped[i].appendRow(dst)
	}
	dst = appendArray(dst, len(m.Quiet))
	for _, v := range m.Quiet {
		dst = appendInt(dst, int64(v))
	}
	dst = appendBool(dst, m.NormFirst)
	dst = appendBool(dst, m.Report)
	dst = appendInt(dst, int64(m.Local))
	dst = appendString(dst, m.Outer)
	return dst
}

// Parse parses the header of a Fire into m and reuses its memory.
func (m *Fire) Parse(b []byte) error { return m.parse(KindFire, b) }

func (m *Fire) parse(k Kind, b []byte) error {
	reader := parse(k, b, 8)
	p := &reader
	m.Seq = p.within("seq", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	m.Samples = p.raw("samples")
	p.left--
	m.Gradients = m.Gradients[:0]
	if n := p.arrayLen("gradients", MaxWorkers); n > 0 {
		m.Gradients = slices.Grow(m.Gradients, n)
		for range n {
			var v Gradient
			if v.parseRow(p, "gradients"); p.err != nil {
				break
			}
			m.Gradients = append(m.Gradients, v)
		}
	}
	p.left--
	m.Dropped = m.Dropped[:0]
	if n := p.arrayLen("dropped", MaxWorkers); n > 0 {
		m.Dropped = slices.Grow(m.Dropped, n)
		for range n {
			var v Gradient
			if v.parseRow(p, "dropped"); p.err != nil {
				break
			}
			m.Dropped = append(m.Dropped, v)
		}
	}
	p.left--
	m.Quiet = m.Quiet[:0]
	if n := p.arrayLen("quiet", MaxWorkers); n > 0 {
		m.Quiet = slices.Grow(m.Quiet, n)
		for range n {
			m.Quiet = append(m.Quiet, star.Worker(p.between("quiet", 0, MaxWorkers-1)))
		}
	}
	p.left--
	m.NormFirst = p.truth("norm_first")
	p.left--
	m.Report = p.truth("report")
	if m.Local = 0; p.more() {
		m.Local = int(p.within("local", 0, maxSteps))
	}
	if m.Outer = ""; p.more() {
		p.left--
		if s := p.text("outer", maxOuter); m.Outer != string(s) {
			m.Outer = string(s)
		}
	}
	m.received(p)
	return p.end()
}

// ParseFire parses the header of a Fire into new memory. Errors are a *ParseError.
func ParseFire(b []byte) (m Fire, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is norm.
func (Norm) Kind() Kind { return KindNorm }

// AppendTo appends the header of m to dst.
func (m Norm) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Seq)
	dst = appendFloat64(dst, m.Sum2)
	return dst
}

// Parse parses the header of a Norm into m and reuses its memory.
func (m *Norm) Parse(b []byte) error {
	reader := parse(KindNorm, b, 3)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Seq = p.within("seq", 0, math.MaxInt64)
	p.left--
	m.Sum2 = p.real("sum2")
	return p.end()
}

// ParseNorm parses the header of a Norm into new memory. Errors are a *ParseError.
func ParseNorm(b []byte) (m Norm, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is apply.
func (Apply) Kind() Kind { return KindApply }

// AppendTo appends the header of m to dst.
func (m Apply) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendFloat64(dst, m.Norm)
	dst = appendFloat64(dst, m.Factor)
	return dst
}

// Parse parses the header of an Apply into m and reuses its memory.
func (m *Apply) Parse(b []byte) error {
	reader := parse(KindApply, b, 3)
	p := &reader
	m.Seq = p.within("seq", 0, math.MaxInt64)
	p.left--
	m.Norm = p.real("norm")
	p.left--
	m.Factor = p.real("factor")
	return p.end()
}

// ParseApply parses the header of an Apply into new memory. Errors are a *ParseError.
func ParseApply(b []byte) (m Apply, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is release.
func (Release) Kind() Kind { return KindRelease }

// AppendTo appends the header of m to dst.
func (m Release) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 23)
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
	dst = appendArray(dst, len(m.More))
	for i := range m.More {
		dst = m.More[i].appendRow(dst)
	}
	dst = appendString(dst, m.Outer)
	dst = appendInt(dst, int64(m.Fragments))
	dst = appendInt(dst, int64(m.Fragment))
	dst = appendArray(dst, len(m.Ahead))
	for i := range m.Ahead {
		dst = m.Ahead[i].appendRow(dst)
	}
	dst = appendInt(dst, int64(m.AheadLocal))
	dst = appendInt(dst, m.Round)
	return dst
}

// Parse parses the header of a Release into m and reuses its memory.
func (m *Release) Parse(b []byte) error {
	reader := parse(KindRelease, b, 11)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	m.Action = Action(p.within("action", 0, int64(Stop)))
	m.Start = p.within("start", 0, math.MaxInt64)
	m.Count = int(p.within("count", 0, maxCount))
	p.left--
	m.Pull = p.truth("pull")
	m.Eval = p.within("eval", 0, math.MaxInt64)
	m.From = p.within("from", 0, maxPart)
	m.To = p.within("to", 0, maxPart)
	m.Total = p.within("total", 0, math.MaxInt64)
	p.left--
	m.Dropped = p.truth("dropped")
	if m.Delay = 0; p.more() {
		m.Delay = time.Duration(p.within("delay", 0, math.MaxInt64))
	}
	if m.Local = 0; p.more() {
		m.Local = int(p.within("local", 0, maxSteps))
	}
	if m.Micro = 0; p.more() {
		m.Micro = int(p.within("micro", 0, maxSteps))
	}
	if m.Cap = 0; p.more() {
		m.Cap = time.Duration(p.within("cap", 0, math.MaxInt64))
	}
	if m.Part = 0; p.more() {
		m.Part = int(p.within("part", 0, maxCount))
	}
	if m.More = m.More[:0]; p.more() {
		p.left--
		m.More = m.More[:0]
		if n := p.arrayLen("more", MaxPieces); n > 0 {
			m.More = slices.Grow(m.More, n)
			for range n {
				var v Piece
				if v.parseRow(p, "more"); p.err != nil {
					break
				}
				m.More = append(m.More, v)
			}
		}
	}
	if m.Outer = ""; p.more() {
		p.left--
		if s := p.text("outer", maxOuter); m.Outer != string(s) {
			m.Outer = string(s)
		}
	}
	if m.Fragments = 0; p.more() {
		m.Fragments = int(p.within("fragments", 0, MaxFragments))
	}
	if m.Fragment = 0; p.more() {
		m.Fragment = int(p.within("fragment", 0, MaxFragments-1))
	}
	if m.Ahead = m.Ahead[:0]; p.more() {
		p.left--
		m.Ahead = m.Ahead[:0]
		if n := p.arrayLen("ahead", 1); n > 0 {
			m.Ahead = slices.Grow(m.Ahead, n)
			for range n {
				var v Piece
				if v.parseRow(p, "ahead"); p.err != nil {
					break
				}
				m.Ahead = append(m.Ahead, v)
			}
		}
	}
	if m.AheadLocal = 0; p.more() {
		m.AheadLocal = int(p.within("ahead_local", 0, maxSteps))
	}
	if m.Round = 0; p.more() {
		m.Round = p.within("round", 0, math.MaxInt64)
	}
	return p.end()
}

// ParseRelease parses the header of a Release into new memory. Errors are a *ParseError.
func ParseRelease(b []byte) (m Release, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is push.
func (Push) Kind() Kind { return KindPush }

// AppendTo appends the header of m to dst.
func (m Push) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 8)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, m.Basis)
	dst = appendInt(dst, int64(m.Samples))
	dst = appendString(dst, m.Codec)
	dst = appendInt(dst, int64(m.Parts))
	dst = appendInt(dst, int64(m.Part))
	return dst
}

// Parse parses the header of a Push into m and reuses its memory.
func (m *Push) Parse(b []byte) error {
	reader := parse(KindPush, b, 6)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	m.Basis = p.within("basis", 0, math.MaxInt64)
	m.Samples = int(p.within("samples", 0, maxCount))
	p.left--
	if s := p.text("codec", maxCodec); m.Codec != string(s) {
		m.Codec = string(s)
	}
	if m.Parts = 0; p.more() {
		m.Parts = int(p.within("parts", 0, MaxFragments))
	}
	if m.Part = 0; p.more() {
		m.Part = int(p.within("part", 0, MaxFragments-1))
	}
	return p.end()
}

// ParsePush parses the header of a Push into new memory. Errors are a *ParseError.
func ParsePush(b []byte) (m Push, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is params.
func (Params) Kind() Kind { return KindParams }

// AppendTo appends the header of m to dst.
func (m Params) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, int64(m.Parts))
	dst = appendInt(dst, int64(m.Part))
	return dst
}

// Parse parses the header of a Params into m and reuses its memory.
func (m *Params) Parse(b []byte) error {
	reader := parse(KindParams, b, 2)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	if m.Parts = 0; p.more() {
		m.Parts = int(p.within("parts", 0, MaxFragments))
	}
	if m.Part = 0; p.more() {
		m.Part = int(p.within("part", 0, MaxFragments-1))
	}
	return p.end()
}

// ParseParams parses the header of a Params into new memory. Errors are a *ParseError.
func ParseParams(b []byte) (m Params, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is pull.
func (Pull) Kind() Kind { return KindPull }

// AppendTo appends the header of m to dst.
func (m Pull) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.State))
	return dst
}

// Parse parses the header of a Pull into m and reuses its memory.
func (m *Pull) Parse(b []byte) error {
	reader := parse(KindPull, b, 2)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	if m.State = 0; p.more() {
		m.State = int(p.within("state", 0, 1))
	}
	return p.end()
}

// ParsePull parses the header of a Pull into new memory. Errors are a *ParseError.
func ParsePull(b []byte) (m Pull, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is init.
func (Init) Kind() Kind { return KindInit }

// AppendTo appends the header of m to dst.
func (m Init) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendString(dst, m.Rule)
	dst = appendInt(dst, m.Steps)
	dst = appendInt(dst, int64(m.Slots))
	return dst
}

// Parse parses the header of an Init into m and reuses its memory.
func (m *Init) Parse(b []byte) error {
	reader := parse(KindInit, b, 2)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	if m.Rule = ""; p.more() {
		p.left--
		if s := p.text("rule", maxName); m.Rule != string(s) {
			m.Rule = string(s)
		}
	}
	if m.Steps = 0; p.more() {
		m.Steps = p.within("steps", 0, math.MaxInt64)
	}
	if m.Slots = 0; p.more() {
		m.Slots = int(p.within("slots", 0, maxSlots))
	}
	return p.end()
}

// ParseInit parses the header of an Init into new memory. Errors are a *ParseError.
func ParseInit(b []byte) (m Init, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is buffers.
func (Buffers) Kind() Kind { return KindBuffers }

// AppendTo appends the header of m to dst.
func (m Buffers) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Eval)
	return dst
}

// Parse parses the header of a Buffers into m and reuses its memory.
func (m *Buffers) Parse(b []byte) error {
	reader := parse(KindBuffers, b, 2)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Eval = p.within("eval", 0, math.MaxInt64)
	return p.end()
}

// ParseBuffers parses the header of a Buffers into new memory. Errors are a *ParseError.
func ParseBuffers(b []byte) (m Buffers, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is eval-result.
func (EvalResult) Kind() Kind { return KindEvalResult }

// AppendTo appends the header of m to dst.
func (m EvalResult) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Eval)
	dst = appendInt(dst, m.Version)
	dst = appendFloat64(dst, m.LossSum)
	dst = appendInt(dst, m.Correct)
	dst = appendInt(dst, m.Count)
	dst = appendInt(dst, int64(m.Took))
	return dst
}

// Parse parses the header of an EvalResult into m and reuses its memory.
func (m *EvalResult) Parse(b []byte) error {
	reader := parse(KindEvalResult, b, 7)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Eval = p.within("eval", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	m.LossSum = p.real("loss_sum")
	m.Correct = p.within("correct", 0, math.MaxInt64)
	m.Count = p.within("count", 0, math.MaxInt64)
	m.Took = time.Duration(p.within("took", -maxTime, maxTime))
	return p.end()
}

// ParseEvalResult parses the header of an EvalResult into new memory. Errors are a *ParseError.
func ParseEvalResult(b []byte) (m EvalResult, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is save.
func (Save) Kind() Kind { return KindSave }

// AppendTo appends the header of m to dst.
func (m Save) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	dst = appendString(dst, m.ID)
	return dst
}

// Parse parses the header of a Save into m and reuses its memory.
func (m *Save) Parse(b []byte) error {
	reader := parse(KindSave, b, 3)
	p := &reader
	m.Seq = p.within("seq", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	if s := p.text("id", maxName); m.ID != string(s) {
		m.ID = string(s)
	}
	return p.end()
}

// ParseSave parses the header of a Save into new memory. Errors are a *ParseError.
func ParseSave(b []byte) (m Save, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is saved.
func (Saved) Kind() Kind { return KindSaved }

// AppendTo appends the header of m to dst.
func (m Saved) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.ID)
	dst = appendText(dst, m.Err, maxText)
	return dst
}

// Parse parses the header of a Saved into m and reuses its memory.
func (m *Saved) Parse(b []byte) error {
	reader := parse(KindSaved, b, 3)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	p.left--
	if s := p.text("id", maxName); m.ID != string(s) {
		m.ID = string(s)
	}
	p.left--
	if s := p.text("err", maxText); m.Err != string(s) {
		m.Err = string(s)
	}
	return p.end()
}

// ParseSaved parses the header of a Saved into new memory. Errors are a *ParseError.
func ParseSaved(b []byte) (m Saved, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is leave.
func (Leave) Kind() Kind { return KindLeave }

// AppendTo appends the header of m to dst.
func (m Leave) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.Exit))
	dst = appendText(dst, m.Reason, maxText)
	return dst
}

// Parse parses the header of a Leave into m and reuses its memory.
func (m *Leave) Parse(b []byte) error {
	reader := parse(KindLeave, b, 3)
	p := &reader
	m.Worker = star.Worker(p.within("worker", -1, MaxWorkers-1))
	m.Exit = int(p.within("exit", 0, 255))
	p.left--
	if s := p.text("reason", maxText); m.Reason != string(s) {
		m.Reason = string(s)
	}
	return p.end()
}

// ParseLeave parses the header of a Leave into new memory. Errors are a *ParseError.
func ParseLeave(b []byte) (m Leave, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is control.
func (Control) Kind() Kind { return KindControl }

// AppendTo appends the header of m to dst.
func (m Control) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendArray(dst, len(m.Args))
	for _, v := range m.Args {
		dst = appendString(dst, v)
	}
	return dst
}

// Parse parses the header of a Control into m and reuses its memory.
func (m *Control) Parse(b []byte) error {
	reader := parse(KindControl, b, 1)
	p := &reader
	p.left--
	m.Args = m.Args[:0]
	if n := p.arrayLen("args", maxArgs); n > 0 {
		m.Args = slices.Grow(m.Args, n)
		for range n {
			m.Args = append(m.Args, string(p.text("args", maxArg)))
		}
	}
	return p.end()
}

// ParseControl parses the header of a Control into new memory. Errors are a *ParseError.
func ParseControl(b []byte) (m Control, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is reply.
func (Reply) Kind() Kind { return KindReply }

// AppendTo appends the header of m to dst.
func (m Reply) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendText(dst, m.Err, maxText)
	return dst
}

// Parse parses the header of a Reply into m and reuses its memory.
func (m *Reply) Parse(b []byte) error {
	reader := parse(KindReply, b, 1)
	p := &reader
	p.left--
	if s := p.text("err", maxText); m.Err != string(s) {
		m.Err = string(s)
	}
	return p.end()
}

// ParseReply parses the header of a Reply into new memory. Errors are a *ParseError.
func ParseReply(b []byte) (m Reply, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ping.
func (Ping) Kind() Kind { return KindPing }

// AppendTo appends the header of m to dst.
func (m Ping) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Sent)
	dst = appendInt(dst, m.Want)
	return dst
}

// Parse parses the header of a Ping into m and reuses its memory.
func (m *Ping) Parse(b []byte) error {
	reader := parse(KindPing, b, 3)
	p := &reader
	p.left--
	m.Seq = p.raw("seq")
	p.left--
	m.Sent = p.raw("sent")
	m.Want = p.within("want", 0, math.MaxInt64)
	return p.end()
}

// ParsePing parses the header of a Ping into new memory. Errors are a *ParseError.
func ParsePing(b []byte) (m Ping, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is pong.
func (Pong) Kind() Kind { return KindPong }

// AppendTo appends the header of m to dst.
func (m Pong) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Sent)
	dst = appendInt(dst, m.Now)
	return dst
}

// Parse parses the header of a Pong into m and reuses its memory.
func (m *Pong) Parse(b []byte) error {
	reader := parse(KindPong, b, 3)
	p := &reader
	p.left--
	m.Seq = p.raw("seq")
	p.left--
	m.Sent = p.raw("sent")
	p.left--
	m.Now = p.raw("now")
	return p.end()
}

// ParsePong parses the header of a Pong into new memory. Errors are a *ParseError.
func ParsePong(b []byte) (m Pong, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ring.
func (Ring) Kind() Kind { return KindRing }

// AppendTo appends the header of m to dst.
func (m Ring) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 11)
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.From)
	dst = appendArray(dst, len(m.Members))
	for _, v := range m.Members {
		dst = appendInt(dst, int64(v))
	}
	dst = appendString(dst, m.Addr)
	dst = appendArray(dst, len(m.Riders))
	for i := range m.Riders {
		dst = m.Riders[i].appendRow(dst)
	}
	dst = appendString(dst, m.ParentAddr)
	dst = appendInt(dst, m.Of)
	dst = appendInt(dst, int64(m.Wait))
	dst = appendInt(dst, m.MaxStale)
	dst = appendBool(dst, m.Now)
	dst = appendInt(dst, int64(m.Tell))
	return dst
}

// Parse parses the header of a Ring into m and reuses its memory.
func (m *Ring) Parse(b []byte) error {
	reader := parse(KindRing, b, 10)
	p := &reader
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.From = p.within("from", -1, 1<<63-1)
	p.left--
	m.Members = m.Members[:0]
	if n := p.arrayLen("members", MaxWorkers); n > 0 {
		m.Members = slices.Grow(m.Members, n)
		for range n {
			m.Members = append(m.Members, star.Worker(p.between("members", 0, MaxWorkers-1)))
		}
	}
	p.left--
	if s := p.text("addr", maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	p.left--
	m.Riders = m.Riders[:0]
	if n := p.arrayLen("riders", MaxWorkers); n > 0 {
		m.Riders = slices.Grow(m.Riders, n)
		for range n {
			var v Rider
			if v.parseRow(p, "riders"); p.err != nil {
				break
			}
			m.Riders = append(m.Riders, v)
		}
	}
	p.left--
	if s := p.text("parent_addr", maxName); m.ParentAddr != string(s) {
		m.ParentAddr = string(s)
	}
	m.Of = p.within("of", 0, math.MaxInt64)
	m.Wait = time.Duration(p.within("wait", -maxTime, maxTime))
	m.MaxStale = p.within("max_stale", 0, math.MaxInt64)
	p.left--
	m.Now = p.truth("now")
	if m.Tell = 0; p.more() {
		m.Tell = time.Duration(p.within("tell", 0, math.MaxInt64))
	}
	return p.end()
}

// ParseRing parses the header of a Ring into new memory. Errors are a *ParseError.
func ParseRing(b []byte) (m Ring, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is formed.
func (Formed) Kind() Kind { return KindFormed }

// AppendTo appends the header of m to dst.
func (m Formed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	return dst
}

// Parse parses the header of a Formed into m and reuses its memory.
func (m *Formed) Parse(b []byte) error {
	reader := parse(KindFormed, b, 3)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	return p.end()
}

// ParseFormed parses the header of a Formed into new memory. Errors are a *ParseError.
func ParseFormed(b []byte) (m Formed, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is tally.
func (Tally) Kind() Kind { return KindTally }

// AppendTo appends the header of m to dst.
func (m Tally) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 9)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, m.Hash)
	dst = appendArray(dst, len(m.Carried))
	for i := range m.Carried {
		dst = m.Carried[i].appendRow(dst)
	}
	dst = appendArray(dst, len(m.Dropped))
	for i := range m.Dropped {
		dst = m.Dropped[i].appendRow(dst)
	}
	dst = appendFloat64(dst, m.Sum2)
	dst = appendArray(dst, len(m.Samples))
	for _, v := range m.Samples {
		dst = appendInt(dst, int64(v))
	}
	dst = appendArray(dst, len(m.Behind))
	for _, v := range m.Behind {
		dst = appendInt(dst, int64(v))
	}
	return dst
}

// Parse parses the header of a Tally into m and reuses its memory.
func (m *Tally) Parse(b []byte) error {
	reader := parse(KindTally, b, 7)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	m.Hash = p.within("hash", 0, 1<<32-1)
	p.left--
	m.Carried = m.Carried[:0]
	if n := p.arrayLen("carried", MaxWorkers); n > 0 {
		m.Carried = slices.Grow(m.Carried, n)
		for range n {
			var v Gradient
			if v.parseRow(p, "carried"); p.err != nil {
				break
			}
			m.Carried = append(m.Carried, v)
		}
	}
	p.left--
	m.Dropped = m.Dropped[:0]
	if n := p.arrayLen("dropped", MaxWorkers); n > 0 {
		m.Dropped = slices.Grow(m.Dropped, n)
		for range n {
			var v Gradient
			if v.parseRow(p, "dropped"); p.err != nil {
				break
			}
			m.Dropped = append(m.Dropped, v)
		}
	}
	p.left--
	m.Sum2 = p.real("sum2")
	if m.Samples = m.Samples[:0]; p.more() {
		p.left--
		m.Samples = m.Samples[:0]
		if n := p.arrayLen("samples", MaxWorkers); n > 0 {
			m.Samples = slices.Grow(m.Samples, n)
			for range n {
				m.Samples = append(m.Samples, int(p.between("samples", 0, maxCount)))
			}
		}
	}
	if m.Behind = m.Behind[:0]; p.more() {
		p.left--
		m.Behind = m.Behind[:0]
		if n := p.arrayLen("behind", MaxWorkers); n > 0 {
			m.Behind = slices.Grow(m.Behind, n)
			for range n {
				m.Behind = append(m.Behind, int(p.between("behind", 0, maxCount)))
			}
		}
	}
	return p.end()
}

// ParseTally parses the header of a Tally into new memory. Errors are a *ParseError.
func ParseTally(b []byte) (m Tally, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is fault.
func (Fault) Kind() Kind { return KindFault }

// AppendTo appends the header of m to dst.
func (m Fault) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, int64(m.Suspect))
	dst = appendText(dst, m.Reason, maxText)
	return dst
}

// Parse parses the header of a Fault into m and reuses its memory.
func (m *Fault) Parse(b []byte) error {
	reader := parse(KindFault, b, 4)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Suspect = int(p.within("suspect", -1, MaxWorkers-1))
	p.left--
	if s := p.text("reason", maxText); m.Reason != string(s) {
		m.Reason = string(s)
	}
	return p.end()
}

// ParseFault parses the header of a Fault into new memory. Errors are a *ParseError.
func ParseFault(b []byte) (m Fault, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is branch.
func (Branch) Kind() Kind { return KindBranch }

// AppendTo appends the header of m to dst.
func (m Branch) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, int64(m.Parent))
	dst = appendString(dst, m.ParentAddr)
	dst = appendBool(dst, m.Relay)
	dst = appendArray(dst, len(m.Children))
	for i := range m.Children {
		dst = m.Children[i].appendRow(dst)
	}
	dst = appendArray(dst, len(m.Below))
	for i := range m.Below {
		dst = m.Below[i].appendRow(dst)
	}
	return dst
}

// Parse parses the header of a Branch into m and reuses its memory.
func (m *Branch) Parse(b []byte) error {
	reader := parse(KindBranch, b, 6)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	m.Parent = int(p.within("parent", -1, MaxWorkers-1))
	p.left--
	if s := p.text("parent_addr", maxName); m.ParentAddr != string(s) {
		m.ParentAddr = string(s)
	}
	p.left--
	m.Relay = p.truth("relay")
	p.left--
	m.Children = m.Children[:0]
	if n := p.arrayLen("children", MaxWorkers); n > 0 {
		m.Children = slices.Grow(m.Children, n)
		for range n {
			var v Child
			if v.parseRow(p, "children"); p.err != nil {
				break
			}
			m.Children = append(m.Children, v)
		}
	}
	if m.Below = m.Below[:0]; p.more() {
		p.left--
		m.Below = m.Below[:0]
		if n := p.arrayLen("below", MaxBelow); n > 0 {
			m.Below = slices.Grow(m.Below, n)
			for range n {
				var v Below
				if v.parseRow(p, "below"); p.err != nil {
					break
				}
				m.Below = append(m.Below, v)
			}
		}
	}
	return p.end()
}

// ParseBranch parses the header of a Branch into new memory. Errors are a *ParseError.
func ParseBranch(b []byte) (m Branch, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is bundle.
func (Bundle) Kind() Kind { return KindBundle }

// AppendTo appends the header of m to dst.
func (m Bundle) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendArray(dst, len(m.Members))
	for i := range m.Members {
		dst = m.Members[i].appendRow(dst)
	}
	return dst
}

// Parse parses the header of a Bundle into m and reuses its memory.
func (m *Bundle) Parse(b []byte) error {
	reader := parse(KindBundle, b, 3)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	p.left--
	m.Members = m.Members[:0]
	if n := p.arrayLen("members", MaxWorkers); n > 0 {
		m.Members = slices.Grow(m.Members, n)
		for range n {
			var v Share
			if v.parseRow(p, "members"); p.err != nil {
				break
			}
			m.Members = append(m.Members, v)
		}
	}
	return p.end()
}

// ParseBundle parses the header of a Bundle into new memory. Errors are a *ParseError.
func ParseBundle(b []byte) (m Bundle, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is detach.
func (Detach) Kind() Kind { return KindDetach }

// AppendTo appends the header of m to dst.
func (m Detach) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	return dst
}

// Parse parses the header of a Detach into m and reuses its memory.
func (m *Detach) Parse(b []byte) error {
	reader := parse(KindDetach, b, 2)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	return p.end()
}

// ParseDetach parses the header of a Detach into new memory. Errors are a *ParseError.
func ParseDetach(b []byte) (m Detach, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is want.
func (Want) Kind() Kind { return KindWant }

// AppendTo appends the header of m to dst.
func (m Want) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Version)
	return dst
}

// Parse parses the header of a Want into m and reuses its memory.
func (m *Want) Parse(b []byte) error {
	reader := parse(KindWant, b, 2)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	return p.end()
}

// ParseWant parses the header of a Want into new memory. Errors are a *ParseError.
func ParseWant(b []byte) (m Want, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is compression.
func (Compression) Kind() Kind { return KindCompression }

// AppendTo appends the header of m to dst.
func (m Compression) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Version)
	dst = appendString(dst, m.Codec)
	dst = appendText(dst, m.Why, maxText)
	return dst
}

// Parse parses the header of a Compression into m and reuses its memory.
func (m *Compression) Parse(b []byte) error {
	reader := parse(KindCompression, b, 4)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	if s := p.text("codec", maxCodec); m.Codec != string(s) {
		m.Codec = string(s)
	}
	p.left--
	if s := p.text("why", maxText); m.Why != string(s) {
		m.Why = string(s)
	}
	return p.end()
}

// ParseCompression parses the header of a Compression into new memory. Errors are a *ParseError.
func ParseCompression(b []byte) (m Compression, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is enlist.
func (Enlist) Kind() Kind { return KindEnlist }

// AppendTo appends the header of m to dst.
func (m Enlist) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 14)
	dst = appendString(dst, m.Job)
	dst = appendString(dst, m.Life)
	dst = appendInt(dst, int64(m.Rank))
	dst = appendString(dst, m.Host)
	dst = appendString(dst, m.Actuator)
	dst = appendString(dst, m.Model)
	dst = appendInt(dst, m.Params)
	dst = appendInt(dst, int64(m.Workers))
	dst = appendInt(dst, int64(m.Servers))
	dst = appendBool(dst, m.Fixed)
	dst = m.Capacity.appendRow(dst)
	dst = m.Freed.appendRow(dst)
	dst = appendFloat64(dst, m.CostCPU)
	dst = appendFloat64(dst, m.CostNet)
	return dst
}

// Parse parses the header of an Enlist into m and reuses its memory.
func (m *Enlist) Parse(b []byte) error {
	reader := parse(KindEnlist, b, 14)
	p := &reader
	p.left--
	if s := p.text("job", maxName); m.Job != string(s) {
		m.Job = string(s)
	}
	p.left--
	if s := p.text("life", maxName); m.Life != string(s) {
		m.Life = string(s)
	}
	m.Rank = int(p.within("rank", -1, MaxWorkers-1))
	p.left--
	if s := p.text("host", maxName); m.Host != string(s) {
		m.Host = string(s)
	}
	p.left--
	if s := p.text("actuator", maxName); m.Actuator != string(s) {
		m.Actuator = string(s)
	}
	p.left--
	if s := p.text("model", maxModel); m.Model != string(s) {
		m.Model = string(s)
	}
	m.Params = p.within("params", 0, MaxParams)
	m.Workers = int(p.within("workers", 0, MaxWorkers))
	m.Servers = int(p.within("servers", 0, MaxShards))
	p.left--
	m.Fixed = p.truth("fixed")
	p.left--
	m.Capacity.parseRow(p, "capacity")
	p.left--
	m.Freed.parseRow(p, "freed")
	p.left--
	m.CostCPU = p.positive("cost_cpu")
	p.left--
	m.CostNet = p.positive("cost_net")
	return p.end()
}

// ParseEnlist parses the header of an Enlist into new memory. Errors are a *ParseError.
func ParseEnlist(b []byte) (m Enlist, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is usage.
func (Usage) Kind() Kind { return KindUsage }

// AppendTo appends the header of m to dst.
func (m Usage) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 10)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Step)
	dst = appendString(dst, m.Mode)
	dst = appendBool(dst, m.Sync)
	dst = m.Own.appendRow(dst)
	dst = m.Host.appendRow(dst)
	dst = appendArray(dst, len(m.Times))
	for _, v := range m.Times {
		dst = appendInt(dst, int64(v))
	}
	dst = appendInt(dst, int64(m.Delay))
	dst = appendArray(dst, len(m.Leases))
	for i := range m.Leases {
		dst = m.Leases[i].appendRow(dst)
	}
	dst = appendInt(dst, m.Free)
	return dst
}

// Parse parses the header of a Usage into m and reuses its memory.
func (m *Usage) Parse(b []byte) error {
	reader := parse(KindUsage, b, 8)
	p := &reader
	m.Seq = p.within("seq", 0, math.MaxInt64)
	m.Step = p.within("step", 0, math.MaxInt64)
	p.left--
	if s := p.text("mode", maxModel); m.Mode != string(s) {
		m.Mode = string(s)
	}
	p.left--
	m.Sync = p.truth("sync")
	p.left--
	m.Own.parseRow(p, "own")
	p.left--
	m.Host.parseRow(p, "host")
	p.left--
	m.Times = m.Times[:0]
	if n := p.arrayLen("times", MaxWorkers); n > 0 {
		m.Times = slices.Grow(m.Times, n)
		for range n {
			m.Times = append(m.Times, time.Duration(p.between("times", 0, maxTime)))
		}
	}
	m.Delay = time.Duration(p.within("delay", 0, maxTime))
	if m.Leases = m.Leases[:0]; p.more() {
		p.left--
		m.Leases = m.Leases[:0]
		if n := p.arrayLen("leases", MaxLeases); n > 0 {
			m.Leases = slices.Grow(m.Leases, n)
			for range n {
				var v Lease
				if v.parseRow(p, "leases"); p.err != nil {
					break
				}
				m.Leases = append(m.Leases, v)
			}
		}
	}
	if m.Free = 0; p.more() {
		m.Free = p.within("free", 0, math.MaxInt64)
	}
	return p.end()
}

// ParseUsage parses the header of a Usage into new memory. Errors are a *ParseError.
func ParseUsage(b []byte) (m Usage, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ask.
func (Ask) Kind() Kind { return KindAsk }

// AppendTo appends the header of m to dst.
func (m Ask) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.ID)
	dst = appendString(dst, m.Mode)
	dst = m.Extra.appendRow(dst)
	dst = appendInt(dst, int64(m.Lag))
	dst = appendInt(dst, int64(m.Timeout))
	return dst
}

// Parse parses the header of an Ask into m and reuses its memory.
func (m *Ask) Parse(b []byte) error {
	reader := parse(KindAsk, b, 5)
	p := &reader
	m.ID = p.within("id", 0, math.MaxInt64)
	p.left--
	if s := p.text("mode", maxModel); m.Mode != string(s) {
		m.Mode = string(s)
	}
	p.left--
	m.Extra.parseRow(p, "extra")
	m.Lag = time.Duration(p.within("lag", 0, maxTime))
	m.Timeout = time.Duration(p.within("timeout", 0, maxTime))
	return p.end()
}

// ParseAsk parses the header of an Ask into new memory. Errors are a *ParseError.
func ParseAsk(b []byte) (m Ask, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is grant.
func (Grant) Kind() Kind { return KindGrant }

// AppendTo appends the header of m to dst.
func (m Grant) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.ID)
	dst = appendBool(dst, m.OK)
	dst = appendInt(dst, int64(m.Lease))
	dst = appendText(dst, m.Why, maxText)
	return dst
}

// Parse parses the header of a Grant into m and reuses its memory.
func (m *Grant) Parse(b []byte) error {
	reader := parse(KindGrant, b, 4)
	p := &reader
	m.ID = p.within("id", 0, math.MaxInt64)
	p.left--
	m.OK = p.truth("ok")
	m.Lease = time.Duration(p.within("lease", 0, maxTime))
	p.left--
	if s := p.text("why", maxText); m.Why != string(s) {
		m.Why = string(s)
	}
	return p.end()
}

// ParseGrant parses the header of a Grant into new memory. Errors are a *ParseError.
func ParseGrant(b []byte) (m Grant, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is order.
func (Order) Kind() Kind { return KindOrder }

// AppendTo appends the header of m to dst.
func (m Order) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendInt(dst, m.ID)
	dst = appendInt(dst, int64(m.Delay))
	dst = appendInt(dst, int64(m.Early))
	dst = appendInt(dst, int64(m.Lease))
	dst = appendString(dst, m.For)
	dst = appendText(dst, m.Why, maxText)
	return dst
}

// Parse parses the header of an Order into m and reuses its memory.
func (m *Order) Parse(b []byte) error {
	reader := parse(KindOrder, b, 6)
	p := &reader
	m.ID = p.within("id", 0, math.MaxInt64)
	m.Delay = time.Duration(p.within("delay", 0, maxTime))
	m.Early = time.Duration(p.within("early", 0, maxTime))
	m.Lease = time.Duration(p.within("lease", 0, maxTime))
	p.left--
	if s := p.text("for", maxName); m.For != string(s) {
		m.For = string(s)
	}
	p.left--
	if s := p.text("why", maxText); m.Why != string(s) {
		m.Why = string(s)
	}
	return p.end()
}

// ParseOrder parses the header of an Order into new memory. Errors are a *ParseError.
func ParseOrder(b []byte) (m Order, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is obeyed.
func (Obeyed) Kind() Kind { return KindObeyed }

// AppendTo appends the header of m to dst.
func (m Obeyed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.ID)
	dst = appendInt(dst, int64(m.Delay))
	dst = appendText(dst, m.Err, maxText)
	return dst
}

// Parse parses the header of an Obeyed into m and reuses its memory.
func (m *Obeyed) Parse(b []byte) error {
	reader := parse(KindObeyed, b, 3)
	p := &reader
	m.ID = p.within("id", 0, math.MaxInt64)
	m.Delay = time.Duration(p.within("delay", 0, maxTime))
	p.left--
	if s := p.text("err", maxText); m.Err != string(s) {
		m.Err = string(s)
	}
	return p.end()
}

// ParseObeyed parses the header of an Obeyed into new memory. Errors are a *ParseError.
func ParseObeyed(b []byte) (m Obeyed, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is yield.
func (Yield) Kind() Kind { return KindYield }

// AppendTo appends the header of m to dst.
func (m Yield) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendInt(dst, m.ID)
	return dst
}

// Parse parses the header of a Yield into m and reuses its memory.
func (m *Yield) Parse(b []byte) error {
	reader := parse(KindYield, b, 1)
	p := &reader
	m.ID = p.within("id", 0, math.MaxInt64)
	return p.end()
}

// ParseYield parses the header of a Yield into new memory. Errors are a *ParseError.
func ParseYield(b []byte) (m Yield, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is adopt.
func (Adopt) Kind() Kind { return KindAdopt }

// AppendTo appends the header of m to dst.
func (m Adopt) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Addr)
	dst = appendInt(dst, m.From)
	dst = appendInt(dst, m.To)
	return dst
}

// Parse parses the header of an Adopt into m and reuses its memory.
func (m *Adopt) Parse(b []byte) error {
	reader := parse(KindAdopt, b, 6)
	p := &reader
	m.Move = p.within("move", 0, math.MaxInt64)
	m.Stage = AdoptStage(p.within("stage", 0, int64(Forget)))
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	p.left--
	if s := p.text("addr", maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	m.From = p.within("from", 0, MaxParams)
	m.To = p.within("to", 0, MaxParams)
	return p.end()
}

// ParseAdopt parses the header of an Adopt into new memory. Errors are a *ParseError.
func ParseAdopt(b []byte) (m Adopt, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is hand.
func (Hand) Kind() Kind { return KindHand }

// AppendTo appends the header of m to dst.
func (m Hand) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Seq)
	return dst
}

// Parse parses the header of a Hand into m and reuses its memory.
func (m *Hand) Parse(b []byte) error {
	reader := parse(KindHand, b, 4)
	p := &reader
	m.Move = p.within("move", 0, math.MaxInt64)
	m.Stage = HandStage(p.within("stage", 0, int64(Shared)))
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Seq = p.within("seq", 0, math.MaxInt64)
	return p.end()
}

// ParseHand parses the header of a Hand into new memory. Errors are a *ParseError.
func ParseHand(b []byte) (m Hand, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is moved.
func (Moved) Kind() Kind { return KindMoved }

// AppendTo appends the header of m to dst.
func (m Moved) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Version)
	dst = appendText(dst, m.Err, maxText)
	return dst
}

// Parse parses the header of a Moved into m and reuses its memory.
func (m *Moved) Parse(b []byte) error {
	reader := parse(KindMoved, b, 5)
	p := &reader
	m.Move = p.within("move", 0, math.MaxInt64)
	m.Stage = MovedStage(p.within("stage", 0, int64(Complete)))
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	if s := p.text("err", maxText); m.Err != string(s) {
		m.Err = string(s)
	}
	return p.end()
}

// ParseMoved parses the header of a Moved into new memory. Errors are a *ParseError.
func ParseMoved(b []byte) (m Moved, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is state.
func (State) Kind() Kind { return KindState }

// AppendTo appends the header of m to dst.
func (m State) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 8)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	dst = appendString(dst, m.Rule)
	dst = appendInt(dst, m.Steps)
	dst = appendInt(dst, int64(m.Slots))
	dst = appendInt(dst, int64(m.Pending))
	dst = appendArray(dst, len(m.Lives))
	for _, v := range m.Lives {
		dst = appendInt(dst, v)
	}
	return dst
}

// Parse parses the header of a State into m and reuses its memory.
func (m *State) Parse(b []byte) error {
	reader := parse(KindState, b, 7)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Seq = p.within("seq", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	if s := p.text("rule", maxName); m.Rule != string(s) {
		m.Rule = string(s)
	}
	m.Steps = p.within("steps", 0, math.MaxInt64)
	m.Slots = int(p.within("slots", 0, maxSlots))
	m.Pending = int(p.within("pending", 0, MaxWorkers))
	if m.Lives = m.Lives[:0]; p.more() {
		p.left--
		m.Lives = m.Lives[:0]
		if n := p.arrayLen("lives", maxRanks); n > 0 {
			m.Lives = slices.Grow(m.Lives, n)
			for range n {
				m.Lives = append(m.Lives, p.between("lives", 0, 1<<63-1))
			}
		}
	}
	return p.end()
}

// ParseState parses the header of a State into new memory. Errors are a *ParseError.
func ParseState(b []byte) (m State, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is slot.
func (Slot) Kind() Kind { return KindSlot }

// AppendTo appends the header of m to dst.
func (m Slot) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Name)
	return dst
}

// Parse parses the header of a Slot into m and reuses its memory.
func (m *Slot) Parse(b []byte) error {
	reader := parse(KindSlot, b, 2)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	p.left--
	if s := p.text("name", maxName); m.Name != string(s) {
		m.Name = string(s)
	}
	return p.end()
}

// ParseSlot parses the header of a Slot into new memory. Errors are a *ParseError.
func ParseSlot(b []byte) (m Slot, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is route.
func (Route) Kind() Kind { return KindRoute }

// AppendTo appends the header of m to dst.
func (m Route) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Addr)
	return dst
}

// Parse parses the header of a Route into m and reuses its memory.
func (m *Route) Parse(b []byte) error {
	reader := parse(KindRoute, b, 3)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	p.left--
	if s := p.text("addr", maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	return p.end()
}

// ParseRoute parses the header of a Route into new memory. Errors are a *ParseError.
func ParseRoute(b []byte) (m Route, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is cancel.
func (Cancel) Kind() Kind { return KindCancel }

// AppendTo appends the header of m to dst.
func (m Cancel) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	return dst
}

// Parse parses the header of a Cancel into m and reuses its memory.
func (m *Cancel) Parse(b []byte) error {
	reader := parse(KindCancel, b, 2)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	return p.end()
}

// ParseCancel parses the header of a Cancel into new memory. Errors are a *ParseError.
func ParseCancel(b []byte) (m Cancel, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is computed.
func (Computed) Kind() Kind { return KindComputed }

// AppendTo appends the header of m to dst.
func (m Computed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendInt(dst, int64(m.Samples))
	return dst
}

// Parse parses the header of a Computed into m and reuses its memory.
func (m *Computed) Parse(b []byte) error {
	reader := parse(KindComputed, b, 4)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	m.Samples = int(p.within("samples", 0, maxCount))
	return p.end()
}

// ParseComputed parses the header of a Computed into new memory. Errors are a *ParseError.
func ParseComputed(b []byte) (m Computed, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is close.
func (Close) Kind() Kind { return KindClose }

// AppendTo appends the header of m to dst.
func (m Close) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendArray(dst, len(m.First))
	for _, v := range m.First {
		dst = appendInt(dst, int64(v))
	}
	dst = appendArray(dst, len(m.Late))
	for _, v := range m.Late {
		dst = appendInt(dst, int64(v))
	}
	dst = appendInt(dst, m.Total)
	return dst
}

// Parse parses the header of a Close into m and reuses its memory.
func (m *Close) Parse(b []byte) error {
	reader := parse(KindClose, b, 5)
	p := &reader
	m.Generation = p.within("generation", 0, math.MaxInt64)
	m.Version = p.within("version", 0, math.MaxInt64)
	p.left--
	m.First = m.First[:0]
	if n := p.arrayLen("first", MaxWorkers); n > 0 {
		m.First = slices.Grow(m.First, n)
		for range n {
			m.First = append(m.First, star.Worker(p.between("first", 0, MaxWorkers-1)))
		}
	}
	p.left--
	m.Late = m.Late[:0]
	if n := p.arrayLen("late", MaxWorkers); n > 0 {
		m.Late = slices.Grow(m.Late, n)
		for range n {
			m.Late = append(m.Late, star.Worker(p.between("late", 0, MaxWorkers-1)))
		}
	}
	m.Total = p.within("total", 0, math.MaxInt64)
	return p.end()
}

// ParseClose parses the header of a Close into new memory. Errors are a *ParseError.
func ParseClose(b []byte) (m Close, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is poison.
func (Poison) Kind() Kind { return KindPoison }

// AppendTo appends the header of m to dst.
func (m Poison) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendString(dst, m.Cause)
	dst = appendFloat64(dst, m.Value)
	dst = appendBool(dst, m.Over)
	dst = appendText(dst, m.Where, maxText)
	return dst
}

// Parse parses the header of a Poison into m and reuses its memory.
func (m *Poison) Parse(b []byte) error {
	reader := parse(KindPoison, b, 7)
	p := &reader
	m.Shard = int(p.within("shard", -1, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Step = p.within("step", 0, math.MaxInt64)
	p.left--
	if s := p.text("cause", maxCodec); m.Cause != string(s) {
		m.Cause = string(s)
	}
	p.left--
	m.Value = p.real("value")
	p.left--
	m.Over = p.truth("over")
	p.left--
	if s := p.text("where", maxText); m.Where != string(s) {
		m.Where = string(s)
	}
	return p.end()
}

// ParsePoison parses the header of a Poison into new memory. Errors are a *ParseError.
func ParsePoison(b []byte) (m Poison, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ballot.
func (Ballot) Kind() Kind { return KindBallot }

// AppendTo appends the header of m to dst.
func (m Ballot) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.From))
	dst = appendInt(dst, int64(m.To))
	return dst
}

// Parse parses the header of a Ballot into m and reuses its memory.
func (m *Ballot) Parse(b []byte) error {
	reader := parse(KindBallot, b, 2)
	p := &reader
	m.From = int(p.within("from", 0, MaxCandidates-1))
	m.To = int(p.within("to", 0, MaxCandidates-1))
	return p.end()
}

// ParseBallot parses the header of a Ballot into new memory. Errors are a *ParseError.
func ParseBallot(b []byte) (m Ballot, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is standing.
func (Standing) Kind() Kind { return KindStanding }

// AppendTo appends the header of m to dst.
func (m Standing) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.Term)
	dst = appendInt(dst, m.Seq)
	dst = appendArray(dst, len(m.Shards))
	for i := range m.Shards {
		dst = m.Shards[i].appendRow(dst)
	}
	dst = appendArray(dst, len(m.Applied))
	for i := range m.Applied {
		dst = m.Applied[i].appendRow(dst)
	}
	return dst
}

// Parse parses the header of a Standing into m and reuses its memory.
func (m *Standing) Parse(b []byte) error {
	reader := parse(KindStanding, b, 3)
	p := &reader
	m.Term = p.within("term", 0, math.MaxInt64)
	m.Seq = p.within("seq", 0, math.MaxInt64)
	p.left--
	m.Shards = m.Shards[:0]
	if n := p.arrayLen("shards", MaxShards); n > 0 {
		m.Shards = slices.Grow(m.Shards, n)
		for range n {
			var v ShardVersion
			if v.parseRow(p, "shards"); p.err != nil {
				break
			}
			m.Shards = append(m.Shards, v)
		}
	}
	if m.Applied = m.Applied[:0]; p.more() {
		p.left--
		m.Applied = m.Applied[:0]
		if n := p.arrayLen("applied", MaxApplied); n > 0 {
			m.Applied = slices.Grow(m.Applied, n)
			for range n {
				var v Apply
				if v.parseRow(p, "applied"); p.err != nil {
					break
				}
				m.Applied = append(m.Applied, v)
			}
		}
	}
	return p.end()
}

// ParseStanding parses the header of a Standing into new memory. Errors are a *ParseError.
func ParseStanding(b []byte) (m Standing, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is elsewhere.
func (Elsewhere) Kind() Kind { return KindElsewhere }

// AppendTo appends the header of m to dst.
func (m Elsewhere) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 1)
	dst = appendString(dst, m.Addr)
	return dst
}

// Parse parses the header of an Elsewhere into m and reuses its memory.
func (m *Elsewhere) Parse(b []byte) error {
	reader := parse(KindElsewhere, b, 1)
	p := &reader
	p.left--
	if s := p.text("addr", maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	return p.end()
}

// ParseElsewhere parses the header of an Elsewhere into new memory. Errors are a *ParseError.
func ParseElsewhere(b []byte) (m Elsewhere, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is view.
func (View) Kind() Kind { return KindView }

// AppendTo appends the header of m to dst.
func (m View) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Term)
	dst = appendArray(dst, len(m.Holders))
	for i := range m.Holders {
		dst = m.Holders[i].appendRow(dst)
	}
	dst = appendInt(dst, m.From)
	dst = appendInt(dst, m.To)
	return dst
}

// Parse parses the header of a View into m and reuses its memory.
func (m *View) Parse(b []byte) error {
	reader := parse(KindView, b, 5)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Term = p.within("term", 0, math.MaxInt64)
	p.left--
	m.Holders = m.Holders[:0]
	if n := p.arrayLen("holders", maxHolders); n > 0 {
		m.Holders = slices.Grow(m.Holders, n)
		for range n {
			var v Holder
			if v.parseRow(p, "holders"); p.err != nil {
				break
			}
			m.Holders = append(m.Holders, v)
		}
	}
	m.From = p.within("from", 0, MaxParams)
	m.To = p.within("to", 0, MaxParams)
	return p.end()
}

// ParseView parses the header of a View into new memory. Errors are a *ParseError.
func ParseView(b []byte) (m View, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is held.
func (Held) Kind() Kind { return KindHeld }

// AppendTo appends the header of m to dst.
func (m Held) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Term)
	dst = appendInt(dst, m.Seq)
	return dst
}

// Parse parses the header of a Held into m and reuses its memory.
func (m *Held) Parse(b []byte) error {
	reader := parse(KindHeld, b, 3)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Term = p.within("term", 0, math.MaxInt64)
	m.Seq = p.within("seq", 0, math.MaxInt64)
	return p.end()
}

// ParseHeld parses the header of a Held into new memory. Errors are a *ParseError.
func ParseHeld(b []byte) (m Held, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is turn.
func (Turn) Kind() Kind { return KindTurn }

// AppendTo appends the header of m to dst.
func (m Turn) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Term)
	return dst
}

// Parse parses the header of a Turn into m and reuses its memory.
func (m *Turn) Parse(b []byte) error {
	reader := parse(KindTurn, b, 3)
	p := &reader
	m.Shard = int(p.within("shard", 0, MaxShards-1))
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	m.Term = p.within("term", 0, math.MaxInt64)
	return p.end()
}

// ParseTurn parses the header of a Turn into new memory. Errors are a *ParseError.
func ParseTurn(b []byte) (m Turn, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is ahead.
func (Ahead) Kind() Kind { return KindAhead }

// AppendTo appends the header of m to dst.
func (m Ahead) AppendTo(dst []byte) []byte { return Fire(m).AppendTo(dst) }

// Parse parses the header of an Ahead into m and reuses its memory.
func (m *Ahead) Parse(b []byte) error { return (*Fire)(m).parse(KindAhead, b) }

// ParseAhead parses the header of an Ahead into new memory. Errors are a *ParseError.
func ParseAhead(b []byte) (m Ahead, err error) {
	err = m.Parse(b)
	return m, err
}

// Kind is halt.
func (Halt) Kind() Kind { return KindHalt }

// AppendTo appends the header of m to dst.
func (m Halt) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendText(dst, m.Reason, maxText)
	return dst
}

// Parse parses the header of a Halt into m and reuses its memory.
func (m *Halt) Parse(b []byte) error {
	reader := parse(KindHalt, b, 2)
	p := &reader
	m.Worker = star.Worker(p.within("worker", 0, MaxWorkers-1))
	p.left--
	if s := p.text("reason", maxText); m.Reason != string(s) {
		m.Reason = string(s)
	}
	return p.end()
}

// ParseHalt parses the header of a Halt into new memory. Errors are a *ParseError.
func ParseHalt(b []byte) (m Halt, err error) {
	err = m.Parse(b)
	return m, err
}

func (m *Amounts) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendFloat64(dst, m.CPU)
	dst = appendFloat64(dst, m.In)
	dst = appendFloat64(dst, m.Out)
	return dst
}

func (m *Amounts) parseRow(p *parser, under string) {
	extra := p.row(under, 3)
	m.CPU = p.positive(under)
	m.In = p.positive(under)
	m.Out = p.positive(under)
	p.skip(extra)
}

func (m *Apply) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.Seq)
	dst = appendFloat64(dst, m.Norm)
	dst = appendFloat64(dst, m.Factor)
	return dst
}

func (m *Apply) parseRow(p *parser, under string) {
	extra := p.row(under, 3)
	m.Seq = p.between(under, 0, math.MaxInt64)
	m.Norm = p.real(under)
	m.Factor = p.real(under)
	p.skip(extra)
}

func (m *Below) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Child))
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, int64(m.Samples))
	return dst
}

func (m *Below) parseRow(p *parser, under string) {
	extra := p.row(under, 4)
	m.Child = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Worker = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Step = p.between(under, 0, math.MaxInt64)
	m.Samples = int(p.between(under, 0, maxCount))
	p.skip(extra)
}

func (m *Child) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	return dst
}

func (m *Child) parseRow(p *parser, under string) {
	extra := p.row(under, 2)
	m.Worker = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Step = p.between(under, 0, math.MaxInt64)
	p.skip(extra)
}

func (m *Gradient) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendFloat32(dst, m.Weight)
	return dst
}

func (m *Gradient) parseRow(p *parser, under string) {
	extra := p.row(under, 3)
	m.Worker = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Step = p.between(under, 0, math.MaxInt64)
	m.Weight = float32(p.real(under))
	p.skip(extra)
}

func (m *Holder) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Rank))
	dst = appendString(dst, m.Addr)
	return dst
}

func (m *Holder) parseRow(p *parser, under string) {
	extra := p.row(under, 2)
	m.Rank = int(p.between(under, 0, MaxWorkers-1))
	if s := p.text(under, maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	p.skip(extra)
}

func (m *Lease) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendText(dst, m.Name, maxLeaseText)
	dst = appendText(dst, m.State, maxLeaseText)
	dst = appendText(dst, m.What, maxLeaseText)
	dst = appendText(dst, m.Owner, maxLeaseText)
	dst = appendText(dst, m.Why, maxLeaseText)
	return dst
}

func (m *Lease) parseRow(p *parser, under string) {
	extra := p.row(under, 5)
	if s := p.text(under, maxLeaseText); m.Name != string(s) {
		m.Name = string(s)
	}
	if s := p.text(under, maxLeaseText); m.State != string(s) {
		m.State = string(s)
	}
	if s := p.text(under, maxLeaseText); m.What != string(s) {
		m.What = string(s)
	}
	if s := p.text(under, maxLeaseText); m.Owner != string(s) {
		m.Owner = string(s)
	}
	if s := p.text(under, maxLeaseText); m.Why != string(s) {
		m.Why = string(s)
	}
	p.skip(extra)
}

func (m *Piece) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, m.Start)
	dst = appendInt(dst, int64(m.Count))
	return dst
}

func (m *Piece) parseRow(p *parser, under string) {
	extra := p.row(under, 2)
	m.Start = p.between(under, 0, math.MaxInt64)
	m.Count = int(p.between(under, 1, maxCount))
	p.skip(extra)
}

func (m *Rider) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.Parent))
	return dst
}

func (m *Rider) parseRow(p *parser, under string) {
	extra := p.row(under, 2)
	m.Worker = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Parent = star.Worker(p.between(under, 0, MaxWorkers-1))
	p.skip(extra)
}

func (m *ShardInfo) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Addr)
	dst = appendInt(dst, m.From)
	dst = appendInt(dst, m.To)
	return dst
}

func (m *ShardInfo) parseRow(p *parser, under string) {
	extra := p.row(under, 4)
	m.Shard = int(p.between(under, 0, MaxShards-1))
	if s := p.text(under, maxName); m.Addr != string(s) {
		m.Addr = string(s)
	}
	m.From = p.between(under, 0, MaxParams)
	m.To = p.between(under, 0, MaxParams)
	p.skip(extra)
}

func (m *ShardVersion) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Version)
	return dst
}

func (m *ShardVersion) parseRow(p *parser, under string) {
	extra := p.row(under, 2)
	m.Shard = int(p.between(under, 0, MaxShards-1))
	m.Version = p.between(under, -1, 1<<63-1)
	p.skip(extra)
}

func (m *Share) appendRow(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, int64(m.Samples))
	return dst
}

func (m *Share) parseRow(p *parser, under string) {
	extra := p.row(under, 3)
	m.Worker = star.Worker(p.between(under, 0, MaxWorkers-1))
	m.Step = p.between(under, 0, math.MaxInt64)
	m.Samples = int(p.between(under, 0, maxCount))
	p.skip(extra)
}
