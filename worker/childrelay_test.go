package worker

import (
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"star"
	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// below is what the parent of workers 1 and 2 was told that may come through them: with worker 2's comes that of worker
// 4.
var below = []wire.Below{{Child: 1, Worker: 1, Step: 8, Samples: 5}, {Child: 2, Worker: 2, Step: 8, Samples: 5}, {Child: 2, Worker: 4, Step: 9, Samples: 3}}

// Whatever a child says to its parent in a tree, its connection ends or it is what was to be expected; what another
// child brings is taken, and the parent waits for the first one no longer than for its message.
func TestHostileChildren(t *testing.T) {
	const n = 8
	d, job, open := lands(t, make([]float32, n))
	comes := func(rank int) transport.Conn {
		t.Helper()
		c, err := open(wire.Hello{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: job.Name, Rank: rank})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	children := []wire.Child{{Worker: 1, Step: 8}, {Worker: 2, Step: 8}}
	good := wire.Bundle{Worker: 1, Step: 8, Members: []wire.Share{{Worker: 1, Step: 8, Samples: 5}}}
	vec := transport.Floats([]float32{1, 1, 1, 1, 1, 1, 1, 1})
	type sent struct {
		name string
		conn transport.Conn
	}
	var ends []sent // connections that are to end
	for _, empty := range transporttest.Messages {
		base := transporttest.Fill(empty, map[string]any{"Worker": 2, "Rank": 2, "Step": 8, "Samples": 5, "Version": 3})
		for name, m := range transporttest.Absurd(base) {
			d.expect(children, below)
			d.show(3)
			c := comes(2)
			var payload []byte
			if empty.Kind() == wire.KindBundle {
				payload = vec
			}
			transport.Send(c, m, payload)
			honest := comes(1)
			if err := transport.Send(honest, good, vec); err != nil {
				t.Fatalf("after %s: %v", name, err)
			}
			honest.SetReadDeadline(time.Now().Add(10 * time.Second))
			if f, err := honest.Recv(); err != nil || f.Kind != wire.KindStored {
				t.Fatalf("after %s another child hears %v, %v", name, f.Kind, err)
			}
			honest.Close()
			if b := d.take(children[0]); b == nil || b.Samples() != 5 || b.vec[0] != 1 {
				t.Fatalf("after %s the bundle of another child is %+v", name, b)
			} else {
				d.free(b.vec)
			}
			if b := d.take(children[1]); b != nil {
				want := wire.Share{Worker: 2, Step: 8, Samples: 5}
				if len(b.Members) != 1 || b.Members[0] != want {
					t.Errorf("%s: a bundle of %+v is taken", name, b.Members)
				}
				d.free(b.vec)
			}
			if k := empty.Kind(); transporttest.Extreme(name) && k != wire.KindWant || k != wire.KindWant && k != wire.KindBundle {
				ends = append(ends, sent{name, c})
			} else {
				c.Close()
			}
		}
	}
	for _, s := range ends {
		s.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		for {
			_, err := s.conn.Recv()
			if err == nil {
				err = s.conn.Discard()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s costs its sender nothing", s.name)
			}
			if err != nil {
				break
			}
		}
		s.conn.Close()
	}
	if len(ends) < 100 {
		t.Errorf("%d connections were to end", len(ends))
	}
}

// A child with an invalid gradient, or one that differs from its checksum, loses its connection. Its parent goes on
// without it, as without one that says what is not so: in a sum of several the sender could not be identified.
func TestBundlesThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		payload []float32
		wrong   bool // its checksum
		waits   bool // the parent: it may come again
	}{
		"not a number":     {payload: []float32{1, float32(math.NaN()), 1}},
		"infinite":         {payload: []float32{1, 1, float32(math.Inf(-1))}},
		"another length":   {payload: []float32{1, 1}, waits: true},
		"nothing":          {waits: true},
		"a wrong checksum": {payload: []float32{1, 1, 1}, wrong: true, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			d, job, open := lands(t, make([]float32, 3))
			conn, err := open(wire.Hello{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: job.Name, Rank: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			child := wire.Child{Worker: 2, Step: 8}
			d.expect([]wire.Child{child}, below)
			m := wire.Bundle{Worker: 2, Step: 8, Members: []wire.Share{{Worker: star.Worker(2), Step: 8, Samples: 5}}}
			payload := transport.Floats(c.payload)
			sum := transport.Sum(payload)
			if c.wrong {
				sum++
			}
			if err := transport.SendSummed(conn, m, payload, sum); err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if f, err := conn.Recv(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v, %v: want the end of the connection", f.Kind, err)
			}
			if d.has(child) == c.waits || d.take(child) != nil {
				t.Errorf("waits for it: %v, want %v; or it is used", !d.has(child), c.waits)
			}
		})
	}
}
