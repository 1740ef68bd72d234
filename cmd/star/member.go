package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"star/cmd/internal/daemon"
	"star/cmd/internal/settings"
)

// memberCommand is what star run --hosts starts on other hosts. Its first line of
// standard input is a JSON list of variables; each further line is the number of a signal
// that it is to send itself. When the input ends, so does the process: whoever started it
// is gone.
func memberCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "member ROLE",
		Short:  "A process of star run --hosts",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			roles := map[string]func(string) *cobra.Command{"ps": daemon.Server, "worker": daemon.Worker}
			make := roles[args[0]]
			if make == nil {
				return &settings.UsageError{Msg: fmt.Sprintf("star member: no role %q; ps or worker", args[0])}
			}
			in := bufio.NewReaderSize(os.Stdin, 1<<16)
			if err := takeSettings(in); err != nil {
				return &settings.UsageError{Msg: "star member: standard input: " + err.Error() + "; star run --hosts starts this command"}
			}
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			go obey(in, func(sig syscall.Signal) { self.Signal(sig) })
			cmd := make(args[0])
			cmd.SetArgs([]string{})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			return cmd.Execute()
		},
	}
}

// maxSettings is more than all variables of a job are long.
const maxSettings = 1 << 20

// takeSettings reads the variables into the environment, in which no others of ours
// stay.
func takeSettings(in *bufio.Reader) error {
	var line []byte
	for {
		part, more, err := in.ReadLine()
		if err != nil {
			return fmt.Errorf("no settings: %w", err)
		}
		if line = append(line, part...); len(line) > maxSettings {
			return errors.New("the settings do not end")
		}
		if !more {
			break
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

// obey passes signals on until the input ends, which counts as SIGTERM.
func obey(in io.Reader, send func(syscall.Signal)) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if n, err := strconv.Atoi(lines.Text()); err == nil && n > 0 && n < 65 {
			send(syscall.Signal(n))
		}
	}
	send(syscall.SIGTERM)
}
