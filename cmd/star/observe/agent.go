package observe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/observe/watch"
	"star/worker/agent"
)

// agentCommand is star agent, which the first process of a torch.distributed job on a host starts (_agent.py).
func agentCommand() *cobra.Command {
	w := &watching{set: new(settings.Set), outName: "watch-out", quiet: true}
	var fd int
	var advertise string
	var measure bool
	s := w.set
	settings.Var(s, &fd, "listen-fd", -1, "descriptor of the Unix socket at which processes connect")
	settings.Var(s, &advertise, "advertise", "", "address or name by which other hosts reach this one (of the interface that leads to the job's store)")
	settings.Var(s, &measure, "watch", true, "report slow ranks, as star watch does")
	settings.Var(s, &w.out, w.outName, "", "folder for the run log of that, on the host of rank 0; an existing one is kept under another name ("+watchOut+" if there is a page)")
	settings.Var(s, &w.page, "http", "off", "address of the page that shows it, on the host of rank 0, such as 127.0.0.1:7071")
	settings.Var(s, &w.token, "token", "", "shared secret of the job's hosts (rather as STAR_TOKEN; from the job's store)")
	w.shows.Declare(s)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run collectives between hosts for processes with the star backend of torch.distributed",
		Long: `One for all processes of a job on a host. The first of them starts it, and it ends when the last one has ended, whatever signals it gets.
Settings come from the environment of that process: STAR_TOKEN, STAR_ADVERTISE, STAR_TLS_CERT, STAR_WATCH_OUT, STAR_HTTP, …`,
		Hidden: true,
		Args:   settings.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var err error
			if w.tls, err = w.shows.Config(s); err != nil {
				return err
			}
			l, err := listenerOf(fd)
			if err != nil {
				return s.Invalid("listen-fd", err)
			}
			// A signal for the whole job reaches the processes, which may need the agent until they have ended.
			signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
			cfg := agent.Config{Advertise: advertise, Token: string(w.token), TLS: w.tls}
			cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			if measure && os.Getenv(watch.SocketVariable) == "" { // else star watch measures the job
				m, err := w.measure()
				if err != nil {
					return err
				}
				defer m.close()
				cfg.Watch = m
			}
			return agent.Serve(context.Background(), l, cfg)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// measuring is the part of star watch in an agent.
type measuring struct {
	*watching
	hook, socket string
	cancel       context.CancelFunc
	ctx          context.Context
	end          func() // of the collector

	mu     sync.Mutex
	take   func(watch.Row) // nil: rows go nowhere yet
	finish func(why string)
}

// measure takes rows of this host's ranks.
func (w *watching) measure() (*measuring, error) {
	m := &measuring{watching: w}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	c, end, err := w.collect(m.ctx, func(r watch.Row) {
		m.mu.Lock()
		take := m.take
		m.mu.Unlock()
		if take != nil {
			take(r)
		}
	})
	if err != nil {
		m.cancel()
		return nil, err
	}
	m.end = end
	m.hook, m.socket = c.Hook()
	return m, nil
}

// Hook and Socket are those of the collector.
func (m *measuring) Hook() string   { return m.hook }
func (m *measuring) Socket() string { return m.socket }

// Lead makes this host the head.
func (m *measuring) Lead(l net.Listener, token string) error {
	m.token = settings.Secret(token)
	if m.out == "" && m.page != "off" && m.page != "" {
		m.out = watchOut
	}
	take, finish, log, err := m.head(m.ctx)
	if err != nil {
		return err
	}
	if err := m.serve(m.ctx, log); err != nil {
		return err
	}
	m.listenOn(m.ctx, l, take)
	m.send(take, finish)
	return nil
}

// Follow sends rows to the head.
func (m *measuring) Follow(addr, token string) {
	m.to, m.token = addr, settings.Secret(token)
	m.send(m.follow(m.ctx, followTime))
}

// followTime is how long an agent waits at its end for the head to take rows.
const followTime = 500 * time.Millisecond

func (m *measuring) send(take func(watch.Row), finish func(why string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.take, m.finish = take, finish
}

func (m *measuring) close() {
	m.end()
	m.mu.Lock()
	finish := m.finish
	m.mu.Unlock()
	if finish != nil {
		finish("")
	}
	m.cancel()
}

// listenerOf returns the listening Unix socket of a descriptor.
func listenerOf(fd int) (*net.UnixListener, error) {
	if fd < 3 {
		return nil, fmt.Errorf("%d is not a socket: star_train starts this command", fd)
	}
	f := os.NewFile(uintptr(fd), "agent")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w; star_train starts this command", fd, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("descriptor %d is a socket of kind %s: star_train starts this command", fd, l.Addr().Network())
	}
	return u, nil
}
