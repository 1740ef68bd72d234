package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// A sweep measures hosts before a job, and names those that are worse than the others, or than they were the last
// time.
//
// Its head asks each host for one number after the other. All hosts measure the same at the same time, except those
// that share a kernel, such as containers of one machine: they take turns, because they would measure each other.
// Each number is taken in several rounds, and the order of turns changes from round to round, so that a load that
// comes and goes hits all alike. What looks like an outlier is measured once more, and only what is one both times
// counts.

// Sweep is the head of a sweep.
type Sweep struct {
	Dir     string // for the disk of hosts that name none
	State   string // folder on each host for the file of its last time; off: none
	Timeout time.Duration
	Version string
	Say     func(string) // progress; nil: none

	hosts   []*swept
	report  SweepReport
	values  map[string][][]float64 // by measure: rounds of hosts
	links   map[[2]int]link
	started time.Time
	scale   float64 // of windows
	hurry   float64 // of tests: shortens windows further; 0: 1
}

// The plan of a sweep: rounds, and the length of each measurement. Hosts that share a kernel get shorter ones, so
// that a round of their turns takes as long as one of turns for shared hosts.
const (
	sweepRounds = 4
	againRounds = 3
	shared      = 4
	linkWindow  = 200 * time.Millisecond
	leastWindow = 20 * time.Millisecond
	sweepTime   = 20 * time.Second // for everything
	linkTime    = 5 * time.Second  // for links, the first time
	linkPasses  = 2
)

var plan = []struct {
	what   string
	window time.Duration
	keys   []string // of its numbers
}{
	{"compute", 200 * time.Millisecond, []string{"compute_flops", "core_flops"}},
	{"memory", 80 * time.Millisecond, []string{"memory_Bps"}},
	{"write", 80 * time.Millisecond, []string{"write_Bps"}},
	{"read", 80 * time.Millisecond, []string{"read_Bps"}},
	{"files", 60 * time.Millisecond, []string{"files_ps"}},
}

// swept is a host as its head knows it.
type swept struct {
	name  string
	reach string // its address for links, without a port
	line  line
	about *about
	lost  error
	evid  map[string][]float64 // evidence of computes
	gpus  healthReply
	trips [2][]trip // at the beginning and at the end
	twins []line    // further processes of the same host, which get the verdict only
}

// line carries orders to a host.
type line interface {
	ask(ctx context.Context, o order) (reply, error)
	close()
}

// here is the line to an agent of this process.
type here struct{ *SweepAgent }

func (h here) ask(ctx context.Context, o order) (reply, error) { return h.do(ctx, o), nil }
func (h here) close()                                          { h.Close() }

// pipe is the line to a process that was started for the sweep.
type pipe struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said *tail
	over context.CancelFunc
}

// tail keeps the end of what a process prints.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-2048):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return transport.OneLine(strings.TrimSpace(string(t.b)))
}

func (p *pipe) ask(ctx context.Context, o order) (r reply, err error) {
	b, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	type got struct {
		line []byte
		err  error
	}
	c := make(chan got, 1)
	go func() {
		if _, err := p.in.Write(append(b, '\n')); err != nil {
			c <- got{nil, err}
			return
		}
		line, err := p.out.ReadSlice('\n')
		c <- got{line, err}
	}()
	select {
	case <-ctx.Done():
		p.over() // the line cannot be used again
		return r, fmt.Errorf("no answer: %w", context.Cause(ctx))
	case g := <-c:
		if g.err != nil {
			p.over()
			p.cmd.Wait()
			if text := p.said.String(); text != "" {
				g.err = fmt.Errorf("%s ended: %s", p.cmd.Args[0], text)
			}
			return r, g.err
		}
		if err := json.Unmarshal(g.line, &r); err != nil {
			return r, fmt.Errorf("it answers %.80q: %w; is star there the same version?", g.line, err)
		}
	}
	return r, nil
}

func (p *pipe) close() {
	p.in.Close()
	done := make(chan struct{})
	go func() { p.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	p.over()
}

// wired is the line to a process that has connected.
type wired struct {
	conn transport.Conn
	seq  int64
	over chan struct{}
	once sync.Once
}

func (w *wired) ask(ctx context.Context, o order) (r reply, err error) {
	b, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	deadline, _ := ctx.Deadline()
	w.conn.SetReadDeadline(deadline)
	w.conn.SetWriteDeadline(deadline)
	defer context.AfterFunc(ctx, func() { w.conn.Close() })()
	w.seq++
	if err := transport.Send(w.conn, wire.Ping{Seq: w.seq, Sent: time.Now().UnixNano()}, b); err != nil {
		return r, err
	}
	f, err := w.conn.Recv()
	if err != nil {
		return r, err
	}
	if f.Kind != wire.KindPong || f.Size > maxOrder {
		return r, fmt.Errorf("%s sends %v of %d bytes where an answer must come", w.conn.Peer(), f.Kind, f.Size)
	}
	if b, err = transport.ReadAll(w.conn, f); err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

func (w *wired) close() {
	w.once.Do(func() { w.conn.Close(); close(w.over) })
}

// Start is a host, and the command that starts its agent.
type Start struct {
	Name, Address string
	Command       []string // of SweepOver
}

// RunHosts sweeps hosts. A command for each starts its agent. token is that of the links.
func (s *Sweep) RunHosts(ctx context.Context, hosts []Start, token string) *SweepReport {
	for _, h := range hosts {
		s.hosts = append(s.hosts, &swept{name: h.Name, reach: h.Address})
	}
	s.each(s.all(), func(i int, h *swept) {
		run, over := context.WithCancel(context.Background())
		p := &pipe{cmd: exec.CommandContext(run, hosts[i].Command[0], hosts[i].Command[1:]...), said: &tail{}, over: over}
		p.cmd.WaitDelay = time.Second
		p.cmd.Stderr = p.said
		in, err := p.cmd.StdinPipe()
		var out io.ReadCloser
		if err == nil {
			out, err = p.cmd.StdoutPipe()
		}
		if err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			h.lost = fmt.Errorf("%s cannot be started: %w", hosts[i].Command[0], err)
			over()
			return
		}
		p.in, p.out = in, bufio.NewReaderSize(out, maxOrder)
		h.line = p
	})
	return s.run(ctx, token)
}

// RunHere sweeps this host alone.
func (s *Sweep) RunHere(ctx context.Context, a *SweepAgent) *SweepReport {
	s.hosts = []*swept{{line: here{a}}}
	return s.run(ctx, "")
}

// RunListening sweeps this host and those that come to l, as ranks of members processes; this one is rank. It
// closes l.
func (s *Sweep) RunListening(ctx context.Context, l transport.Listener, cfg transport.Config, members, rank int, a *SweepAgent) *SweepReport {
	s.hosts = []*swept{{line: here{a}}}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	type came struct {
		rank int
		host *swept
	}
	arrivals, begun := make(chan came), make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		transport.Serve(serving, l, cfg, func(conn transport.Conn, h wire.Hello, _ []byte) {
			if h.Role != wire.RoleTool {
				transport.Refuse(conn, wire.Reject{Exit: exitcode.Restart, Reason: "this is star doctor --sweep, which runs before the job: try again"})
				return
			}
			w := &wired{conn: conn, over: make(chan struct{})}
			if transport.SendWelcome(conn, wire.Welcome{Rank: -1}, []byte(sweeps)) != nil {
				w.close()
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr())
			select {
			case arrivals <- came{h.Rank, &swept{name: h.Host, reach: host, line: w}}:
				<-w.over
			case <-begun:
				to, cancel := context.WithTimeout(serving, answerTime)
				w.ask(to, order{Do: "late"})
				cancel()
				w.close()
			}
		})
	})
	timer := time.NewTimer(s.timeout())
	defer timer.Stop()
	there := map[int]bool{rank: true}
wait:
	for n := 1; n < members; {
		select {
		case c := <-arrivals:
			s.hosts = append(s.hosts, c.host)
			there[c.rank] = true
			n++
			s.say(fmt.Sprintf("%d of %d are here", n, members))
		case <-timer.C:
			var missing []string
			for r := range members {
				if !there[r] {
					missing = append(missing, fmt.Sprint(r))
				}
			}
			if len(missing) > members-n { // ranks are not known
				missing = nil
			}
			text := fmt.Sprintf("%d of %d processes did not come within %s", members-n, members, s.timeout())
			if len(missing) > 0 {
				text += ": ranks " + list(missing)
			}
			s.report.add(Finding{Check: "hosts", Status: Warn, Value: float64(members - n), Unit: "processes", Detail: text,
				Fix: "start the sweep on all hosts within --timeout, with the same STAR_TOKEN; look at the firewall and at --to"})
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	close(begun)
	r := s.run(ctx, "")
	stop()
	over.Wait()
	return r
}

func (s *Sweep) timeout() time.Duration {
	if s.Timeout > 0 {
		return s.Timeout
	}
	return sweepWait
}

func (s *Sweep) say(text string) {
	if s.Say != nil {
		s.Say(text)
	}
}

// all are the indexes of the hosts that still answer.
func (s *Sweep) all() (hosts []int) {
	for i, h := range s.hosts {
		if h.lost == nil {
			hosts = append(hosts, i)
		}
	}
	return hosts
}

// each calls f for hosts at once, and waits.
func (s *Sweep) each(hosts []int, f func(i int, h *swept)) {
	var all sync.WaitGroup
	for _, i := range hosts {
		all.Go(func() { f(i, s.hosts[i]) })
	}
	all.Wait()
}

// ask sends an order. A host that does not answer in time is lost.
func (s *Sweep) ask(ctx context.Context, h *swept, o order, most time.Duration) (reply, bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%w after %s", os.ErrDeadlineExceeded, most))
	defer cancel()
	r, err := h.line.ask(ctx, o)
	if err != nil {
		what := o.Do
		if o.What != "" {
			what += " " + o.What
		}
		h.lost = fmt.Errorf("lost in %q: %w", what, err)
		return r, false
	}
	return r, true
}

func (s *Sweep) run(ctx context.Context, token string) *SweepReport {
	s.started = time.Now()
	s.report.Findings = append([]Finding{}, s.report.Findings...) // JSON has a list in any case
	s.values, s.links = map[string][][]float64{}, map[[2]int]link{}
	defer func() {
		for _, h := range s.hosts {
			if h.line != nil {
				h.line.close()
			}
			for _, t := range h.twins {
				t.close()
			}
		}
	}()
	s.greet(ctx, token)
	s.clocks(ctx, 0)
	s.each(s.all(), func(_ int, h *swept) {
		if r, ok := s.ask(ctx, h, order{Do: "health"}, healthTime); ok && r.Health != nil {
			h.gpus = *r.Health
		}
	})
	s.say("measuring " + Plural(len(s.all()), "host"))
	for _, p := range plan {
		s.values[p.what] = nil
	}
	for round := range sweepRounds {
		for i := range plan {
			s.round(ctx, i, round)
		}
	}
	for range linkPasses {
		s.pairs(ctx, s.tournament(linkTime/linkPasses))
	}
	s.judge(ctx)
	s.clocks(ctx, 1)
	s.finish(ctx)
	return &s.report
}

// healthTime is how long drivers may take.
const healthTime = 12 * time.Second

// greet learns what the hosts are, and joins processes of one host.
func (s *Sweep) greet(ctx context.Context, token string) {
	s.each(s.all(), func(_ int, h *swept) {
		o := order{Do: "hello", Name: h.name, Dir: s.Dir, State: s.State, Token: token, Links: len(s.hosts) > 1}
		if token != "" {
			o.Listen = h.reach
		}
		r, ok := s.ask(ctx, h, o, s.timeout())
		if ok && (r.About == nil || r.Error != "") {
			h.lost = fmt.Errorf("it does not take part: %s", r.Error)
		} else if ok {
			h.about = r.About
		}
	})
	var hosts []*swept
	names := map[string]int{}
	for _, h := range s.hosts {
		if h.about != nil && token == "" {
			h.name = h.about.Host
			at := slices.IndexFunc(hosts, func(o *swept) bool {
				return o.about != nil && h.about.Kernel != "" && o.about.Kernel == h.about.Kernel && o.about.Host == h.about.Host && o.about.Place == h.about.Place
			})
			if at >= 0 {
				hosts[at].twins = append(hosts[at].twins, h.line)
				continue
			}
		}
		names[h.name]++
		hosts = append(hosts, h)
	}
	seen := map[string]int{}
	for _, h := range hosts {
		if seen[h.name]++; names[h.name] > 1 {
			h.name = fmt.Sprintf("%s#%d", h.name, seen[h.name])
		}
	}
	s.hosts = hosts
	most := 1
	count := map[string]int{}
	for _, h := range hosts {
		if h.about != nil && h.about.Kernel != "" {
			count[h.about.Kernel]++
			most = max(most, count[h.about.Kernel])
		}
	}
	s.scale = min(1, shared/float64(most))
	if s.hurry > 0 {
		s.scale *= s.hurry
	}
	if most > 1 {
		s.report.Notes = append(s.report.Notes, fmt.Sprintf("up to %d hosts share a kernel: they were measured in turns, and share disks and memory", most))
	}
}

func (s *Sweep) window(d time.Duration) time.Duration {
	return max(leastWindow, time.Duration(float64(d)*s.scale))
}

// kernels are those of hosts; one that does not tell its kernel is by itself.
func (s *Sweep) kernels(hosts ...int) (keys []string) {
	for _, i := range hosts {
		key := fmt.Sprintf("host %d", i)
		if a := s.hosts[i].about; a != nil && a.Kernel != "" {
			key = a.Kernel
		}
		keys = append(keys, key)
	}
	return keys
}

// clocks exchanges the time with each host, in turns: a busy head would see late answers.
func (s *Sweep) clocks(ctx context.Context, at int) {
	s.each(s.all(), func(_ int, h *swept) {
		for range clockTrips {
			begin := time.Now()
			sent := begin.UnixNano()
			r, ok := s.ask(ctx, h, order{Do: "clock"}, answerTime)
			if !ok {
				return
			}
			h.trips[at] = append(h.trips[at], trip{sent, r.Now, sent + int64(time.Since(begin))})
		}
	})
}

// clockTrips is how many exchanges a clock gets; the shortest one counts.
const clockTrips = 8

// round has all hosts take one measurement of the plan.
func (s *Sweep) round(ctx context.Context, step, round int) {
	p := plan[step]
	hosts := s.all()
	if len(hosts) > 0 { // another host begins in each round
		n := round % len(hosts)
		hosts = append(slices.Clone(hosts[n:]), hosts[:n]...)
	}
	got := make([]tried, len(s.hosts))
	for _, turn := range inTurn(hosts, func(i int) []string { return s.kernels(i) }) {
		s.each(turn, func(i int, h *swept) {
			w := s.window(p.window)
			if r, ok := s.ask(ctx, h, order{Do: "measure", What: p.what, Window: w}, w+answerTime); ok && r.Error == "" {
				got[i] = r.Values
			}
		})
	}
	for _, key := range p.keys {
		row := make([]float64, len(s.hosts))
		for i := range row {
			row[i] = math.NaN()
			if v, ok := got[i][key]; ok {
				row[i] = v
			}
		}
		s.values[key] = append(s.values[key], row)
	}
	for i, v := range got {
		h := s.hosts[i]
		if h.evid == nil {
			h.evid = map[string][]float64{}
		}
		for _, key := range []string{"core", "held_share", "throttled_share", "steal_share", "slowed_by_heat"} {
			if x, ok := v[key]; ok {
				h.evid[key] = append(h.evid[key], x)
			}
		}
	}
}

// tournament arranges the pairs of hosts for links within a time.
func (s *Sweep) tournament(most time.Duration) [][][2]int {
	hosts := slices.DeleteFunc(s.all(), func(i int) bool { return s.hosts[i].about.Port == "" })
	turn := s.window(linkWindow) + 30*time.Millisecond
	var rounds [][][2]int
	for _, r := range tournament(len(hosts), max(1, int(most/turn))) {
		var pairs [][2]int
		for _, p := range r {
			pairs = append(pairs, [2]int{hosts[p[0]], hosts[p[1]]})
		}
		rounds = append(rounds, pairs)
	}
	return rounds
}

// pairs measures links. Of pairs that were measured already it keeps the better numbers: a link that was fast once is
// not broken.
func (s *Sweep) pairs(ctx context.Context, rounds [][][2]int) {
	for _, pairs := range rounds {
		for _, turn := range inTurn(pairs, func(p [2]int) []string {
			k := s.kernels(p[0], p[1])
			slices.Sort(k)
			return slices.Compact(k)
		}) {
			var all sync.WaitGroup
			var mu sync.Mutex
			for _, p := range turn {
				if s.hosts[p[0]].lost != nil || s.hosts[p[1]].lost != nil {
					continue
				}
				all.Go(func() {
					l, err := s.pair(ctx, p)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						a, b := s.hosts[p[0]], s.hosts[p[1]]
						s.report.add(Finding{Host: a.name, Peer: b.name, Check: "link", Status: Fail, Unit: "B/s",
							Detail: fmt.Sprintf("the link from %s to %s does not work: %v", a.name, b.name, err),
							Fix:    fmt.Sprintf("look at routes and firewalls between both: on %s star doctor --serve :7070, on %s star doctor %s:7070", b.name, a.name, b.reach)})
						return
					}
					if old, ok := s.links[p]; ok {
						l = link{max(l.out, old.out), max(l.in, old.in), min(l.rtt, old.rtt)}
					}
					s.links[p] = l
				})
			}
			all.Wait()
		}
	}
}

func (s *Sweep) pair(ctx context.Context, p [2]int) (link, error) {
	a, b := s.hosts[p[0]], s.hosts[p[1]]
	w := s.window(linkWindow)
	r, ok := s.ask(ctx, a, order{Do: "link", Peer: net.JoinHostPort(b.reach, b.about.Port), Window: w}, w+linkTimeout+answerTime)
	switch {
	case !ok:
		return link{}, a.lost
	case r.Error != "":
		return link{}, errors.New(r.Error)
	}
	return link{r.Values["out_Bps"], r.Values["in_Bps"], r.Values["rtt_s"]}, nil
}

// classes are equal for hosts that can be compared: the same processor, and as many cores.
func (s *Sweep) classes() (cs []string) {
	for i, h := range s.hosts {
		if h.about == nil {
			cs = append(cs, fmt.Sprintf("lost %d", i))
			continue
		}
		cs = append(cs, fmt.Sprintf("%s\x00%d", h.about.Processor, h.about.Cores))
	}
	return cs
}

// linkRows are the numbers of links by measure.
func (s *Sweep) linkRows() map[string][]float64 {
	out, in, rtt := linkRates(len(s.hosts), s.links)
	return map[string][]float64{"out_Bps": out, "in_Bps": in, "rtt_s": rtt}
}

// judge looks for outliers, measures what is suspected again, and keeps what is an outlier both times.
func (s *Sweep) judge(ctx context.Context) {
	first := s.suspects(0)
	again := map[string]bool{}
	for _, f := range first {
		again[f.key] = true
	}
	from := map[string]int{}
	for k, rows := range s.values {
		from[k] = len(rows)
	}
	for i, p := range plan {
		if !slices.ContainsFunc(p.keys, func(k string) bool { return again[k] }) {
			continue
		}
		s.say("measuring " + p.what + " again")
		for round := range againRounds {
			if s.left() > 0 || round == 0 {
				s.round(ctx, i, round)
			}
		}
	}
	if again["out_Bps"] || again["in_Bps"] || again["rtt_s"] || again["path"] {
		s.say("measuring links again")
		s.pairs(ctx, s.tournament(min(linkTime, max(time.Second, s.left()))))
	}
	second := map[string]bool{}
	for _, f := range s.suspects(1, from) {
		second[f.id()] = true
	}
	said := map[string]bool{}
	for _, f := range first { // of a measure and a host, the comparison with the others comes first
		if at := f.key + "\x00" + f.Host + "\x00" + f.Peer; second[f.id()] && !said[at] {
			said[at] = true
			s.report.add(f.Finding)
		}
	}
}

// left is the time that is left to a sweep.
func (s *Sweep) left() time.Duration { return sweepTime - 3*time.Second - time.Since(s.started) }

// suspect is a finding that is not confirmed yet.
type suspect struct {
	Finding
	key string
	why string // others or last
}

func (f *suspect) id() string { return strings.Join([]string{f.key, f.why, f.Host, f.Peer}, "\x00") }

// suspects compares the numbers: pass 0 those of the first rounds, pass 1 those after from.
func (s *Sweep) suspects(pass int, from ...map[string]int) (found []suspect) {
	rows := map[string][][]float64{}
	for k, r := range s.values {
		if pass == 1 && len(r) > from[0][k] {
			r = r[from[0][k]:]
		}
		rows[k] = r
	}
	links := s.linkRows()
	for k, r := range links {
		rows[k] = [][]float64{r}
	}
	classes := s.classes()
	ill := map[int]bool{} // in a link
	for i := range measures {
		m := &measures[i]
		class := classes
		if links[m.key] != nil {
			if len(s.all()) < 3 { // of two hosts a link does not say which one is worse
				class = nil
			} else {
				class = make([]string, len(s.hosts))
			}
		}
		if class != nil {
			for _, o := range m.outliers(rows[m.key], class) {
				ill[o.host] = ill[o.host] || links[m.key] != nil
				found = append(found, suspect{s.finding(m, o, ""), m.key, "others"})
			}
		}
		now, last := s.medians(rows[m.key]), make([]float64, len(s.hosts))
		for h := range last {
			last[h] = math.NaN()
			if a := s.hosts[h].about; a != nil && a.Last[m.key] > 0 {
				last[h] = a.Last[m.key]
			}
		}
		since, _ := m.sinceLast(now, last)
		for _, o := range since {
			found = append(found, suspect{s.finding(m, o, "last"), m.key, "last"})
		}
	}
	for _, p := range slowPaths(s.links, ill) {
		f := Finding{Host: s.hosts[p.from].name, Peer: s.hosts[p.to].name, Check: "path", Status: Fail, Value: p.value, Unit: "Bps", Others: p.others, Worse: p.others / p.value}
		f.Detail = fmt.Sprintf("%s from %s to %s, others %s: %s less", perSecond(p.value), f.Host, f.Peer, perSecond(p.others), times(f.Worse))
		f.Fix = "neither host is slow with others: look at the switches and routes between both (tracepath), and at limits of this direction (tc qdisc show)"
		if len(s.all()) == 2 {
			f.Fix = "look at limits of this direction (tc qdisc show), at a duplex mismatch (ethtool) and at errors (ip -s link)"
		}
		found = append(found, suspect{f, "path", "others"})
	}
	return found
}

func (s *Sweep) medians(rows [][]float64) []float64 {
	out := make([]float64, len(s.hosts))
	for h := range out {
		var xs []float64
		for _, r := range rows {
			if usable(r[h]) {
				xs = append(xs, r[h])
			}
		}
		out[h] = median(xs)
	}
	return out
}

// finding words an outlier. since is "last" if it is compared with the last time.
func (s *Sweep) finding(m *measure, o outlier, since string) Finding {
	h := s.hosts[o.host]
	f := Finding{Host: h.name, Check: m.name, Status: Fail, Value: o.value, Unit: m.key[strings.LastIndexByte(m.key, '_')+1:], Worse: o.worse, Fix: m.fix}
	how := "less"
	if m.lower {
		how = "longer"
	}
	if since == "last" {
		f.Last = o.others
		f.Detail = fmt.Sprintf("%s, %s the last time (%s): %s %s", m.show(o.value), m.show(o.others), h.about.LastTime.Format("2006-01-02 15:04"), times(o.worse), how)
		f.Fix += "; if this is how it shall be, delete " + h.about.State + " there"
	} else {
		f.Others = o.others
		f.Detail = fmt.Sprintf("%s, others %s: %s %s", m.show(o.value), m.show(o.others), times(o.worse), how)
	}
	if m.key == "compute_flops" {
		f.Detail, f.Fix = s.because(h, f.Detail, f.Fix)
	}
	if m.key == "core_flops" {
		if cores := h.evid["core"]; len(cores) > 0 {
			f.Detail += fmt.Sprintf(" (processor %.0f)", cores[len(cores)-1])
		}
		if n := sum(h.evid["slowed_by_heat"]); n > 0 {
			f.Detail += fmt.Sprintf("; slowed by heat %.0f times meanwhile", n)
		}
	}
	return f
}

func sum(xs []float64) (n float64) {
	for _, x := range xs {
		n += x
	}
	return n
}

// because adds why a host computes slowly, if its processors were taken away.
func (s *Sweep) because(h *swept, detail, fix string) (string, string) {
	held, throttled, steal := median(h.evid["held_share"]), median(h.evid["throttled_share"]), median(h.evid["steal_share"])
	quota := h.about.Quota
	switch {
	case throttled >= 0.1 || quota > 0 && quota < float64(h.about.Cores) && held >= 0.1:
		return detail + fmt.Sprintf("; its control group may use %.3g of %d cores, and kept them from it for %.0f %% of the time", quota, h.about.Cores, 100*max(throttled, held)),
			"raise the quota of its control group (cpu.max, cpu.cfs_quota_us; Kubernetes limits.cpu; Slurm --cpus-per-task)"
	case steal >= 0.1:
		return detail + fmt.Sprintf("; other virtual machines took %.0f %% of its processors", 100*steal), "move it to another machine, or ask the provider"
	case held >= 0.1:
		return detail + fmt.Sprintf("; other processes had its processors for %.0f %% of the time", 100*held), "end these processes (top), or keep jobs apart"
	}
	return detail, fix
}

// finish adds what needs no second look, and sends each host the result.
func (s *Sweep) finish(ctx context.Context) {
	classes := s.classes()
	values := map[string][]float64{}
	for k, rows := range s.values {
		if measureOf(k) != nil {
			values[k] = s.medians(rows)
		}
	}
	maps.Copy(values, s.linkRows())
	r := &s.report
	for i, h := range s.hosts {
		out := SweepHost{Name: h.name, Values: map[string]float64{}}
		if h.lost != nil {
			r.add(Finding{Host: h.name, Check: "host", Status: Fail, Unit: "s", Value: time.Since(s.started).Seconds(), Detail: h.lost.Error(),
				Fix: "look whether it is up and star runs there (star version); a measurement that does not end may be a disk or a driver that hangs (dmesg)"})
		}
		if h.about != nil {
			out.Processor, out.Cores, out.Notes, out.GPUs = h.about.Processor, h.about.Cores, append(h.about.Notes, h.gpus.Notes...), len(h.gpus.GPUs)
			for k, v := range values {
				if usable(v[i]) {
					out.Values[k] = v[i]
				}
			}
			if h.about.Quota > 0 {
				out.Values["quota_cores"] = h.about.Quota
			}
			for _, k := range []string{"held_share", "throttled_share", "steal_share"} {
				if x := h.evid[k]; len(x) > 0 {
					out.Values[k] = median(x)
				}
			}
		}
		for _, f := range h.gpus.Findings {
			f.Host = h.name
			r.add(f)
		}
		r.Hosts = append(r.Hosts, out)
	}
	r.add(judgeQuotas(s.hosts, classes)...)
	r.add(judgeGPUs(s.hosts)...)
	clocks, names := make([]clockOf, len(s.hosts)), make([]string, len(s.hosts))
	for i, h := range s.hosts {
		clocks[i], names[i] = h.clock(), h.name
		if !math.IsNaN(clocks[i].offset) {
			r.Hosts[i].Values["clock_offset_s"] = clocks[i].offset
		}
	}
	r.add(judgeClocks(clocks, names)...)
	for i := range measures {
		m := &measures[i]
		last := make([]float64, len(s.hosts))
		n := 0
		for h := range last {
			last[h] = math.NaN()
			if a := s.hosts[h].about; a != nil && a.Last[m.key] > 0 {
				last[h] = a.Last[m.key]
				n++
			}
		}
		if _, all := m.sinceLast(values[m.key], last); n > 2 && all >= m.factor*past {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: all hosts are %s worse than the last time", m.name, times(all)))
		}
	}
	r.Seconds = time.Since(s.started).Seconds()
	r.close()
	s.each(s.all(), func(i int, h *swept) {
		o := order{Do: "verdict", Name: h.name, Report: r}
		if !r.Failed(h.name) {
			o.Keep = map[string]float64{}
			for _, m := range measures {
				if v, ok := r.Hosts[i].Values[m.key]; ok {
					o.Keep[m.key] = v
				}
			}
		}
		if answer, ok := s.ask(ctx, h, o, answerTime); ok && answer.Error != "" {
			r.Hosts[i].Notes = append(r.Hosts[i].Notes, answer.Error)
		}
		for _, t := range h.twins {
			o.Keep = nil
			to, cancel := context.WithTimeout(ctx, answerTime)
			t.ask(to, o)
			cancel()
		}
	})
}

// clock is the host's, compared with the head's.
func (h *swept) clock() clockOf {
	c := clockOf{math.NaN(), 0, math.NaN(), 0}
	if len(h.trips[0]) == 0 {
		return c
	}
	a := shortest(h.trips[0])
	c.offset, c.doubt = a.offset().Seconds(), a.rtt().Seconds()/2
	if len(h.trips[1]) > 0 {
		b := shortest(h.trips[1])
		if passed := float64(b.sent-a.sent) / 1e9; passed > 1 {
			c.drift = (b.offset() - a.offset()).Seconds() / passed
			c.driftDoubt = (a.rtt() + b.rtt()).Seconds() / 2 / passed
		}
	}
	return c
}

// judgeQuotas finds hosts that may use fewer cores than hosts of the same kind.
func judgeQuotas(hosts []*swept, classes []string) (found []Finding) {
	for i, h := range hosts {
		if h.about == nil || h.about.Quota == 0 || h.about.Quota >= float64(h.about.Cores) {
			continue
		}
		var others []float64
		for j, o := range hosts {
			if j == i || classes[j] != classes[i] {
				continue
			}
			may := float64(o.about.Cores)
			if q := o.about.Quota; q > 0 {
				may = min(may, q)
			}
			others = append(others, may)
		}
		mid := median(others)
		if math.IsNaN(mid) || mid <= h.about.Quota {
			continue
		}
		f := Finding{Host: h.name, Check: "quota", Status: Warn, Value: h.about.Quota, Unit: "cores", Others: mid, Worse: mid / h.about.Quota}
		f.Detail = fmt.Sprintf("its control group may use %.3g of %d cores, others %.3g", h.about.Quota, h.about.Cores, mid)
		f.Fix = "raise the quota (cpu.max, cpu.cfs_quota_us; Kubernetes limits.cpu; Slurm --cpus-per-task)"
		if f.Worse >= measures[0].factor {
			f.Status = Fail
		}
		found = append(found, f)
	}
	return found
}
