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

// Several services can share a queue: they elect a leader (package election), and each event is on the disks of a
// majority before the leader acts on it. The other services forward requests to the leader.

// Peers configures services that share a queue.
type Peers struct {
	Members []string // addresses by rank, host:port
	Rank    int      // of this one
	// Token authenticates the services to each other; no job gets it. Empty: the one in the folder of the jobs, which
	// the first service creates.
	Token string
	TLS   *tls.Config   // nil: without TLS
	Wait  time.Duration // how long the first election may take
}

const (
	peersDir = "peers"         // in a service's folder: the election's state
	jobsMark = "services.json" // in the folder of the jobs: the services that own them
	patience = 5 * time.Second // how long a request waits for a leader
	passTime = 20 * time.Second
)

// errLost: another service is the leader, or will be.
var errLost = coded{errors.New("another service decides by now, or will: check with star sched status whether this was done, else ask again"), exitcode.Lost}

// PeerStatus is one of several services in a Status.
type PeerStatus struct {
	Rank    int    `json:"rank"`
	Addr    string `json:"addr"`
	Decides bool   `json:"decides,omitempty"`
	Missing bool   `json:"missing,omitempty"` // the leader has no connection to it
}

// peerService is one of several services that share a queue.
type peerService struct {
	o      Options
	member *election.Member
	net    *transport.TCP
	ended  *codes
	now    atomic.Pointer[Service] // set while this service is the leader
}

// ServePeers runs one of several services until the context ends, or it no longer takes part. Jobs continue without it.
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
	c := &peerService{o: o, net: transport.NewTCP(cfg), ended: newCodes()}
	listener, err := c.net.Listen(p.Members[p.Rank])
	if err != nil {
		return coded{fmt.Errorf("--peers: cannot listen on this service's own address, %s (--rank %d): %w: is a service of this rank running already, or is it another machine's address?", p.Members[p.Rank], p.Rank, err), exitcode.Disagree}
	}
	defer listener.Close()
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
	serving, leave := context.WithCancel(context.WithoutCancel(ctx)) // it hands over before it leaves
	accepted, ran := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(accepted)
		transport.Serve(serving, listener, cfg, c.accept(serving))
	}()
	go func() { ran <- c.member.Run(serving) }()
	o.Log.Info("service started as one of several", "service", p.Rank, "peers", p.Members, "dir", o.Dir, "jobs", o.Jobs)
	err = c.decide(ctx)
	leave()
	<-accepted
	if why := <-ran; err == nil && ctx.Err() == nil {
		err = why
	}
	if err == nil {
		o.Log.Info("service stopped; the other services and the jobs continue")
	}
	return err
}

// group returns the job name by which the services of one queue identify each other.
func (p *Peers) group() string { return "star sched " + strings.Join(p.Members, ",") }

// claim checks that the folders belong to these services, and creates what is missing in this one's.
func (p *Peers) claim(o *Options) error {
	if _, err := os.Stat(filepath.Join(o.Dir, queueName)); err == nil {
		return coded{fmt.Errorf("%s: this folder has the queue of a single service: use another --dir; its jobs end under the service that has them", filepath.Join(o.Dir, queueName)), exitcode.Disagree}
	}
	if i, err := os.Stat(o.Jobs); errors.Is(err, fs.ErrNotExist) || err == nil && !i.IsDir() {
		return coded{fmt.Errorf("--jobs %s: no such folder: mount or create it; all services must see the same one", o.Jobs), exitcode.Missing}
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
	var owners []string
	// another service may be about to write it
	for end := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &owners)
		}
		switch {
		case err == nil && slices.Equal(owners, p.Members):
			return nil
		case err == nil:
			return coded{fmt.Errorf("%s: these are the jobs of the services %s, and this is one of %s: use another --jobs, or the same --peers in the same order", name, strings.Join(owners, ","), strings.Join(p.Members, ",")), exitcode.Disagree}
		case time.Now().After(end):
			return coded{fmt.Errorf("%s: %w: want a list of addresses; remove the file if no service has these jobs", name, err), exitcode.Corrupt}
		}
	}
}

// decide waits until this service is elected, leads, and waits again, until the context ends or the member leaves the
// group.
func (c *peerService) decide(ctx context.Context) error {
	for {
		lead, err := c.member.Await(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, election.ErrLeadershipLost): // the member has ended; Run returns the reason
			return nil
		case err != nil:
			return err
		}
		err = c.lead(ctx, lead)
		select {
		case <-lead.Over():
		default:
			if e := lead.HandOver(); e != nil && ctx.Err() == nil {
				return coded{fmt.Errorf("cannot lead: this service lacks what was agreed on, and no other one takes over: %w", e), exitcode.Lost}
			}
		}
		if err != nil && !errors.Is(err, errLost) {
			return err
		}
		c.o.Log.Info("leadership ended")
	}
}

// lead leads until the leadership ends or the context does.
func (c *peerService) lead(ctx context.Context, lead *election.Leadership) error {
	s, err := c.taken(lead)
	if err != nil {
		return err
	}
	c.o.Log.Info("elected leader", "service", c.o.Peers.Rank, "term", lead.Term, "events", len(lead.Added))
	c.now.Store(s)
	if s.o.Page != nil {
		s.o.Page.Show(s.View())
	}
	s.run(ctx, lead.Over())
	c.now.Store(nil)
	if s.o.Page != nil {
		s.stuck = "another service decides now: see star sched status"
		s.o.Page.Show(s.View())
	}
	return nil
}

// taken creates the service from what was agreed on before.
func (c *peerService) taken(lead *election.Leadership) (*Service, error) {
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

// shortenAt is the smallest number of bytes of events that a saved queue replaces; it also must not be smaller than the
// saved queue.
const shortenAt = 64 << 10

// leadership is the part of *election.Leadership that a book uses.
type leadership interface {
	SetNote([]byte) error
	Add([]byte) error
	Held() bool
	Hold() error
}

// agreedBook gets the agreement of the other services for each event. When the events have become many, it gets their
// agreement for the saved queue instead.
type agreedBook struct {
	lead  leadership
	hosts []*live.Host
	log   *slog.Logger
	head  head         // the note: the saved queue before the events
	since []live.Event // events added to it
	size  int          // size of these, bytes
}

// read loads what was agreed on: the saved queue, and events since. note is nil if b.head has it.
func (b *agreedBook) read(dir string, note []byte, added [][]byte) (q *live.Queue, h *live.History, events []live.Event, err error) {
	bad := func(err error) error { return coded{fmt.Errorf("%s: %w: %w", dir, errQueue, err), exitcode.Corrupt} }
	if note != nil {
		err := json.Unmarshal(note, &b.head)
		if n := b.head.Format; err == nil && n != queueFormat && n != savedFormat {
			err = fmt.Errorf("it has format %d, and this program knows %d and %d: use the same release of STAR for all services", n, queueFormat, savedFormat)
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

// fresh returns hosts without state, except whether they are closed.
func fresh(hosts []*live.Host) (all []*live.Host) {
	for _, h := range hosts {
		all = append(all, &live.Host{Name: h.Name, Slots: h.Slots, Closed: h.Closed})
	}
	return all
}

// note gets agreement on the head of a queue, which replaces everything agreed on before.
func (b *agreedBook) note(h head) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := b.lead.SetNote(text); err != nil { // it may be agreed on nevertheless, which is equivalent
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
			return coded{fmt.Errorf("cannot compact the queue's events: %w", err), exitcode.Corrupt}
		}
		events := len(b.since)
		if err := b.note(head{savedFormat, b.head.Time, thisProgram(), text}); err != nil {
			return err
		}
		b.log.Info("queue log compacted", "events", events, "bytes", len(text))
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := b.lead.Add(text); err != nil { // it may be agreed on nevertheless: the next leader knows
		return errLost
	}
	b.since = append(b.since, e)
	b.size += len(text)
	return nil
}

func (b *agreedBook) held() bool { return b.lead.Held() || b.lead.Hold() == nil }

// peers returns the services and their connections, as the leader sees them.
func (c *peerService) peers() (ps []PeerStatus) {
	missing := c.member.Missing()
	for r, addr := range c.o.Peers.Members {
		ps = append(ps, PeerStatus{r, addr, r == c.o.Peers.Rank, slices.Contains(missing, fmt.Sprintf("service %d (%s)", r, addr))})
	}
	return ps
}

// question is a request that one service forwards to another.
type question struct {
	Path string `json:"path"`
	Body []byte `json:"body"`
}

// answer responds to a request, or forwards it to the leader.
func (c *peerService) answer(ctx context.Context, path string, body []byte) answer {
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
				return failed(coded{fmt.Errorf("service %d (%s) has not answered completely: %w; check with star sched status whether it was done", st.Leader, st.Addr, err), exitcode.Lost})
			}
			why = fmt.Sprintf("service %d (%s): %v", st.Leader, st.Addr, err)
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return failed(c.undecided(why))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// undecided returns why no service leads.
func (c *peerService) undecided(why string) error {
	return undecided(c.member.Missing(), len(c.o.Peers.Members), c.member.Full(), why)
}

// undecided returns why none of n services leads.
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
		return coded{fmt.Errorf("%s: they elect one, for which all must be there the first time: ask again in some seconds; running jobs continue", text), exitcode.Lost}
	}
	return coded{fmt.Errorf("%s: start services until %d are there; running jobs continue", text, n/2+1), exitcode.Lost}
}

// errNotYet is the response of a service that was asked as the leader and is not.
var errNotYet = errors.New("it does not decide")

// pass forwards a request to another service. sent means that it has the request, and may have carried it out.
func (c *peerService) pass(ctx context.Context, addr, path string, body []byte) (a answer, sent bool, err error) {
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

// accept handles a connection from another service.
func (c *peerService) accept(ctx context.Context) func(transport.Conn, wire.Hello, []byte) {
	return func(conn transport.Conn, h wire.Hello, payload []byte) {
		if h.Service == wire.ServiceElection && h.Role != wire.RoleTool {
			c.member.Accept(ctx, conn, h, payload) // it logs why it ended
			return
		}
		refuse := func(exit int, why string) { transport.Refuse(conn, wire.Reject{Exit: exit, Reason: why}) }
		var q question
		switch s := c.now.Load(); {
		case h.Service != wire.ServiceElection:
			refuse(exitcode.Usage, "this is a service of star sched serve (--peers), not a job")
		case h.Job != c.o.Peers.group():
			refuse(exitcode.Disagree, fmt.Sprintf("this is one of %q, not of %q (--peers)", c.o.Peers.group(), h.Job))
		case json.Unmarshal(payload, &q) != nil:
			refuse(exitcode.Corrupt, "invalid request")
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
