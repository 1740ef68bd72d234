package observe

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"star/observe/watch"
	"star/transport"
)

// Strangers take no place of a collector that has proved the token, however many come, and few of them are spoken of.
func TestWatchAmongStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	said := 0
	w := &watching{token: "secret"}
	rows := make(chan watch.Row, 16)
	go w.accept(transport.Limit(l, 4), func(r watch.Row) { rows <- r }, func(string) { mu.Lock(); said++; mu.Unlock() })
	link := watch.Dial(t.Context(), l.Addr().String(), "secret", nil, func(s string) { t.Error(s) })
	next := func(step int64) {
		link.Take(watch.Row{Kind: "step", V: watch.Version, Step: step, Took: 1})
		select {
		case r := <-rows:
			if r.Step != step {
				t.Errorf("step %d came, want %d", r.Step, step)
			}
		case <-time.After(time.Minute):
			t.Fatalf("step %d does not come", step)
		}
	}
	next(0)
	for i := range 60 { // of many hosts, so that the collector is the oldest of the one that has the most
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}, Timeout: 10 * time.Second}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintln(c, "{}")
	}
	next(1)
	if n, err := link.Close(time.Minute); n != 0 || err != nil {
		t.Errorf("%d rows dropped, %v", n, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if said > 40 {
		t.Errorf("%d lines of 60 strangers", said)
	}
}
