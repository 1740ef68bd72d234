package coord

import (
	"context"
	"encoding/json"
	"errors"

	"star/coord/tool"
	"star/transport"
)

// errOver answers a command after the end of the job.
var errOver = errors.New("the job is over")

// Ask carries out a command of star ctl from within the process. If v is not nil, it receives the answer. The error is
// that of the command, that the job is over, or the cause of ctx. Ask may be called from any goroutine but that of Run.
func (c *Coordinator) Ask(ctx context.Context, v any, args ...string) error {
	r, err := c.in.question(ctx, args)
	switch {
	case err != nil:
		return err
	case r.err != "":
		return errors.New(r.err)
	case v == nil:
		return nil
	}
	return json.Unmarshal(r.json, v)
}

// serveTool answers a tool on the goroutine of its connection; only commands reach Run.
func (c *Coordinator) serveTool(conn transport.Conn) {
	s := tool.Server{Program: c.cfg.Program, Commit: c.cfg.Commit, Workers: c.cfg.MaxWorkers, SendTimeout: c.cfg.SendTimeout, Log: c.log}
	s.Ask = func(args []string) ([]byte, string) {
		r, err := c.in.question(context.Background(), args)
		if err != nil {
			return nil, err.Error()
		}
		return r.json, r.err
	}
	s.Serve(conn)
}
