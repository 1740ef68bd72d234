package process

import (
	"context"
	"testing"

	"star/transport"
	"star/transport/wire"
)

// Bytes count as long as they were moved by a connection that was added, and once: also of those that are forgotten.
func TestLinks(t *testing.T) {
	pipe := new(transport.Pipe)
	plain, err := pipe.Listen("here:1")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	all := new(Links)
	l := &Counted{plain, all}
	want := int64(0)
	for i := range 1030 {
		accepted := make(chan transport.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		c, err := pipe.Dial(context.Background(), "here:1")
		if err != nil {
			t.Fatal(err)
		}
		far := <-accepted
		if i%100 == 0 {
			go transport.Send(c, wire.Ping{Seq: int64(i)}, nil)
			if _, err := far.Recv(); err != nil {
				t.Fatal(err)
			}
			_, got := far.Traffic()
			want += got
		}
		c.Close()
		far.Close()
	}
	for range 3 {
		if sent, got := all.Traffic(); sent != 0 || got != want || want == 0 {
			t.Errorf("%d sent and %d received, want 0 and %d", sent, got, want)
		}
	}
	if n := len(all.conns); n > 1024 {
		t.Errorf("%d connections are remembered", n)
	}
}
