package said

import (
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// ends are both ends of a connection: a member's and the coordinator's.
func ends(t *testing.T) (member, coordinator transport.Conn) {
	t.Helper()
	network := new(transport.Pipe)
	l, err := network.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if member, err = network.Dial(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { member.Close() })
	if coordinator, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { coordinator.Close() })
	coordinator.SetReadDeadline(time.Now().Add(time.Minute))
	return member, coordinator
}

// read sends a message and reads it.
func read(t *testing.T, m wire.Message, payload []byte) (Message, error) {
	t.Helper()
	member, coordinator := ends(t)
	if err := transport.Send(member, m, payload); err != nil {
		t.Fatal(err)
	}
	return Read(coordinator)
}

// fromMembers are the kinds that Read takes. Hello is read before the connection gets a reader.
var fromMembers = []wire.Kind{
	wire.KindArrive, wire.KindStored, wire.KindReady, wire.KindJoined, wire.KindNorm, wire.KindSaved, wire.KindBuffers,
	wire.KindEvalResult, wire.KindLeave, wire.KindFormed, wire.KindTally, wire.KindComputed, wire.KindFault,
	wire.KindCompression, wire.KindPoison, wire.KindBundle, wire.KindMoved, wire.KindHeld, wire.KindEnlist, wire.KindUsage,
	wire.KindStanding, wire.KindHalt, wire.KindPing, wire.KindPong,
}

func TestReadTakesWhatMembersSend(t *testing.T) {
	for _, empty := range transporttest.Messages {
		k := empty.Kind()
		m := transporttest.Fill(empty, map[string]any{
			"Worker": 1, "Rank": 1, "Shard": 0, "Samples": 4, "Count": 1, "Generation": 1, "Cause": "flipped", "ID": "c",
			"Seq": 1, "Term": 1, "Move": 1, "Host": "h", "Job": "job",
		})
		got, err := read(t, m, nil)
		switch {
		case slices.Contains(fromMembers, k) && err != nil:
			t.Errorf("%v: %v", k, err)
		case slices.Contains(fromMembers, k) && got.Kind != k:
			t.Errorf("%v is read as %v", k, got.Kind)
		case !slices.Contains(fromMembers, k) && (err == nil || !strings.Contains(err.Error(), "unexpected frame")):
			t.Errorf("%v, which no member sends: %v", k, err)
		}
	}
}

func TestReadFillsTheFieldOfTheKind(t *testing.T) {
	m, err := read(t, wire.Arrive{Record: star.Record{Worker: 2, Step: 5}}, nil)
	if err != nil || m.Arrive.Record.Step != 5 || m.Seldom != nil {
		t.Errorf("arrive is read as %+v, %v", m, err)
	}
	if m, err = read(t, wire.Held{Shard: 2, Seq: 5}, nil); err != nil || m.Held.Seq != 5 {
		t.Errorf("held is read as %+v, %v", m, err)
	}
	m, err = read(t, wire.Saved{Shard: 2, ID: "c"}, []byte("part"))
	if err != nil || m.Saved.ID != "c" || string(m.Payload) != "part" {
		t.Errorf("saved is read as %+v, %v", m, err)
	}
}

func TestReadRejectsPayloads(t *testing.T) {
	for _, c := range []struct {
		m    wire.Message
		size int64
		err  string
	}{
		{wire.Arrive{}, 1, "frame arrive has a payload of 1 bytes, expected none"},
		{wire.Buffers{}, MaxPayload + 1, "frame buffers has a payload of 67108865 bytes, at most 67108864"},
	} {
		_, err := Read(&replay{frame: transport.Frame{Kind: c.m.Kind(), Header: c.m.AppendTo(nil), Size: c.size}})
		expect(t, err, c.err)
	}
}

// replay is a connection that returns one frame again and again.
type replay struct {
	transport.Conn
	frame transport.Frame
}

func (r *replay) Recv() (transport.Frame, error) { return r.frame, nil }

// TestReadAllocatesNothing checks the messages of every iteration.
func TestReadAllocatesNothing(t *testing.T) {
	for _, m := range []wire.Message{
		wire.Arrive{Record: star.Record{Worker: 1, Samples: 4}}, wire.Stored{}, wire.Norm{}, wire.Tally{}, wire.Computed{},
		wire.Pong{},
	} {
		conn := &replay{frame: transport.Frame{Kind: m.Kind(), Header: m.AppendTo(nil)}}
		var got Message
		if n := testing.AllocsPerRun(100, func() {
			var err error
			if got, err = Read(conn); err != nil {
				t.Fatal(err)
			}
		}); n != 0 || got.Kind != m.Kind() {
			t.Errorf("reading %v makes %v allocations, read is %v", m.Kind(), n, got.Kind)
		}
	}
}
