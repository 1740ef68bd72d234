package coord

import (
	"errors"
	"strings"
	"testing"

	"star/coord/session"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// The rejection of a server with a loopback address, or of a worker on another host that would have to use it, names
// the server and the fix.
func TestAddressesThatLeadBack(t *testing.T) {
	for _, c := range []struct {
		addr, worker string // the server is on host a
		refused      bool
	}{
		{"127.0.0.1:7070", "b", true},
		{"[::1]:7070", "b", true},
		{"localhost:7070", "b", true},
		{"127.0.0.1:7070", "a", false},
		{":7070", "b", false},
		{"10.0.0.1:7070", "b", false},
	} {
		play(t, Config{MaxWorkers: 1}, func(w *world) {
			m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
				Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Shards: 1, Addr: c.addr, Host: "a"}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			h := hello(0)
			h.Host = c.worker
			worker, err := w.join(h, enrolment)
			if !c.refused {
				if err != nil {
					t.Fatalf("%s for a worker on %s: %v", c.addr, c.worker, err)
				}
				worker.Close()
				return
			}
			var no *transport.RejectError
			if !errors.As(err, &no) || no.Exit != exitcode.Disagree || !strings.Contains(no.Reason, "star-ps 0") || !strings.Contains(no.Reason, c.addr) || !strings.Contains(no.Reason, "--advertise") {
				t.Errorf("%s for a worker on %s: %v", c.addr, c.worker, err)
			}
			if !strings.Contains(w.logs.String(), "--advertise") {
				t.Errorf("the log does not say it:\n%s", w.logs)
			}
		})
	}
}
