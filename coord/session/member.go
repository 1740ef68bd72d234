// Package session is a member's side of its connection to the coordinator: how a worker or a server finds the
// coordinator, joins the job, receives orders, sends reports, and notices that the coordinator is gone. It also has the
// types that both sides use beside the messages of the wire: Enrolment, Tensor, Told and Stand. Package coord is the
// other side.
//
//	m, err := Join(ctx, MemberConfig{…})   // Hello ──► Welcome
//	m.Beat()                               // Ping ──► Pong, until Close
//	order, err := m.Order()                // a worker; a server uses Assignment, then Hosted
//	err = Say(m, wire.Arrive{…}, nil)
//	m.Leave(0, "finished")
//	m.Close()
//
// Every error that ends the membership has its exit code (package exitcode).
package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Unreachable is how long a host may fail to answer, for both sides. TCP repeats a lost packet after 0.2, 0.6, 1.4, 3
// and 6.2 s.
const Unreachable = 7 * time.Second

// MemberConfig configures a worker's or a server's connection to the coordinator. Durations that are zero get their
// defaults. Addr, Hello and Network are required.
type MemberConfig struct {
	Network transport.Network
	Addr    string // of the coordinator
	Hello   wire.Hello

	// Addrs are the addresses of all processes that may coordinate, if there are several. They are tried in turn, and
	// Addr is ignored.
	Addrs []string

	// Rejoins says that this process takes part in a job that has begun: its coordinator is lost and another one takes
	// over. A process that does not answer soon is not the leader, and the next one is tried.
	Rejoins bool
	Enrol   *Enrolment // nil for servers

	// Reached returns the address at which others reach this process. It is called at each try, because it may depend on
	// the coordinator's name, which may not resolve yet: an error means another try. nil means Hello.Addr.
	Reached func(context.Context) (string, error)

	// Over returns where the end of the job is recorded, or an empty string if the job has not ended. Join calls it after
	// each try that finds no coordinator, because the job may have ended before this process started. nil means that
	// only the coordinator knows.
	Over func() string

	// JoinTimeout limits the retries after names that do not resolve and refused connections. Zero means 2 min.
	JoinTimeout time.Duration

	SendTimeout time.Duration // zero means 10 s
	DeadAfter   time.Duration // silence after which the coordinator is gone; zero means 60 s

	// Unreachable is how long the coordinator's host may fail to answer before the coordinator is gone. Zero means 7 s.
	Unreachable time.Duration

	// Deserted is, with Rejoins, how long every address must refuse connections before the job counts as over. Zero
	// means 5 s.
	Deserted time.Duration

	Log *slog.Logger
}

// Member is one process's connection to the coordinator. One goroutine may call Next or Order; the other methods are
// safe for concurrent use.
type Member struct {
	Welcome wire.Welcome
	Buffers []byte   // workers of a job that resumes: initial Model.Buffers, float32; otherwise empty
	Layout  []Tensor // servers, after Assignment: the tensors of the parameters

	Optimizer json.RawMessage // servers, after Assignment: Enrolment.Optimizer of the workers
	Conn      transport.Conn
	cfg       MemberConfig
	joined    time.Time

	mu sync.Mutex // writes to Conn

	// silence counts the Beats since the last message of the coordinator. It counts Beats and not seconds, because a
	// process that was suspended cannot receive.
	silence   atomic.Int32
	listening atomic.Bool
	deaf      atomic.Bool // the heartbeat has given up

	stop     chan struct{}
	stopOnce sync.Once
	beating  sync.WaitGroup
}

// LostError means that the coordinator is gone. Err is the connection's error, or for how long the coordinator was
// silent. In a job with several coordinators the member looks for the next one; otherwise its process ends with exit
// code 69.
type LostError struct {
	Addr string
	Err  error
}

// Error names the coordinator and the cause.
func (e *LostError) Error() string {
	return fmt.Sprintf("the coordinator at %s is lost: %v", e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// ExitCode is that of a loss (69).
func (e *LostError) ExitCode() int { return exitcode.Lost }

// JoinError means that a member could not join within Timeout.
type JoinError struct {
	Addr    string
	Timeout time.Duration
	Err     error // of the last attempt
}

// Error says what was missing: the coordinator or, if it can be reached, its Welcome.
func (e *JoinError) Error() string {
	var open *transport.Error
	if errors.As(e.Err, &open) && open.Op == "open" {
		return fmt.Sprintf("could not join the job within %v (--join-timeout): %s can be reached but sends no welcome: a star-ps of the job is missing, or the address is not a star-ps (--coordinator)",
			e.Timeout, e.Addr)
	}
	return fmt.Sprintf("could not join the job at %s within %v (--join-timeout): %v", e.Addr, e.Timeout, e.Err)
}

// Unwrap returns the last attempt's error.
func (e *JoinError) Unwrap() error { return e.Err }

// ExitCode is that of a loss (69): the process may be started again.
func (e *JoinError) ExitCode() int { return exitcode.Lost }

// StrangerError means that another program listens at the coordinator's address.
type StrangerError struct {
	Addr string
	Err  error
}

// Error names the address and the setting for it.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("no coordinator at %s: %v; --coordinator is the address of the job's star-ps of rank 0 (its --listen, not --http)", e.Addr, e.Err)
}

// Unwrap returns the other program's answer.
func (e *StrangerError) Unwrap() error { return e.Err }

// ExitCode is that of usage (2): a retry would reach the same program.
func (e *StrangerError) ExitCode() int { return exitcode.Usage }

// DesertedError means that no process listens any more at the addresses of a job in which this process took part: the
// job has ended, or its coordinators have.
type DesertedError struct {
	Addrs string
	For   time.Duration // how long every address has refused connections
	Err   error         // of the last attempt
}

// Error names the addresses.
func (e *DesertedError) Error() string {
	return fmt.Sprintf("the job has ended, or all processes that coordinate it: no process has listened at %s for %v: %v", e.Addrs, e.For, e.Err)
}

// Unwrap returns the last attempt's error.
func (e *DesertedError) Unwrap() error { return e.Err }

// ExitCode is that of a loss (69).
func (e *DesertedError) ExitCode() int { return exitcode.Lost }

// OverError means that the job had ended successfully when a process looked for its coordinator.
type OverError struct{ Place string } // the source of this: the coordinator's address, or a file

func (e *OverError) Error() string { return fmt.Sprintf("the job is over according to %s", e.Place) }

// ExitCode is that of success.
func (e *OverError) ExitCode() int { return 0 }

// Join connects to the coordinator and waits for its Welcome. Until JoinTimeout it retries, with jittered exponential
// back-off, after errors that may be temporary: names that do not resolve yet, refused and broken connections. These
// errors are final: a rejection by the coordinator (transport.RejectError), a hello that cannot be sent
// (transport.HelloError), an answer that cannot be read (transport.AnswerError), another program at the only address of
// a job that has not begun (*StrangerError), and errors of the network that have an exit code (such as a certificate
// that is not trusted).
//
// Other errors: *OverError (the job is done), *JoinError after JoinTimeout, with Rejoins *DesertedError when no process
// listens any more, and the cause of ctx. The caller must close the Member. Until it calls Beat the coordinator hears
// nothing from it, and counts it as gone after DeadAfter.
func Join(ctx context.Context, cfg MemberConfig) (*Member, error) {
	cfg.JoinTimeout = cmp.Or(cfg.JoinTimeout, 2*time.Minute)
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, 10*time.Second)
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, time.Minute)
	cfg.Unreachable = cmp.Or(cfg.Unreachable, Unreachable)
	cfg.Deserted = cmp.Or(cfg.Deserted, 5*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var payload []byte
	if cfg.Enrol != nil {
		payload, _ = json.Marshal(cfg.Enrol)
	}
	limited, cancel := context.WithTimeout(ctx, cfg.JoinTimeout)
	defer cancel()
	begun := time.Now()
	site := flightrecorder.Open(fmt.Sprintf("%s %d", cfg.Hello.Role, cfg.Hello.Rank), "the welcome of the coordinator at "+cfg.Addr, "", "")
	defer site.Close()
	site.Begin(-1, cfg.JoinTimeout)
	pause := backoff.NewExponentialBackOff() // jittered: workers start together
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 50*time.Millisecond, 2*time.Second, 2
	var refused deserted
	var last error // not the error that the time-out itself caused, if there is another
	search := newSearch(&cfg)
	if search != nil {
		pause.MaxInterval = 250 * time.Millisecond // another process takes over soon
	}
	for try := 1; ; try++ {
		conn, welcome, extra, err := search.open(limited, &cfg, payload)
		if err == nil {
			m := &Member{Welcome: welcome, Buffers: extra, Conn: conn, cfg: cfg, joined: time.Now(), stop: make(chan struct{})}
			conn.SetPeer("coordinator " + cfg.Addr)
			if err := transport.Unreachable(conn, cfg.Unreachable); err != nil {
				cfg.Log.Debug("cannot detect an unreachable host; only silence is noticed", "peer", conn.Peer(), "err", err)
			}
			return m, nil
		}
		if r, ok := errors.AsType[*transport.RejectError](err); ok && r.Exit == 0 {
			return nil, &OverError{cfg.Addr}
		}
		var final interface{ ExitCode() int }
		// final: a retry would fail again
		if errors.As(err, &final) && !(cfg.Rejoins && final.ExitCode() == exitcode.Restart) {
			return nil, err
		}
		if errors.Is(err, transport.ErrNotSTAR) && search == nil && !cfg.Rejoins {
			return nil, &StrangerError{cfg.Addr, err}
		}
		refused.note(err, time.Now())
		if search.next(&cfg, err) {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if cfg.Over != nil {
			if place := cfg.Over(); place != "" {
				return nil, &OverError{place}
			}
		}
		if n := max(len(cfg.Addrs), 1); cfg.Rejoins && refused.times >= n && time.Since(refused.since) >= cfg.Deserted {
			return nil, &DesertedError{cmp.Or(strings.Join(cfg.Addrs, ", "), cfg.Addr), cfg.Deserted, err}
		}
		if limited.Err() == nil {
			last = err
		} else {
			return nil, &JoinError{cfg.Addr, cfg.JoinTimeout, cmp.Or(last, err)}
		}
		if try%10 == saidAt {
			cfg.Log.Info("waiting for the coordinator", "addr", cfg.Addr, "for", time.Since(begun).Round(time.Second), "err", err)
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-limited.Done():
			if ctx.Err() == nil {
				return nil, &JoinError{cfg.Addr, cfg.JoinTimeout, err}
			}
		}
	}
}

// saidAt is the first try after which the log says that the member waits, after some 0.7 s; then it does so after every
// tenth. Processes of one job that start together find the coordinator before that.
const saidAt = 5

// deserted counts the attempts in a row that found no listening process, and since when.
type deserted struct {
	times int
	since time.Time
}

// note records a failed attempt. A host that does not answer resets the count: it may only be cut off.
func (d *deserted) note(err error, now time.Time) {
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED):
		*d = deserted{}
		return
	case d.times == 0:
		d.since = now
	}
	d.times++
}

// Beats is the number of heartbeats in DeadAfter, for both sides. A side that receives none for that many gives the
// other side up, so a few lost or late heartbeats do no harm.
const Beats = 6

// Beat starts the heartbeat: regular Pings that are answered by Pongs, so that each side notices when the other has
// become unreachable. Call it once, before Next, Order or Average. The goroutine ends with Close, or when it gives the
// coordinator up: then a waiting call of Next, Order or Average returns a *LostError.
func (m *Member) Beat() {
	m.beating.Go(func() {
		t := time.NewTicker(m.cfg.DeadAfter / Beats)
		defer t.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-t.C:
				if m.listening.Load() && m.silence.Add(1) > Beats {
					m.deaf.Store(true)
					m.Conn.SetReadDeadline(time.Unix(1, 0))
					return
				}
				if Say(m, wire.Ping{Sent: time.Now().UnixNano()}, nil) != nil {
					// Next may still find out why.
					m.Conn.SetReadDeadline(time.Now().Add(m.cfg.DeadAfter))
					return
				}
			}
		}
	})
}

// Elapsed is the time since the run began: the coordinator's clock at the Welcome and this process's clock since then.
// Its error is the transfer time of the Welcome.
func (m *Member) Elapsed() time.Duration { return m.Welcome.Elapsed + time.Since(m.joined) }

// Say sends one message to the coordinator. It takes at most SendTimeout. The error is a *LostError: the coordinator
// cannot be reached any more. Several goroutines may call it. payload is not used after it has returned.
func Say[M wire.Message](m *Member, msg M, payload []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Conn.SetWriteDeadline(time.Now().Add(m.cfg.SendTimeout))
	if err := transport.Send(m.Conn, msg, payload); err != nil {
		return &LostError{m.cfg.Addr, err}
	}
	return nil
}

// Next waits for the coordinator's next Release. A Reject ends the membership: it is returned as
// *transport.RejectError. Other errors: a *LostError, and a frame that is not a Release: a member that may receive
// other orders uses Order. Only one goroutine may call it.
func (m *Member) Next() (wire.Release, error) {
	f, err := m.recv()
	if err != nil {
		return wire.Release{}, err
	}
	if f.Kind != wire.KindRelease {
		return wire.Release{}, fmt.Errorf("unexpected frame %v from the coordinator, waiting for a release", f.Kind)
	}
	return wire.ParseRelease(f.Header)
}

// Assignment waits for the Assign of a server, at most for timeout; 0 means no limit. It sets Layout and Optimizer of
// the Member. Errors: a *LostError if nothing arrives in time or the connection ends, a *transport.RejectError, and the
// cause of ctx. No other goroutine may read the connection meanwhile.
func (m *Member) Assignment(ctx context.Context, timeout time.Duration) (wire.Assign, error) {
	defer context.AfterFunc(ctx, func() { m.Conn.Close() })()
	site := flightrecorder.Open(fmt.Sprintf("%s %d", m.cfg.Hello.Role, m.cfg.Hello.Rank), "the assignment of shards", "", "")
	defer site.Close()
	site.Begin(-1, timeout)
	if timeout > 0 {
		m.Conn.SetReadDeadline(time.Now().Add(timeout))
	}
	defer m.Conn.SetReadDeadline(time.Time{})
	f, err := m.Conn.Recv()
	switch {
	case ctx.Err() != nil:
		return wire.Assign{}, context.Cause(ctx)
	case err != nil:
		return wire.Assign{}, &LostError{m.cfg.Addr, fmt.Errorf("waiting for the assignment of shards: %w", err)}
	case f.Kind == wire.KindReject:
		r, err := wire.ParseReject(f.Header)
		if err != nil {
			return wire.Assign{}, err
		}
		return wire.Assign{}, &transport.RejectError{Peer: m.Conn.Peer(), Exit: r.Exit, Reason: r.Reason, Ends: true}
	case f.Kind != wire.KindAssign:
		return wire.Assign{}, fmt.Errorf("unexpected frame %v from the coordinator, waiting for the assignment of shards", f.Kind)
	}
	a, err := wire.ParseAssign(f.Header)
	if err != nil {
		return a, err
	}
	payload, err := transport.ReadAll(m.Conn, f)
	if err != nil {
		return a, err
	}
	var e Enrolment
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &e); err != nil {
			return a, fmt.Errorf("layout of the model from the coordinator: %w", err)
		}
	}
	m.Layout, m.Optimizer = e.Layout, e.Optimizer
	return a, nil
}

// Hosted is the connection for a server after its Assignment. Its errors are *LostError; a coordinator that sends
// nothing for DeadAfter, not even a Ping, is lost. It replaces Next and Order: only one of them may read. Leave may be
// called during a write.
func (m *Member) Hosted() transport.Conn { return hosted{m.Conn, m} }

type hosted struct {
	transport.Conn
	m *Member
}

// Recv is Conn.Recv with the deadline and the errors of Hosted.
func (h hosted) Recv() (transport.Frame, error) {
	h.Conn.SetReadDeadline(time.Now().Add(h.m.cfg.DeadAfter))
	f, err := h.Conn.Recv()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("silent for more than %v (--dead-after)", h.m.cfg.DeadAfter)
	}
	if err != nil {
		return f, &LostError{h.m.cfg.Addr, err}
	}
	return f, nil
}

// WriteFrame is Conn.WriteFrame with the errors of Hosted.
func (h hosted) WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if err := h.Conn.WriteFrame(k, header, payload, sum); err != nil {
		return &LostError{h.m.cfg.Addr, err}
	}
	return nil
}

// Average sends the model's buffers for an evaluation and replaces them by the mean over all workers. It waits for all
// workers that evaluate. Errors are those of Say and Next, and buffers of another length. After an error buffers may be
// partly replaced.
func (m *Member) Average(eval int64, buffers []float32) error {
	w := star.Worker(m.Welcome.Rank)
	if err := Say(m, wire.Buffers{Worker: w, Eval: eval}, transport.Floats(buffers)); err != nil {
		return err
	}
	f, err := m.recv()
	if err != nil {
		return err
	}
	if f.Kind != wire.KindBuffers || f.Size != int64(4*len(buffers)) {
		return fmt.Errorf("unexpected frame %v of %d bytes from the coordinator, waiting for %d bytes of averaged buffers", f.Kind, f.Size, 4*len(buffers))
	}
	return m.Conn.ReadPayload(transport.Floats(buffers))
}

// recv reads the next frame that is not part of the heartbeat. A Reject becomes an error. While recv waits, the
// heartbeat counts the beats without a message; each frame resets the count.
func (m *Member) recv() (transport.Frame, error) {
	m.silence.Store(0)
	m.listening.Store(true)
	defer m.listening.Store(false)
	for {
		f, err := m.Conn.Recv()
		if err != nil {
			if m.deaf.Load() {
				err = fmt.Errorf("silent for more than %v (--dead-after)", m.cfg.DeadAfter)
			}
			return f, &LostError{m.cfg.Addr, err}
		}
		m.silence.Store(0)
		switch f.Kind {
		case wire.KindPong:
			if err := m.Conn.Discard(); err != nil {
				return f, &LostError{m.cfg.Addr, err}
			}
		case wire.KindReject:
			r, err := wire.ParseReject(f.Header)
			if err != nil {
				return f, err
			}
			return f, &transport.RejectError{Peer: m.Conn.Peer(), Exit: r.Exit, Reason: r.Reason, Ends: true}
		default:
			return f, nil
		}
	}
}

// Leave tells the coordinator that the process will end with this exit code. The error is that of Say. The coordinator
// releases the member at once or, if a signal ends it (codes above 128), when the job can do without it; until then the
// member keeps working.
func (m *Member) Leave(exit int, reason string) error {
	return Say(m, wire.Leave{Worker: star.Worker(m.Welcome.Rank), Exit: exit, Reason: reason}, nil)
}

// Close ends the connection and waits for the heartbeat to end. It may be called twice. The error is that of the
// connection. Other methods that are waiting return an error.
func (m *Member) Close() error {
	m.stopOnce.Do(func() { close(m.stop) })
	err := m.Conn.Close()
	m.beating.Wait()
	return err
}
