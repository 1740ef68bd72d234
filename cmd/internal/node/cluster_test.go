package node

import (
	"context"
	"testing"
	"time"

	"star/modes"
	"star/resource"
	"star/transport"
)

// What a ring moves: rounds of 4 members are 6 gradients each way, and a rider's is 2.
func TestExchange(t *testing.T) {
	times := []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}
	ssgd, err := LoadOf(modes.SSGD(4), times)
	if err != nil {
		t.Fatal(err)
	}
	if got := exchange(modes.SSGD(4), ssgd, 1000); got < 14999 || got > 15001 { // 2.5 rounds a second
		t.Errorf("ssgd moves %v bytes/s, want 15000", got)
	}
	ring, err := modes.Parse("backup=1", 4)
	if err != nil {
		t.Fatal(err)
	}
	without := resource.Load{Updates: 10, Gradients: 42.5} // a member too few and a rider: as if 4 were members
	if got := exchange(ring, without, 1000); got < 64999 || got > 65001 {
		t.Errorf("with a rider it moves %v bytes/s, want 10·6·1000 and 2.5·2·1000", got)
	}
	extra := moved(65000).minus(15000)
	if extra.In != 50000 || extra.Out != 50000 || extra.CPU != 100000/resource.ReceivePrior {
		t.Errorf("beyond ssgd: %+v", extra)
	}
	if extra := moved(1).minus(2); extra != (transport.Amounts{}) {
		t.Errorf("less than ssgd is %+v", extra)
	}
}

// Bytes count as long as they were moved by a connection that was added, and once: also of those that are forgotten.
func TestLinks(t *testing.T) {
	pipe := new(transport.Pipe)
	plain, err := pipe.Listen("here:1")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	all := new(links)
	l := &counted{plain, all}
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
			go transport.Send(c, transport.Ping{Seq: int64(i)}, nil)
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
		if sent, got := all.traffic(); sent != 0 || got != want || want == 0 {
			t.Errorf("%d sent and %d received, want 0 and %d", sent, got, want)
		}
	}
	if n := len(all.conns); n > 1024 {
		t.Errorf("%d connections are remembered", n)
	}
}
