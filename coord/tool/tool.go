// Package tool answers a tool on a connection of its own: star ctl, star doctor, the page of a job.
// It knows no job: commands go to a function of its caller, in words.
package tool

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"star/transport"
	"star/transport/wire"
)

// probe is what every Pong takes its bytes from; its length is the most that a Ping
// may want. It is never written to.
var probe [8 << 20]byte

// Server answers tools. Its methods may be called from several goroutines.
type Server struct {
	Program, Commit string // what this process is, for star doctor to compare
	Workers         int    // ranks of the job
	SendTimeout     time.Duration
	Log             *slog.Logger

	// Ask carries out a command and returns its answer, or what is wrong with it. It waits for either.
	Ask func(args []string) (answer []byte, wrong string)
}

// Serve answers a tool until its connection ends, after five minutes without a frame, or with the
// first frame that no tool sends. It first tells the tool the version and the host of this process.
func (s *Server) Serve(conn transport.Conn) {
	host, _ := os.Hostname()
	self, _ := json.Marshal(map[string]any{
		"version": s.Program, "commit": s.Commit, "protocol": transport.Protocol, "host": host, "system": runtime.GOOS + "/" + runtime.GOARCH,
	})
	conn.SetWriteDeadline(time.Now().Add(s.SendTimeout))
	if err := transport.Send(conn, wire.Welcome{Rank: -1, Workers: s.Workers}, self); err != nil {
		return
	}
	for {
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		f, err := conn.Recv()
		if err != nil {
			return
		}
		conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
		switch f.Kind {
		case wire.KindPing:
			err = ping(conn, f)
		case wire.KindControl:
			err = s.control(conn, f)
		default:
			err = fmt.Errorf("unexpected frame %v from a tool", f.Kind)
		}
		if err != nil {
			s.Log.Warn("closing the connection of a tool", "peer", conn.Peer(), "reason", err)
			return
		}
	}
}

// ping answers a ping with as many bytes as it wants. More than the probe holds is an error,
// which ends the connection: a stranger cannot have us send without bound.
func ping(conn transport.Conn, f transport.Frame) error {
	m, err := wire.ParsePing(f.Header)
	if err != nil {
		return err
	}
	if err := conn.Discard(); err != nil {
		return err
	}
	if m.Want < 0 || m.Want > int64(len(probe)) {
		return fmt.Errorf("a ping wants %d bytes, at most %d", m.Want, len(probe))
	}
	return transport.Send(conn, wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}, probe[:m.Want])
}

// control has a command carried out and sends what comes back. What is wrong with the command is in
// the Reply; an error is one of the connection.
func (s *Server) control(conn transport.Conn, f transport.Frame) error {
	m, err := wire.ParseControl(f.Header)
	if err != nil {
		return err
	}
	if err := conn.Discard(); err != nil {
		return err
	}
	answer, wrong := s.Ask(m.Args)
	conn.SetWriteDeadline(time.Now().Add(30 * time.Second)) // a move may have taken long
	return transport.Send(conn, wire.Reply{Err: wrong}, answer)
}
