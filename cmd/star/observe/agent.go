package observe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/worker/agent"
)

// agentCommand is star agent, which the first process of a torch.distributed job on a host starts (_agent.py).
func agentCommand() *cobra.Command {
	var fd int
	var advertise string
	var token settings.Secret
	var shows cli.Credentials
	s := new(settings.Set)
	settings.Var(s, &fd, "listen-fd", -1, "descriptor of the Unix socket at which processes connect")
	settings.Var(s, &advertise, "advertise", "", "address or name by which other hosts reach this one (of the interface that leads to the job's store)")
	settings.Var(s, &token, "token", "", "shared secret of the job's hosts (rather as STAR_TOKEN; from the job's store)")
	shows.Declare(s)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run collectives between hosts for processes with the star backend of torch.distributed",
		Long: `One for all processes of a job on a host (docs/backend.md). The first of them starts it, and it ends when the last one has ended, whatever signals it gets.
Settings come from the environment of that process: STAR_TOKEN, STAR_ADVERTISE, STAR_TLS_CERT, …`,
		Hidden: true,
		Args:   settings.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := shows.Config(s)
			if err != nil {
				return err
			}
			l, err := listenerOf(fd)
			if err != nil {
				return s.Invalid("listen-fd", err)
			}
			// A signal for the whole job reaches the processes, which may need the agent until they have ended.
			signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			return agent.Serve(context.Background(), l, agent.Config{Advertise: advertise, Token: string(token), TLS: t, Log: log})
		},
	}
	cli.Bind(cmd, s)
	return cmd
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
