package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/daemon"
	"star/cmd/internal/launch"
	"star/internal/settings"
)

// memberCommand is what star run --hosts starts on other hosts. Its first line of standard input is a JSON list of
// variables; each further line is the number of a signal that it is to send itself. When the input ends, the process
// that started it is gone, and it ends, too.
func memberCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "member {ps | worker | command}",
		Short:  "A process of star run --hosts",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			roles := map[string]func(string) *cobra.Command{"ps": daemon.Server, "worker": daemon.Worker}
			make := roles[args[0]]
			if make == nil && args[0] != launch.CommandRole {
				return &settings.UsageError{Msg: fmt.Sprintf("star member: no role %q; want ps, worker or %s", args[0], launch.CommandRole)}
			}
			if os.Getenv(toldVariable) == "" {
				if err := takeSettings(os.Stdin); err != nil {
					return &settings.UsageError{Msg: "star member: standard input: " + err.Error() + "; star run --hosts starts this command"}
				}
				os.Setenv(toldVariable, "1")
				daemon.Relax(slack()) // and restarts: here, before the program reads input
			}
			if make == nil {
				words, err := takeCommand()
				if err != nil {
					return &settings.UsageError{Msg: "star member: standard input: " + err.Error()}
				}
				return memberRuns(context.Background(), words, func(send func(syscall.Signal)) { obey(os.Stdin, send) })
			}
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			go obey(os.Stdin, func(sig syscall.Signal) { self.Signal(sig) })
			cmd := make(args[0])
			cmd.SetArgs([]string{})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			return cmd.Execute()
		},
	}
}

// maxSettings is more than all variables of a job are long.
const maxSettings = 1 << 20

// toldVariable marks that the settings are in the environment already.
const toldVariable = "INSIDE_STAR_MEMBER"

// takeCommand takes the words of a command out of the environment, which the command inherits.
func takeCommand() (words []string, err error) {
	text := os.Getenv(launch.CommandVariable)
	os.Unsetenv(launch.CommandVariable)
	if err := json.Unmarshal([]byte(text), &words); err != nil || len(words) == 0 {
		return nil, fmt.Errorf("no command in %q", text)
	}
	return words, nil
}

// slack returns --timer-slack. An invalid value is reported where all settings are read.
func slack() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(settings.Variable("timer-slack"))); err == nil {
		return d
	}
	return settings.TimerSlack
}

// takeSettings reads the variables into the environment, in which no others of ours
// stay. It takes nothing from in that is behind their line.
func takeSettings(in io.Reader) error {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(in, b); err != nil {
			return fmt.Errorf("no settings: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > maxSettings {
			return errors.New("the settings do not end")
		}
	}
	var env []string
	if err := json.Unmarshal(line, &env); err != nil {
		return fmt.Errorf("no list of variables: %w", err)
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "STAR_") {
			os.Unsetenv(name)
		}
	}
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return fmt.Errorf("%q is no variable", name)
		}
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// obey passes signals on until the input ends, which counts as SIGTERM, or as SIGKILL after another signal: star run
// has waited long enough.
func obey(in io.Reader, send func(syscall.Signal)) {
	lines := bufio.NewScanner(in)
	last := syscall.SIGTERM
	for lines.Scan() {
		if n, err := strconv.Atoi(lines.Text()); err == nil && n > 0 && n < 65 {
			send(syscall.Signal(n))
			last = syscall.SIGKILL
		}
	}
	send(last)
}
