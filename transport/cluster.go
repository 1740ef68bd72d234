package transport

import (
	"fmt"
	"time"
)

// ServiceCluster is the resource service of a cluster. In its Hello, Job is the name of
// the cluster.
const ServiceCluster = "cluster"

// Amounts are resources: processors, and bytes per second into and out of a host.
type Amounts struct{ CPU, In, Out float64 }

// Enlist tells the resource service which process of which job this is. It comes first on a
// connection.
type Enlist struct {
	Job      string
	Life     string // tells the process from another one that claims its place
	Rank     int    // among its kind
	Host     string // processes with the same one share its resources
	Actuator string // what carries out an Order here; empty: nothing does
	Model    string // readable; names a prior of the demand
	Params   int64  // elements of the parameter vector; 0: not known yet
	Workers  int    // of the job
	Servers  int    // of the job; 0: workers exchange gradients among themselves
	Fixed    bool   // its owner has chosen the mode: it neither asks nor gives
	Capacity Amounts
	Freed    Amounts // what each worker frees on its host for each second by which an iteration is delayed
	CostCPU  float64 // sensitivity to less processor time; 0: not known
	CostNet  float64 // to less network
}

// Usage renews the lease of a process, and says what it uses.
type Usage struct {
	Seq   int64
	Step  int64 // updates of the job so far, or steps of the worker
	Mode  string
	Sync  bool            // every update waits for all workers: SSGD
	Own   Amounts         // this process
	Host  Amounts         // everybody on its host
	Times []time.Duration // of each worker, by rank; 0: not known. Only from who knows them
	Delay time.Duration   // per iteration, in force in this process

	// Leases are those that processes have left, or hold, on this host: at most MaxLeases, those that somebody should look at first. Texts may be cut short.
	Leases []Lease

	Free int64 // bytes of memory that the host has left; 0: not known
}

// Lease is a limit that a process has set on its host.
type Lease struct {
	Name, State, What, Who, Why string
}

// MaxLeases is how many leases a Usage has at most.
const MaxLeases = 8

// maxLeaseText bounds each text of a Lease, in bytes: the header of a Usage has room for all.
const maxLeaseText = 160

// Ask wants to leave SSGD for Mode, for which all servers together use Extra more than for
// SSGD, each as much; in a job without servers, all workers. The answer is a Grant with the same ID.
type Ask struct {
	ID      int64 // counts the questions of one life of a job: the same one is answered once
	Mode    string
	Extra   Amounts
	Lag     time.Duration // what SSGD loses in each iteration to stragglers
	Timeout time.Duration // how long the sender waits for the answer
}

// Grant answers an Ask, or takes an earlier yes back.
type Grant struct {
	ID    int64
	OK    bool
	Lease time.Duration // a yes is good for so long behind the last Usage that was heard
	Why   string
}

// Order wants each iteration of a job delayed, as long as somebody else needs what that frees. With
// neither Delay nor Early the order before it is undone.
type Order struct {
	ID    int64         // a higher one replaces all before it
	Delay time.Duration // of each iteration
	Early time.Duration // besides, of this worker, which would only wait for slower ones otherwise
	Lease time.Duration // it ends by itself when the service is gone for so long
	For   string        // the job that asked
	Why   string
}

// Obeyed says what has become of an Order.
type Obeyed struct {
	ID    int64
	Delay time.Duration // in force now
	Err   string        // empty: done
}

// Yield gives back what a Grant gave: the job is in SSGD again, or does not want it any more.
type Yield struct{ ID int64 }

func appendAmounts(dst []byte, a Amounts) []byte {
	dst = appendArray(dst, 3)
	dst = appendFloat64(dst, a.CPU)
	dst = appendFloat64(dst, a.In)
	return appendFloat64(dst, a.Out)
}

// amounts are finite and not negative.
func (p *parser) amounts(field string) (a Amounts) {
	p.left--
	extra := p.row(field, 3)
	for _, v := range []*float64{&a.CPU, &a.In, &a.Out} {
		*v = p.positive(field)
	}
	p.skip(extra)
	if p.err != nil {
		return Amounts{}
	}
	return a
}

// positive is a number outside the count of fields, not negative, and not more than there is of anything.
func (p *parser) positive(field string) float64 {
	v := p.real(field)
	if p.err == nil && !(v >= 0 && v <= maxAmount) {
		p.fail(field, fmt.Errorf("%g, want 0 to %g", v, maxAmount))
	}
	return v
}

func (p *parser) amount(field string) float64 {
	p.left--
	return p.positive(field)
}

// span is a duration that is not negative.
func (p *parser) span(field string) time.Duration { return time.Duration(p.within(field, 0, maxTime)) }

func (Enlist) Kind() Kind { return KindEnlist }

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
	dst = appendAmounts(dst, m.Capacity)
	dst = appendAmounts(dst, m.Freed)
	dst = appendFloat64(dst, m.CostCPU)
	return appendFloat64(dst, m.CostNet)
}

// ParseEnlist parses the header of an Enlist.
func ParseEnlist(b []byte) (Enlist, error) {
	p := parse(KindEnlist, b, 14)
	m := Enlist{
		Job: p.string("job", maxName), Life: p.string("life", maxName), Rank: p.member("rank"), Host: p.string("host", maxName),
		Actuator: p.string("actuator", maxName), Model: p.string("model", maxModel), Params: p.within("params", 0, MaxParams),
		Workers: int(p.within("workers", 0, MaxWorkers)), Servers: int(p.within("servers", 0, MaxShards)), Fixed: p.bool("fixed"),
		Capacity: p.amounts("capacity"), Freed: p.amounts("freed"), CostCPU: p.amount("cost_cpu"), CostNet: p.amount("cost_net"),
	}
	return m, p.end()
}

func (Usage) Kind() Kind { return KindUsage }

func (m Usage) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 10)
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Step)
	dst = appendString(dst, m.Mode)
	dst = appendBool(dst, m.Sync)
	dst = appendAmounts(dst, m.Own)
	dst = appendAmounts(dst, m.Host)
	dst = appendArray(dst, len(m.Times))
	for _, t := range m.Times {
		dst = appendInt(dst, int64(t))
	}
	dst = appendInt(dst, int64(m.Delay))
	dst = appendArray(dst, len(m.Leases))
	for _, l := range m.Leases {
		dst = appendArray(dst, 5)
		for _, text := range []string{l.Name, l.State, l.What, l.Who, l.Why} {
			dst = appendText(dst, text, maxLeaseText)
		}
	}
	return appendInt(dst, m.Free)
}

// ParseUsage parses the header of a Usage.
func ParseUsage(b []byte) (Usage, error) {
	p := parse(KindUsage, b, 8)
	m := Usage{
		Seq: p.natural("seq"), Step: p.natural("step"), Mode: p.string("mode", maxModel), Sync: p.bool("sync"),
		Own: p.amounts("own"), Host: p.amounts("host"),
	}
	p.left--
	if n := p.arrayLen("times", MaxWorkers); n > 0 {
		m.Times = make([]time.Duration, n)
		for i := range m.Times {
			m.Times[i] = time.Duration(p.between("times", 0, maxTime))
		}
	}
	m.Delay = p.span("delay")
	if p.err == nil && p.left > 0 { // absent from older processes
		p.left--
		for range p.arrayLen("leases", MaxLeases) {
			var l Lease
			extra := p.row("leases", 5)
			for _, to := range []*string{&l.Name, &l.State, &l.What, &l.Who, &l.Why} {
				*to = p.words("leases", maxLeaseText)
			}
			p.skip(extra)
			m.Leases = append(m.Leases, l)
		}
	}
	if p.err == nil && p.left > 0 { // likewise
		m.Free = p.natural("free")
	}
	return m, p.end()
}

func (Ask) Kind() Kind { return KindAsk }

func (m Ask) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.ID)
	dst = appendString(dst, m.Mode)
	dst = appendAmounts(dst, m.Extra)
	dst = appendInt(dst, int64(m.Lag))
	return appendInt(dst, int64(m.Timeout))
}

// ParseAsk parses the header of an Ask.
func ParseAsk(b []byte) (Ask, error) {
	p := parse(KindAsk, b, 5)
	m := Ask{ID: p.natural("id"), Mode: p.string("mode", maxModel), Extra: p.amounts("extra"), Lag: p.span("lag"), Timeout: p.span("timeout")}
	return m, p.end()
}

func (Grant) Kind() Kind { return KindGrant }

func (m Grant) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.ID)
	dst = appendBool(dst, m.OK)
	dst = appendInt(dst, int64(m.Lease))
	return appendText(dst, m.Why, maxText)
}

// ParseGrant parses the header of a Grant.
func ParseGrant(b []byte) (Grant, error) {
	p := parse(KindGrant, b, 4)
	m := Grant{ID: p.natural("id"), OK: p.bool("ok"), Lease: p.span("lease"), Why: p.string("why", maxText)}
	return m, p.end()
}

func (Order) Kind() Kind { return KindOrder }

func (m Order) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendInt(dst, m.ID)
	dst = appendInt(dst, int64(m.Delay))
	dst = appendInt(dst, int64(m.Early))
	dst = appendInt(dst, int64(m.Lease))
	dst = appendString(dst, m.For)
	return appendText(dst, m.Why, maxText)
}

// ParseOrder parses the header of an Order.
func ParseOrder(b []byte) (Order, error) {
	p := parse(KindOrder, b, 6)
	m := Order{ID: p.natural("id"), Delay: p.span("delay"), Early: p.span("early"), Lease: p.span("lease"), For: p.string("for", maxName), Why: p.string("why", maxText)}
	return m, p.end()
}

func (Obeyed) Kind() Kind { return KindObeyed }

func (m Obeyed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, m.ID)
	dst = appendInt(dst, int64(m.Delay))
	return appendText(dst, m.Err, maxText)
}

// ParseObeyed parses the header of an Obeyed.
func ParseObeyed(b []byte) (Obeyed, error) {
	p := parse(KindObeyed, b, 3)
	m := Obeyed{ID: p.natural("id"), Delay: p.span("delay"), Err: p.string("err", maxText)}
	return m, p.end()
}

func (Yield) Kind() Kind { return KindYield }

func (m Yield) AppendTo(dst []byte) []byte { return appendInt(appendArray(dst, 1), m.ID) }

// ParseYield parses the header of a Yield.
func ParseYield(b []byte) (Yield, error) {
	p := parse(KindYield, b, 1)
	m := Yield{ID: p.natural("id")}
	return m, p.end()
}
