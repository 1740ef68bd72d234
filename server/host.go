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

// The life of a server that hosts shards:
//
//	join ─▶ Welcome ─▶ Assignment ─▶ shards.Run ─▶ the job is over
//	 ▲                     │              │
//	 │ coordinator lost,   │              ├─ Restart before the first update: hostOnce returns again
//	 └─ with --coordinators┘              └─ coordinator lost: again joins the next one, with the
//	                                         shards unchanged
//
// Invariant: parameters are never dropped after the first update. A server that cannot keep them
// ends, and with it the job, unless --replicas has copies.

// host joins the coordinator and hosts the shards that it assigns. If the coordinator starts the job
// again, before the first update, host joins again with a new configuration of shards.
//
// It returns when the job is over for this process: nil if the coordinator has said so. Errors:
// *transport.RejectError (the coordinator rejects this server, or ends the job with an exit code),
// *session.LostError (no process coordinates any more), and those of shards that failed. Connections
// to the shards come through dispatch.
func (s *server) host(ctx context.Context, tcp *transport.TCP, addr string) error {
	for {
		again, err := s.hostOnce(ctx, tcp, addr)
		if !again || ctx.Err() != nil {
			return err
		}
		s.log.Info("rejoining the job", "because", err)
		s.hosting.Store(ps.NewServer(s.shards(tcp, addr)))
	}
}

// hostOnce runs one attempt of host. again: the coordinator wants it to join again. That happens
// only before the first update: later, shards have the only copy of their parameters, so they
// continue or the job ends.
func (s *server) hostOnce(ctx context.Context, tcp *transport.TCP, addr string) (again bool, err error) {
	shards := s.hosting.Load()
	var joined *session.Member
	var assign wire.Assign
	for {
		var err error
		if joined, err = s.join(s.stopRequested, tcp, addr, 0); errors.As(err, new(*session.OverError)) {
			s.log.Info(err.Error())
			return false, nil
		} else if err != nil {
			return false, err
		}
		// The coordinator's own timeout comes first: it knows which members are missing.
		limit := s.job.JoinTimeout + 5*time.Second
		if s.job.Attended {
			limit = 0
		}
		if assign, err = joined.Assignment(s.stopRequested, limit); err == nil {
			break
		}
		joined.Close()
		if !s.lostEarly(s.stopRequested, err) {
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
	s.opt = shaped(s.opt, joined.Layout)
	defer s.farewell(joined)()
	err = shards.Run(ctx, joined.Hosted(), assign)
	told, ok := errors.AsType[*transport.RejectError](err)
	return ok && told.Exit == exitcode.Restart && !shards.Fired(), err
}

// farewell tells the coordinator when this process must stop, unless this process coordinates. The
// coordinator then takes a checkpoint, or has other servers take over its shards, and releases it;
// without a grace period the connection just ends. stop cancels that, like the result of
// context.AfterFunc.
func (s *server) farewell(m *session.Member) (stop func() bool) {
	if s.job.Rank == 0 && len(s.job.Coordinators) == 0 {
		return func() bool { return true }
	}
	return context.AfterFunc(s.stopRequested, func() {
		why := context.Cause(s.stopRequested)
		if s.coordinates.Load() {
			return // the stop is handled by coordinate
		}
		if err := m.Leave(job.ExitCode(why), why.Error()); err != nil || s.job.Grace <= 0 {
			m.Close()
		}
	})
}

// advertise returns the address at which workers reach this process. Without --advertise it is that
// of the interface that leads to the coordinator; an error means that the coordinator's name cannot
// be resolved yet. addr is the listening address. An address without a host (":7070") means the
// coordinator's host as the reader knows it: the own name of process 0 may mean nothing to workers.
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

// reachable returns a listening address as this machine itself reaches it.
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

// again joins the next coordinator after one was lost. It tries until the context of the shards
// ends; ps.ErrOver means that the job has ended meanwhile. The result's number is the term of the
// new coordinator: orders of earlier terms are rejected from then on.
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

// join sends the Hello to the coordinator. params is the number of parameters of the job for a
// server that has its assignment; otherwise 0. Process 0 reaches itself through this host, whatever
// the coordinator's address is. Errors are those of session.Join: no coordinator answers within
// JoinTimeout, or it rejects this server.
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

// lostEarly reports whether a server lost the coordinator before its assignment and another one may
// make it, which requires --coordinators. Otherwise the loss of the coordinator is the end of the
// job.
func (s *server) lostEarly(ctx context.Context, err error) bool {
	var lost *session.LostError
	return len(s.job.Coordinators) > 0 && errors.As(err, &lost) && ctx.Err() == nil
}
