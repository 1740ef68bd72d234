package service

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"star/coord/election"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/sched/live"
	"star/transport"
	"star/transport/wire"
)

// Several services with one queue: they elect one that decides (package election), and each event is on the disks of most of them before it is acted upon. The others
// pass questions on to it.

// Peers are services that have one queue together.
type Peers struct {
	Members []string      // addresses by rank, host:port
	Rank    int           // of this one
	Token   string        // of the services, which no job gets; empty: that in the folder of the jobs, which the first one makes
	TLS     *tls.Config   // nil: they speak without
	Wait    time.Duration // for which they may take to find each other the first time
}

const (
	peersDir = "peers"         // in the folder of a service: what it has agreed to
	jobsMark = "services.json" // in the folder of jobs: whose they are
	patience = 5 * time.Second // for which a question waits for somebody who decides
	passTime = 20 * time.Second
)

// errLost: another service decides now, or will.
var errLost = coded{errors.New("another service decides by now, or will: ask again, and look with star sched status whether this was done"), exitcode.Lost}

// PeerStatus is one of several services in a Status.
type PeerStatus struct {
	Rank    int    `json:"rank"`
	Addr    string `json:"addr"`
	Decides bool   `json:"decides,omitempty"`
	Missing bool   `json:"missing,omitempty"` // the one that decides has no connection to it
}

// council is one of several services.
type council struct {
	o      Options
	member *election.Member
	net    *transport.TCP
	ended  *codes
	now    atomic.Pointer[Service] // while this one decides
}

// ServePeers is one of several services until the context ends, or it has no part in them any more. Jobs go on without it.
func ServePeers(ctx context.Context, o Options, l net.Listener) error {
	if err := o.folders(); err != nil {
		return err
	}
	lock, err := lockFolder(o.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	p := o.Peers
	if err := p.claim(&o); err != nil {
		return err
	}
	if p.Token == "" {
		if p.Token, err = madeSecret(filepath.Join(o.Jobs, secretName)); err != nil {
			return fmt.Errorf("the services' secret: %w", err)
		}
	}
	if p.TLS == nil && slices.ContainsFunc(p.Members, func(at string) bool { return !settings.Loopback(at) }) {
		o.Log.Warn("the services' secret travels readable between hosts", "fix", "--tls-cert, --tls-key and --tls-ca")
	}
	cfg := transport.Config{Token: p.Token, TLS: p.TLS, Log: o.Log}
	c := &council{o: o, net: transport.NewTCP(cfg), ended: newCodes()}
	door, err := c.net.Listen(p.Members[p.Rank])
	if err != nil {
		return coded{fmt.Errorf("--peers: this service's own address, %s (--rank %d), cannot be listened on: %w: is a service of this rank running already, or is it another machine's address?", p.Members[p.Rank], p.Rank, err), exitcode.Disagree}
	}
	defer door.Close()
	c.member, err = election.New(election.Config{
		Job: p.group(), Rank: p.Rank, Members: p.Members, Network: c.net, JoinTimeout: p.Wait, Log: o.Log, Dir: filepath.Join(o.Dir, peersDir),
		Hello: wire.Hello{Token: p.Token, Version: job.Program, Host: process.Hostname()},
		Words: election.Words{Member: "service", Does: "have this queue", Members: "--peers", Timeout: "--wait", Job: "the group", Named: "--peers, the same list in the same order"},
	})
	if err != nil {
		return err
	}
	stop, err := listen(l, o.Dir, c.answer)
	if err != nil {
		return err
	}
	defer stop()
	sits, leave := context.WithCancel(context.WithoutCancel(ctx)) // it hands over before it leaves
	accepted, ran := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(accepted)
		transport.Serve(sits, door, cfg, c.accept(sits))
	}()
	go func() { ran <- c.member.Run(sits) }()
	o.Log.Info("one of several services", "service", p.Rank, "peers", p.Members, "dir", o.Dir, "jobs", o.Jobs)
	err = c.decide(ctx)
	leave()
	<-accepted
	if why := <-ran; err == nil && ctx.Err() == nil {
		err = why
	}
	if err == nil {
		o.Log.Info("the service ends; the others go on, and so do jobs")
	}
	return err
}

// group is what all services of one queue call themselves.
func (p *Peers) group() string { return "star sched " + strings.Join(p.Members, ",") }

// claim looks whether folders are for these services, and makes what is missing in that of this one.
func (p *Peers) claim(o *Options) error {
	if _, err := os.Stat(filepath.Join(o.Dir, queueName)); err == nil {
		return coded{fmt.Errorf("%s: this folder has the queue of a service that was alone: give another --dir; its jobs end under the service that has them", filepath.Join(o.Dir, queueName)), exitcode.Disagree}
	}
	if i, err := os.Stat(o.Jobs); errors.Is(err, fs.ErrNotExist) || err == nil && !i.IsDir() {
		return coded{fmt.Errorf("--jobs %s: there is no such folder: mount it, or make it once; all services must see the same one", o.Jobs), exitcode.Missing}
	} else if err != nil {
		return coded{fmt.Errorf("--jobs: %w", err), exitcode.Unwritable}
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, peersDir), 0o700); err != nil {
		return coded{err, exitcode.Unwritable}
	}
	name := filepath.Join(o.Jobs, jobsMark)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		defer f.Close()
		if err = json.NewEncoder(f).Encode(p.Members); err != nil {
			os.Remove(name)
		}
	}
	if err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return coded{fmt.Errorf("--jobs: %w", err), exitcode.Unwritable}
	}
	var whose []string
	for end := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) { // another one may be about to write it
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &whose)
		}
		switch {
		case err == nil && slices.Equal(whose, p.Members):
			return nil
		case err == nil:
			return coded{fmt.Errorf("%s: these are the jobs of the services %s, and this is one of %s: give another --jobs, or the same --peers in the same order", name, strings.Join(whose, ","), strings.Join(p.Members, ",")), exitcode.Disagree}
		case time.Now().After(end):
			return coded{fmt.Errorf("%s: %w: want a list of addresses; take the file away if no service has these jobs", name, err), exitcode.Corrupt}
		}
	}
}

// decide waits until this service is to decide, does so, and begins again, until the context ends or the member has no part in the group any more.
func (c *council) decide(ctx context.Context) error {
	for {
		lead, err := c.member.Await(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, election.ErrLeadershipLost): // the member has ended, and knows why
			return nil
		case err != nil:
			return err
		}
		err = c.lead(ctx, lead)
		select {
		case <-lead.Over():
		default:
			if e := lead.HandOver(); e != nil && ctx.Err() == nil {
				return coded{fmt.Errorf("this service does not know what was agreed on, and nobody takes over: %w", e), exitcode.Lost}
			}
		}
		if err != nil && !errors.Is(err, errLost) {
			return err
		}
		c.o.Log.Info("this service does not decide any more")
	}
}

// lead decides until the leadership is over or the context ends.
func (c *council) lead(ctx context.Context, lead *election.Leadership) error {
	s, err := c.taken(lead)
	if err != nil {
		return err
	}
	c.o.Log.Info("this service decides", "service", c.o.Peers.Rank, "term", lead.Term, "events", len(lead.Added))
	c.now.Store(s)
	if s.o.Page != nil {
		s.o.Page.Show(s.View())
	}
	s.run(ctx, lead.Over())
	c.now.Store(nil)
	if s.o.Page != nil {
		s.stuck = "another service decides now: star sched status says which"
		s.o.Page.Show(s.View())
	}
	return nil
}

// taken makes the service of what was agreed on before.
func (c *council) taken(lead *election.Leadership) (*Service, error) {
	b := &agreedBook{lead: lead, hosts: c.o.Hosts, log: c.o.Log}
	if lead.Note == nil {
		if err := b.note(head{Format: queueFormat, Time: time.Now().Round(0), writer: thisProgram()}); err != nil {
			return nil, err
		}
	}
	q, h, events, err := b.read(c.o.Dir, lead.Note, lead.Added)
	if err != nil {
		return nil, err
	}
	s, err := begin(c.o, b, b.head.Time, q, h, events, func(i int) string { return fmt.Sprintf("%s: event %d", c.o.Dir, i) }, c.ended)
	if err != nil {
		return nil, err
	}
	s.peers = c.peers
	return s, nil
}

// shortenAt is how many bytes of events are kept before what they have come to takes their place, at least; also no fewer than that has.
const shortenAt = 64 << 10

// leadership is what a book needs of an *election.Leadership.
type leadership interface {
	SetNote([]byte) error
	Add([]byte) error
	Held() bool
	Hold() error
}

// agreedBook has the other services agree to each event. When these have become many, it has them agree to what they have come to, in their place.
type agreedBook struct {
	lead  leadership
	hosts []*live.Host
	log   *slog.Logger
	head  head         // the note: with what came before the events
	since []live.Event // that were added to it
	size  int          // of these, bytes
}

// read takes in what was agreed on: the queue as it was noted, and events since. note is nil if head has it.
func (b *agreedBook) read(dir string, note []byte, added [][]byte) (q *live.Queue, h *live.History, events []live.Event, err error) {
	bad := func(err error) error { return coded{fmt.Errorf("%s: %w: %w", dir, errQueue, err), exitcode.Corrupt} }
	if note != nil {
		err := json.Unmarshal(note, &b.head)
		if n := b.head.Format; err == nil && n != queueFormat && n != savedFormat {
			err = fmt.Errorf("it has format %d, and this program knows %d and %d: give all services the same release of STAR", n, queueFormat, savedFormat)
		}
		if err != nil {
			return nil, nil, nil, bad(err)
		}
	}
	q, h = live.New(fresh(b.hosts)), live.NewHistory()
	if b.head.Queue != nil {
		if q, h, err = live.Load(b.head.Queue, fresh(b.hosts)); err != nil {
			return nil, nil, nil, bad(err)
		}
	}
	b.since, b.size = make([]live.Event, len(added)), 0
	for i, text := range added {
		if err := json.Unmarshal(text, &b.since[i]); err != nil {
			return nil, nil, nil, bad(fmt.Errorf("event %d: %w", i, err))
		}
		b.size += len(text)
	}
	return q, h, b.since, nil
}

// fresh are hosts of which nothing is known yet but whether they are given to anybody.
func fresh(hosts []*live.Host) (all []*live.Host) {
	for _, h := range hosts {
		all = append(all, &live.Host{Name: h.Name, Slots: h.Slots, Closed: h.Closed})
	}
	return all
}

// note has the others agree on the head of a queue, in the place of all that they have agreed on before.
func (b *agreedBook) note(h head) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := b.lead.SetNote(text); err != nil { // it may be agreed on nevertheless, and comes to the same
		return errLost
	}
	b.head, b.since, b.size = h, nil, 0
	return nil
}

func (b *agreedBook) add(es ...live.Event) error {
	for i, e := range es {
		if err := b.addOne(e); err != nil && i > 0 { // some of them are agreed on
			return errLost
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (b *agreedBook) addOne(e live.Event) error {
	if b.size > max(shortenAt, len(b.head.Queue)) {
		text, err := live.Fold(b.head.Queue, fresh(b.hosts), b.since)
		if err != nil {
			return coded{fmt.Errorf("the queue's events cannot be made shorter: %w", err), exitcode.Corrupt}
		}
		events := len(b.since)
		if err := b.note(head{savedFormat, b.head.Time, thisProgram(), text}); err != nil {
			return err
		}
		b.log.Info("the queue takes the place of its events", "events", events, "bytes", len(text))
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := b.lead.Add(text); err != nil { // it may be agreed on nevertheless: whoever decides next knows
		return errLost
	}
	b.since = append(b.since, e)
	b.size += len(text)
	return nil
}

func (b *agreedBook) held() bool { return b.lead.Held() || b.lead.Hold() == nil }

// peers is who is there, as the service that decides sees it.
func (c *council) peers() (ps []PeerStatus) {
	missing := c.member.Missing()
	for r, addr := range c.o.Peers.Members {
		ps = append(ps, PeerStatus{r, addr, r == c.o.Peers.Rank, slices.Contains(missing, fmt.Sprintf("service %d (%s)", r, addr))})
	}
	return ps
}

// question is what one service passes on to another.
type question struct {
	Path string `json:"path"`
	Body []byte `json:"body"`
}

// answer answers a question, or has the service answer that decides.
func (c *council) answer(ctx context.Context, path string, body []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	why := ""
	for end := time.Now().Add(patience); ; {
		if s := c.now.Load(); s != nil {
			if a := s.answer(ctx, path, body); !a.Again {
				return a
			}
		}
		if st := c.member.Status(); st.Leader >= 0 && st.Leader != c.o.Peers.Rank {
			a, sent, err := c.pass(ctx, st.Addr, path, body)
			if err == nil && !a.Again {
				return a
			} else if err == nil {
				err = errNotYet
			} else if sent && path != "/status" {
				return failed(coded{fmt.Errorf("service %d (%s) has not answered to the end: %w; star sched status says whether it was done", st.Leader, st.Addr, err), exitcode.Lost})
			}
			why = fmt.Sprintf("service %d (%s): %v", st.Leader, st.Addr, err)
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return failed(c.nobody(why))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// nobody is why no service decides.
func (c *council) nobody(why string) error {
	return undecided(c.member.Missing(), len(c.o.Peers.Members), c.member.Full(), why)
}

// undecided is why none of n services decides.
func undecided(missing []string, n int, full error, why string) error {
	text := fmt.Sprintf("no service decides: %d of %d are there", n-len(missing), n)
	if len(missing) > 0 {
		text += ", missing " + strings.Join(missing, ", ")
	}
	if full != nil {
		text += fmt.Sprintf("; this one cannot write: %v", full)
	}
	if why != "" {
		text += "; " + why
	}
	if n-len(missing) > n/2 {
		return coded{fmt.Errorf("%s: they choose one, for which all must be there the first time: ask again in some seconds; jobs go on without", text), exitcode.Lost}
	}
	return coded{fmt.Errorf("%s: start them, until there are %d; jobs go on without", text, n/2+1), exitcode.Lost}
}

// errNotYet is what a service says that was asked as the one that decides.
var errNotYet = errors.New("it does not decide")

// pass has another service answer. sent: it has the question, and may have done what it asks for.
func (c *council) pass(ctx context.Context, addr, path string, body []byte) (a answer, sent bool, err error) {
	text, err := json.Marshal(question{path, body})
	if err != nil {
		return a, false, err
	}
	conn, _, text, err := transport.Open(ctx, c.net, addr, wire.Hello{
		Service: wire.ServiceElection, Role: wire.RoleTool, Job: c.o.Peers.group(), Token: c.o.Peers.Token, Version: job.Program, Host: process.Hostname(), Rank: -1}, text)
	var refused *transport.RejectError
	var dial *net.OpError
	if err != nil {
		return a, !errors.As(err, &refused) && !(errors.As(err, &dial) && dial.Op == "dial"), err
	}
	conn.Close()
	return a, true, json.Unmarshal(text, &a)
}

// accept is who gets a connection from another service.
func (c *council) accept(ctx context.Context) func(transport.Conn, wire.Hello, []byte) {
	return func(conn transport.Conn, h wire.Hello, payload []byte) {
		if h.Service == wire.ServiceElection && h.Role != wire.RoleTool {
			c.member.Accept(ctx, conn, h, payload) // logs why it ended
			return
		}
		refuse := func(exit int, why string) { transport.Refuse(conn, wire.Reject{Exit: exit, Reason: why}) }
		var q question
		switch s := c.now.Load(); {
		case h.Service != wire.ServiceElection:
			refuse(exitcode.Usage, "this is a service of star sched serve (--peers), and no job")
		case h.Job != c.o.Peers.group():
			refuse(exitcode.Disagree, fmt.Sprintf("this is one of %q, not of %q (--peers)", c.o.Peers.group(), h.Job))
		case json.Unmarshal(payload, &q) != nil:
			refuse(exitcode.Corrupt, "this is no question")
		case s == nil:
			refuse(exitcode.Lost, errNotYet.Error())
		default:
			defer conn.Close()
			limited, cancel := context.WithTimeout(ctx, passTime)
			defer cancel()
			text, err := json.Marshal(s.answer(limited, q.Path, q.Body))
			if err != nil {
				return
			}
			conn.SetWriteDeadline(time.Now().Add(passTime))
			transport.Send(conn, wire.Welcome{}, text)
		}
	}
}
