package worker

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"star"
	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// Whatever a rider says, it costs the rider its connection or is taken for what it could be: no gradient weighs more
// than a round of all workers, and what an honest rider has sent is carried.
func TestHostileRiders(t *testing.T) {
	const n = 8
	tcp := transport.NewTCP(transport.Config{})
	l, err := tcp.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newRiderRelay(l, tcp.Config, "job", slog.New(slog.DiscardHandler))
	defer d.close()
	d.begin(make([]float32, n))
	d.change(3, func() {})
	d.admit(wire.Ring{Generation: 1, Members: []star.Worker{0}, Riders: []wire.Rider{{Worker: 1}, {Worker: 2}}, Of: 24}, 0)
	comes := func(w int) transport.Conn {
		c, _, _, err := transport.Open(t.Context(), tcp, d.addr, wire.Hello{Service: wire.ServiceRing, Role: wire.RoleWorker, Job: "job", Rank: w}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := transport.Send(c, wire.Formed{Worker: star.Worker(w), Generation: 1}, nil); err != nil {
			t.Fatal(err)
		}
		return c
	}
	honest := comes(1)
	defer honest.Close()
	step, fresh, carried := int64(0), int64(100), 0
	for _, empty := range transporttest.Messages {
		base := transporttest.Fill(empty, map[string]any{"Worker": 2, "Rank": 2, "Generation": 1, "Step": 8, "Samples": 8, "Basis": 3})
		for name, m := range transporttest.Absurd(base) {
			if p, ok := m.(wire.Push); ok && p.Step == 8 { // each is another gradient
				fresh++
				p.Step = fresh
				m = p
			}
			c := comes(2)
			var payload []byte
			if empty.Kind() == wire.KindPush {
				payload = transport.Floats(make([]float32, n))
			}
			transport.Send(c, m, payload)
			if _, alone := m.(wire.Push); alone {
				ctx, end := context.WithTimeout(t.Context(), 5*time.Second)
				g, ok, err := d.take(ctx, 2, time.Now().Add(30*time.Millisecond), func() bool { return true })
				end()
				if err != nil {
					t.Fatal(err)
				}
				if ok && (g.Samples < 1 || g.Samples > 24 || g.Basis > 5) {
					t.Errorf("%s: a gradient over %d samples of version %d is carried", name, g.Samples, g.Basis)
				}
				if ok {
					carried++
					d.free(g)
				}
			}
			c.Close()
			if !strings.Contains(name, "=70") {
				continue
			}
			step++
			if err := transport.Send(honest, wire.Push{Worker: 1, Step: step, Samples: 8, Basis: 3}, transport.Floats(make([]float32, n))); err != nil {
				t.Fatalf("after %s: %v", name, err)
			}
			g, ok, err := d.take(t.Context(), 1, time.Now().Add(10*time.Second), func() bool { return true })
			if err != nil || !ok || g.Step != step {
				t.Fatalf("after %s the gradient of an honest rider is not carried: %v, %v", name, ok, err)
			}
			d.free(g)
		}
	}
	if carried < 5 {
		t.Errorf("%d gradients that could be are carried", carried)
	}
}
