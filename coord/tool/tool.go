// Package tool answers the connections of tools: star ctl, star doctor, the page of a job. It does not know the job:
// commands are passed as words to a function of its caller.
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

// probe has the bytes that Pongs send; its length is the largest size that a Ping may request. It is never written.
var probe [8 << 20]byte

// Server answers tools. Its methods are safe for concurrent use.
type Server struct {
	Program, Commit string // versions of this process, which star doctor compares
	Workers         int    // ranks of the job
	SendTimeout     time.Duration
	Log             *slog.Logger

	// Ask carries out a command and returns its answer, or an error text.
	Ask func(args []string) (answer []byte, wrong string)
}

// Serve answers a tool until its connection ends, after five minutes without a frame, or at the first frame that tools
// do not send. It first sends the tool the version and the host of this process.
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
			s.Log.Warn("closed the connection of a tool", "peer", conn.Peer(), "reason", err)
			return
		}
	}
}

// ping answers a ping with the requested number of bytes. More than the probe holds is an error, which ends the
// connection: the amount that a stranger can request is limited.
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

// control lets Ask carry out a command and sends the answer. An invalid command is reported in the Reply; a returned
// error is one of the connection.
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
