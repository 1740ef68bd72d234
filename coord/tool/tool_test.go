package tool

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"star/transport"
	"star/transport/wire"
)

// dial connects a tool to a server that answers with the words of the command, or with an error.
func dial(t *testing.T) (tool transport.Conn, logs *bytes.Buffer, ended <-chan struct{}) {
	t.Helper()
	network, logs := new(transport.Pipe), new(bytes.Buffer)
	l, err := network.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if tool, err = network.Dial(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tool.Close() })
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Program: "star 1", Commit: "abc", Workers: 3, SendTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(logs, nil)),
		Ask: func(args []string) ([]byte, string) {
			if args[0] == "no" {
				return nil, "unknown command"
			}
			b, _ := json.Marshal(args)
			return b, ""
		}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer near.Close()
		s.Serve(near)
	}()
	return tool, logs, done
}

// recv returns the next frame with its payload.
func recv(t *testing.T, conn transport.Conn, kind wire.Kind) (header, payload []byte) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	f, err := conn.Recv()
	if err != nil || f.Kind != kind {
		t.Fatalf("frame %v, %v, want %v", f.Kind, err, kind)
	}
	header = bytes.Clone(f.Header)
	payload, err = transport.ReadAll(conn, f)
	if err != nil {
		t.Fatal(err)
	}
	return header, payload
}

// A tool gets the version first; then commands and pings are answered, in order.
func TestServe(t *testing.T) {
	tool, logs, ended := dial(t)
	_, self := recv(t, tool, wire.KindWelcome)
	var says map[string]string
	json.Unmarshal(self, &says)
	if says["version"] != "star 1" || says["commit"] != "abc" || says["system"] == "" {
		t.Errorf("it says of itself %s", self)
	}
	for _, c := range []struct{ args, answer, wrong string }{{"mode ssgd", `["mode","ssgd"]`, ""}, {"no", "", "unknown command"}} {
		if err := transport.Send(tool, wire.Control{Args: strings.Fields(c.args)}, nil); err != nil {
			t.Fatal(err)
		}
		h, answer := recv(t, tool, wire.KindReply)
		if r, err := wire.ParseReply(h); err != nil || r.Err != c.wrong || string(answer) != c.answer {
			t.Errorf("%s: %+v, %s, %v", c.args, r, answer, err)
		}
	}
	if err := transport.Send(tool, wire.Ping{Seq: 7, Sent: 8, Want: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	h, bytes := recv(t, tool, wire.KindPong)
	if m, err := wire.ParsePong(h); err != nil || m.Seq != 7 || m.Sent != 8 || len(bytes) != 1000 {
		t.Errorf("%+v with %d bytes, %v", m, len(bytes), err)
	}
	tool.Close()
	<-ended
	if logs.Len() > 0 {
		t.Errorf("an end in good order is logged: %s", logs)
	}
}

// Frames that tools do not send, and a ping that requests too much, end the connection with a reason in the log.
func TestServeEndsWhatIsWrong(t *testing.T) {
	for want, send := range map[string]func(transport.Conn) error{
		"unexpected frame":     func(c transport.Conn) error { return transport.Send(c, wire.Joined{}, nil) },
		"want 0 to 9223":       func(c transport.Conn) error { return transport.Send(c, wire.Ping{Want: -1}, nil) },
		"a ping wants 8388609": func(c transport.Conn) error { return transport.Send(c, wire.Ping{Want: 8<<20 + 1}, nil) },
	} {
		tool, logs, ended := dial(t)
		recv(t, tool, wire.KindWelcome)
		if err := send(tool); err != nil {
			t.Fatal(err)
		}
		<-ended
		if !strings.Contains(logs.String(), want) {
			t.Errorf("%s: the log is %s", want, logs)
		}
	}
}
