package session

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Another program at the address of the coordinator ends the search, because it keeps the port.
func TestJoinFindsAnotherProgram(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7\r\n"))
			defer conn.Close()
		}
	}()
	hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "j", Rank: 0}
	_, err = Join(t.Context(), MemberConfig{Network: new(transport.TCP), Addr: l.Addr().String(), Hello: hello, JoinTimeout: time.Minute})
	stranger, ok := errors.AsType[*StrangerError](err)
	if !ok || stranger.ExitCode() != exitcode.Usage || !strings.Contains(err.Error(), `but with "SSH-"`) || !strings.Contains(err.Error(), "--coordinator") {
		t.Errorf("%v, want that another program listens", err)
	}
}
