package server

import (
	"context"
	"errors"
	gonet "net"
	"time"

	"star/coord/session"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/job"
	"star/job/process"
	"star/ps"
	"star/transport"
	"star/transport/wire"
)

// host joins the coordinator and hosts what it assigns. A coordinator whose job begins anew, before
// the first update, has it come again: then what it hosts is configured anew.
//
// It returns when the job is over for this process: nil where the coordinator has said so. Errors:
// *transport.RejectError (the coordinator refuses this server, or ends the job with an exit code),
// *session.LostError (no process coordinates any more), and those of shards that cannot go on.
// Connections for the shards come through dispatch.
func (s *server) host(ctx context.Context, tcp *transport.TCP, addr string) error {
	for {
		again, err := s.hostOnce(ctx, tcp, addr)
		if !again || ctx.Err() != nil {
			return err
		}
		s.log.Info("comes to the job again", "because", err)
		s.hosting.Store(ps.NewServer(s.shards(tcp, addr)))
	}
}

// hostOnce does it once. again: it was told to come again. Only before the first update: shards
// that have made one hold what nobody else does, so they go on or the job ends.
func (s *server) hostOnce(ctx context.Context, tcp *transport.TCP, addr string) (again bool, err error) {
	shards := s.hosting.Load()
	var joined *session.Member
	var assign wire.Assign
	for {
		var err error
		if joined, err = s.join(s.told, tcp, addr, 0); errors.As(err, new(*session.OverError)) {
			s.log.Info(err.Error())
			return false, nil
		} else if err != nil {
			return false, err
		}
		// The coordinator's own time-out comes first: it knows who is missing.
		limit := s.job.JoinTimeout + 5*time.Second
		if s.job.Attended {
			limit = 0
		}
		if assign, err = joined.Assignment(s.told, limit); err == nil {
			break
		}
		joined.Close()
		if !s.lostEarly(s.told, err) {
			return false, err
		}
	}
	defer joined.Close()
	s.params = assign.Params
	if err := s.takeOptimizer(joined.Optimizer); err != nil {
		return false, err
	}
	shards.Under(joined.Welcome.Term)
	if len(assign.Shards) > 0 {
		s.log.Info("hosting", "shards", len(assign.Shards), "of", assign.Of, "parameters", assign.Params)
	}
	layout := make([]compress.Tensor, len(joined.Layout))
	for i, t := range joined.Layout {
		layout[i] = compress.Tensor{Offset: t.Offset, Shape: t.Shape}
	}
	shards.Describe(layout)
	defer s.farewell(joined)()
	err = shards.Run(ctx, joined.Hosted(), assign)
	told, ok := errors.AsType[*transport.RejectError](err)
	return ok && told.Exit == exitcode.Restart && !shards.Fired(), err
}

// farewell has the coordinator know when this process is told to end, unless it is this process
// that coordinates. The coordinator then takes a checkpoint, or has others take this server's part,
// and lets it go; without a grace the connection just ends. stop has it forget about that, as
// context.AfterFunc does.
func (s *server) farewell(m *session.Member) (stop func() bool) {
	if s.job.Rank == 0 && len(s.job.Coordinators) == 0 {
		return func() bool { return true }
	}
	return context.AfterFunc(s.told, func() {
		why := context.Cause(s.told)
		if s.coordinates.Load() {
			return // it hears of it otherwise
		}
		if err := m.Leave(job.ExitCode(why), why.Error()); err != nil || s.job.Grace <= 0 {
			m.Close()
		}
	})
}

// advertise is the address under which workers reach this process. Without --advertise it is that
// of the interface that leads to the coordinator, whose name may not be known yet: an error. addr
// is where it listens. An address without a host (":7070") means the coordinator's host as the one
// who reads it knows it: what process 0 calls itself may mean nothing to workers.
func (s *server) advertise(ctx context.Context, addr string) (string, error) {
	if s.job.Advertise != "" {
		return s.job.Advertise, nil
	}
	host, port, err := gonet.SplitHostPort(addr)
	if ip := gonet.ParseIP(host); s.job.Rank == 0 && err == nil && (ip == nil || ip.IsUnspecified()) {
		return ":" + port, nil // workers put the coordinator's host before it
	}
	return process.Reached(ctx, &s.job.Job, addr)
}

// reachable is a listening address as this machine itself reaches it.
func reachable(addr string) string {
	host, port, err := gonet.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := gonet.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return gonet.JoinHostPort(process.Home(), port)
	}
	return addr
}

// again finds the coordinator after one was lost. It tries until the context of the shards ends;
// ps.ErrOver says that the job has ended meanwhile. The number that goes with the connection is the
// term of the coordinator that was found: orders of earlier ones are refused from then on.
func (s *server) again(tcp *transport.TCP, addr string) ps.Again {
	return func(ctx context.Context, _ error) (transport.Conn, int64, error) {
		m, err := s.join(ctx, tcp, addr, s.params)
		if over, ok := errors.AsType[*session.OverError](err); ok {
			s.log.Info(over.Error())
			return nil, 0, ps.ErrOver
		}
		if err != nil {
			return nil, 0, err
		}
		s.farewell(m)
		return m.Hosted(), m.Welcome.Term, nil
	}
}

// join says Hello to the coordinator. params is how many the job has, for a server that was
// assigned its part; else 0. Process 0 reaches itself over this host, whatever the coordinator's
// address says. Errors are those of session.Join: no coordinator answers within JoinTimeout, or the one that does
// rejects this server.
func (s *server) join(ctx context.Context, tcp *transport.TCP, addr string, params int64) (*session.Member, error) {
	j := s.job
	to := j.Coordinator
	if j.Rank == 0 {
		to = reachable(addr)
	}
	if j.Rank == 0 && len(j.Coordinators) == 0 {
		tcp = tcp.Itself()
	}
	return session.Join(ctx, session.MemberConfig{
		Network: tcp, Addr: to, Addrs: j.Coordinators, Rejoins: params > 0, JoinTimeout: j.JoinTimeout, DeadAfter: j.DeadAfter, Log: s.log,
		Reached: func(ctx context.Context) (string, error) { return s.advertise(ctx, addr) },
		Hello: wire.Hello{
			Service: wire.ServiceCoord, Role: wire.RoleServer, Job: j.Name, Token: j.Token,
			Version: job.Program, Host: process.Hostname(), Rank: j.Rank, Shards: j.Shards, Params: params,
		},
	})
}

// lostEarly says whether a server has lost the coordinator before it was assigned its part, and
// another one will do that. Only where several may coordinate. Otherwise the loss of the
// coordinator is the end of the job.
func (s *server) lostEarly(ctx context.Context, err error) bool {
	var lost *session.LostError
	return len(s.job.Coordinators) > 0 && errors.As(err, &lost) && ctx.Err() == nil
}
