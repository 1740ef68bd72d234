package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"star/internal/exitcode"
	"star/job"
	"star/transport"
	"star/transport/wire"
)

// Control is a connection of a tool to a coordinator.
type Control struct {
	Conn transport.Conn
	Addr string
}

// Reach connects to the coordinator as a tool.
func Reach(ctx context.Context, network transport.Network, name, addr, token string, timeout time.Duration) (*Control, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var conn transport.Conn
	var err error
	for range 3 { // the process at addr may name another one that coordinates
		if host, _, e := net.SplitHostPort(addr); e == nil && host != "" { // the caller reports an invalid address
			if _, err := transport.Lookup(ctx, host); err != nil {
				return nil, &unreachableError{addr, err}
			}
		}
		conn, _, _, err = transport.Open(ctx, network, addr, wire.Hello{
			Service: wire.ServiceCoord, Role: wire.RoleTool, Job: name, Token: token, Version: job.Program, Rank: -1,
		}, nil)
		var elsewhere *transport.ElsewhereError
		if !errors.As(err, &elsewhere) || elsewhere.Addr == "" {
			break
		}
		addr = elsewhere.Addr
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return nil, &unreachableError{addr, dial.Err}
	}
	// TLS on one side only has a code of its own
	if silent := errors.Is(err, context.DeadlineExceeded); silent || errors.Is(err, transport.ErrNotSTAR) && job.ExitCode(err) == exitcode.Failure {
		return nil, &unreachableError{addr, err}
	}
	if err != nil {
		return nil, err
	}
	return &Control{conn, addr}, nil
}

// unreachableError means that no coordinator could be reached.
type unreachableError struct {
	addr string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("no coordinator at %s: %v; is the job running? The address is that of its star-ps of rank 0 (--listen, not --http)", e.addr, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// ExitCode is the exit code for a missing coordinator.
func (e *unreachableError) ExitCode() int { return exitcode.Lost }

// Ask sends one command and decodes the answer into v.
func (c *Control) Ask(timeout time.Duration, v any, args ...string) error {
	deadline := time.Now().Add(timeout)
	c.Conn.SetWriteDeadline(deadline)
	c.Conn.SetReadDeadline(deadline)
	if err := transport.Send(c.Conn, wire.Control{Args: args}, nil); err != nil {
		return err
	}
	f, err := c.Conn.Recv()
	if err != nil {
		return err
	}
	if f.Kind != wire.KindReply {
		return fmt.Errorf("the coordinator at %s answered with %v instead of a reply", c.Addr, f.Kind)
	}
	m, err := wire.ParseReply(f.Header)
	if err != nil {
		return err
	}
	body, err := transport.ReadAll(c.Conn, f)
	if err != nil {
		return err
	}
	if m.Err != "" {
		return errors.New(m.Err)
	}
	return json.Unmarshal(body, v)
}
