package allreduce

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// cut is a connection that ends when something was written to it.
type cut struct{ net.Conn }

func (c cut) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b[:len(b)/2])
	c.Conn.Close()
	return n, err
}

// A rank that loses its link to another one while all connect leaves. The others, which wait for its link, do not wait
// as long as for a rank that has not arrived: all try again, and form the group.
func TestLostLinkWhileForming(t *testing.T) {
	for name, cause := range map[string]string{"the remaining ranks see it": "has left", "they wait for a while": "all ranks reached rank 0"} {
		t.Run(name, func(t *testing.T) { lostLink(t, cause) })
	}
}

func lostLink(t *testing.T, cause string) {
	if cause == "all ranks reached rank 0" { // as with TLS
		before, sees := meshTime, ended
		meshTime, ended = 300*time.Millisecond, func(net.Conn) bool { return false }
		defer func() { meshTime, ended = before, sees }()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	broken, waited := false, ""
	groups, errs := make([]*Group, 3), make([]error, 3)
	for r := range 3 {
		cfg := Config{Rank: r, Size: 3, Rendezvous: addr, Transport: "tcp", DialTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)}
		if r == 0 {
			cfg.Listener = l
		}
		if r == 2 {
			cfg.Dial = func(ctx context.Context, network, to string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, to)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && to != addr && !broken { // a link, the first of them
					broken = true
					return cut{conn}, nil
				}
				return conn, err
			}
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if groups[r], errs[r] = Dial(ctx, cfg); errs[r] == nil {
					return
				}
				mu.Lock()
				waited = fmt.Sprint(waited, errs[r], "\n")
				mu.Unlock()
				cfg.Listener = nil // it is closed
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	for r, g := range groups {
		if errs[r] != nil {
			t.Fatalf("rank %d: %v", r, errs[r])
		}
		defer g.Close()
	}
	if !broken || !strings.Contains(waited, cause) {
		t.Errorf("a link was broken: %v; the ranks said\n%s", broken, waited)
	}
}

// connection is both ends of a TCP connection.
func connection(t interface{ Fatal(...any) }) (a, b net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// A rank that waits for a link sees at once that a peer has gone, and that a peer gives up although it has all its
// connections.
func TestHasEnded(t *testing.T) {
	for _, c := range []struct {
		name  string
		does  func(nc net.Conn)
		ended bool
	}{
		{"nothing", func(net.Conn) {}, false},
		{"closes", func(nc net.Conn) { nc.Close() }, true},
		{"asks", func(nc net.Conn) { nc.Write(notice{kind: noticeQuery}.bytes()) }, false},
		{"waits", func(nc net.Conn) { nc.Write(notice{kind: noticeWaiting}.bytes()) }, false},
		{"complains", func(nc net.Conn) { nc.Write(notice{kind: noticeComplaint}.bytes()) }, true},
		{"says why it fails", func(nc net.Conn) { nc.Write(notice{kind: noticeVerdict}.bytes()); nc.Close() }, true},
		{"leaves in good order", func(nc net.Conn) { nc.Write(notice{kind: noticeBye}.bytes()) }, true},
		{"sends other things", func(nc net.Conn) { nc.Write(bytes.Repeat([]byte{byte(noticeVerdict)}, 10)) }, false},
	} {
		a, b := connection(t)
		wait := 20 * time.Second
		if c.name == "nothing" {
			wait = 20 * time.Millisecond
		}
		b.SetReadDeadline(time.Now().Add(wait))
		c.does(a)
		if ended := hasEnded(b); ended != c.ended {
			t.Errorf("a peer that %s: ended %v, want %v", c.name, ended, c.ended)
		}
		a.Close()
		b.Close()
	}
}
