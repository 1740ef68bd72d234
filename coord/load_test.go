package coord

import (
	"errors"
	"strings"
	"testing"
	"time"

	"star/coord/session"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// What the links carry is the bytes over the time in which any of them were on the way.
func TestLinkMeter(t *testing.T) {
	ms := func(from, to int, bytes float64) span {
		return span{time.Duration(from) * time.Millisecond, time.Duration(to) * time.Millisecond, bytes}
	}
	for _, c := range []struct {
		name  string
		spans []span
		want  float64 // bytes per second
	}{
		{"too few", []span{ms(0, 1, 1000), ms(1, 2, 1000), ms(2, 3, 1000)}, 0},
		{"one after the other", []span{ms(0, 1, 1000), ms(1, 2, 1000), ms(5, 6, 1000), ms(7, 8, 1000)}, 1e6},
		{"at once", []span{ms(0, 10, 1000), ms(0, 10, 1000), ms(2, 8, 1000), ms(3, 9, 1000)}, 4e5},
		{"out of order, overlapping", []span{ms(12, 20, 1000), ms(0, 10, 3000), ms(5, 15, 1000), ms(30, 40, 1000)}, 2e5},
		{"what says nothing is left out", []span{ms(0, 1, 1000), ms(3, 3, 1000), ms(4, 3, 1000), ms(1, 2, 0), ms(1, 2, 1000), ms(2, 3, 1000), ms(3, 4, 1000)}, 1e6},
		{"the last ones count", []span{ms(0, 1, 9000), ms(1, 2, 1000), ms(2, 3, 1000), ms(3, 4, 1000), ms(4, 5, 1000)}, 1e6},
	} {
		var m linkMeter
		for _, s := range c.spans {
			m.add(s, 1)
		}
		if got := m.rate(1); got < c.want*0.999999 || got > c.want*1.000001 {
			t.Errorf("%s: %v bytes per second, want %v", c.name, got, c.want)
		}
	}
}

// A server that gives an address that leads every other host back to itself is named to whoever comes from another host, with what it lacks.
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
		play(t, Config{Workers: 1}, func(w *world) {
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
