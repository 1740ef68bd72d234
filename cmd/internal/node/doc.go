// Package node is one process of a job: it takes the settings and wires the rooms
// together that make a server (star-ps) or a worker (star-worker). It is the only
// place where the drivers, the models and the data meet.
package node

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"runtime"

	"star/checkpoint"
	"star/cmd/internal/settings"
	"star/train/data"
	"star/transport"
)

// Program is the name and version that members tell each other and the run log.
const Program = "star 0.1.0"

// LaunchedVariable is set in the processes that star run starts.
const LaunchedVariable = "INSIDE_STAR_RUN"

// Exit codes (docs/operations.md).
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitUsage    = 2
	ExitCorrupt  = 65
	ExitMissing  = 66
	ExitLost     = 69
	ExitDiverged = 70
	ExitRestart  = 75
	ExitDisagree = 78
	ExitInt      = 130
	ExitTerm     = 143
)

// ExitCode is the exit code that fits err.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.ExitCode()
	case errors.Is(err, data.ErrMissing), errors.Is(err, checkpoint.ErrMissing):
		return ExitMissing
	case errors.Is(err, data.ErrCorrupt), errors.Is(err, checkpoint.ErrCorrupt):
		return ExitCorrupt
	}
	return ExitFailure
}

// FileError gives err the exit code of a file that is missing or, where corrupt is in it,
// not what it should be.
func FileError(err, corrupt error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fileError{err, ExitMissing}
	case errors.Is(err, corrupt):
		return &fileError{err, ExitCorrupt}
	}
	return err
}

type fileError struct {
	error
	code int
}

func (e *fileError) Unwrap() error { return e.error }

// ExitCode is that of a file that is missing or corrupt.
func (e *fileError) ExitCode() int { return e.code }

// network is how this process speaks, by the settings.
func network(job *settings.Job, log *slog.Logger) (*transport.TCP, error) {
	cfg := transport.Config{
		CongestionControl: job.Congestion,
		Token:             string(job.Token),
		Insecure:          job.Insecure,
		Log:               log,
	}
	if job.TLS() {
		t, err := transport.TLSConfig(job.TLSCert, job.TLSKey, job.TLSCA)
		if err != nil {
			return nil, job.Invalid("tls-cert", err)
		}
		cfg.TLS = t
	}
	return transport.NewTCP(cfg), nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// threads bounds the processors that this process uses. The arithmetic of one
// worker runs on one thread; a second one carries the network and the collector.
func threads(n int) {
	if n == 0 {
		n = min(2, runtime.NumCPU())
	}
	runtime.GOMAXPROCS(n)
}
