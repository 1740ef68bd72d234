package ps

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// ended waits for the other side to close a connection.
func ended(c transport.Conn) bool {
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		f, err := c.Recv()
		if err != nil {
			return !strings.Contains(err.Error(), "timeout")
		}
		if transport.ReadAll(c, f); f.Kind == wire.KindReject {
			return true
		}
	}
}

// A peer that has the token and not the pass of a worker costs it nothing: its connection to the shard stays, and every
// step of it counts.
func TestHostileHellos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 16
		pipe := &transport.Pipe{}
		key := transport.NewKey()
		j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: 1, workers: 3, quorum: 1, key: key})
		seal := func(key, role string, rank int, number int64) string {
			return transport.Pass(key, role, rank, transport.Attempt{Number: number})
		}
		mine := seal(key, wire.RoleWorker, 1, 1) // the attacker is worker 1
		now, err := j.open(j.helloOf(2, transport.Attempt{Number: 5}))
		if err != nil {
			t.Fatal(err)
		}
		hellos := []struct {
			name, role string
			rank       int
			pass       string
		}{
			{"no pass", "", 0, ""},
			{"nonsense", "", 0, "nonsense"},
			{"only numbers", "", 0, "9.0."},
			{"its own pass", "", 0, mine},
			{"its own seal and another number", "", 1, "9" + mine},
			{"another key", "", 0, seal(transport.NewKey(), wire.RoleWorker, 0, 9)},
			{"a server's pass", "", 0, seal(key, wire.RoleServer, 0, 9)},
			{"who had the rank before", "", 2, seal(key, wire.RoleWorker, 2, 4)},
			{"a server without pass", wire.RoleServer, 0, ""},
			{"a server with a worker's pass", wire.RoleServer, 1, mine},
			{"a validator", wire.RoleValidator, 0, mine},
			{"the rank after the last", "", 3, seal(key, wire.RoleWorker, 3, 9)},
		}
		done := make(chan error, 1)
		go func() {
			done <- j.work(pipe, 0, n, len(hellos)+2, func(_ int, _, grad []float32) { time.Sleep(2 * time.Second) }, nil)
		}()
		time.Sleep(time.Second)
		for _, c := range hellos {
			h := j.hello(c.rank)
			h.Role, h.Pass = c.role, c.pass
			conn, err := j.open(h)
			var refusal *transport.RejectError
			if err == nil && !ended(conn) || err != nil && (!errors.As(err, &refusal) || refusal.Exit != 78) {
				t.Errorf("%s: %v", c.name, err)
			}
			if err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("%s: the key is in %v", c.name, err)
			}
			time.Sleep(2 * time.Second)
		}
		if err := <-done; err != nil {
			t.Errorf("worker 0: %v", err)
		}
		if err := transport.Send(now, wire.Pull{Worker: 2}, nil); err != nil {
			t.Error(err)
		}
		if f, _ := next(t, now); f.Kind != wire.KindParams {
			t.Errorf("worker 2 was sent %v", f.Kind)
		}
		for _, number := range []int64{5, 6} { // it connects again, and then another process has its rank
			after, err := j.open(j.helloOf(2, transport.Attempt{Number: number}))
			if err != nil {
				t.Fatal(err)
			}
			if !ended(now) {
				t.Errorf("the connection before that of life %d goes on", number)
			}
			now = after
		}
		now.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// handOver moves the only shard of a server to another one. The test plays the coordinator of both. Between is called
// when the second one waits for the shard.
func handOver(t *testing.T, from, to *fakeJob, params int64, between func()) {
	t.Helper()
	told := func(stage wire.MovedStage) {
		t.Helper()
		f, _ := next(t, to.coord)
		if m, err := wire.ParseMoved(f.Header); err != nil || m.Stage != stage || m.Err != "" {
			t.Fatalf("%v %+v, %v; want stage %v", f.Kind, m, err, stage)
		}
	}
	move := wire.Adopt{Move: 1, Addr: "from", To: params}
	to.tell(move)
	told(wire.Prepared)
	between()
	from.tell(wire.Hand{Move: 1, Stage: wire.Give})
	told(wire.Loaded)
	move.Stage = wire.Own
	to.tell(move)
	from.tell(wire.Hand{Move: 1, Stage: wire.Gone})
}

// A rule may have a vector of state for each worker of the largest job.
func TestStateOfManyWorkersMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		var moved rule.State
		state := func(first float32) func(rule.Rule) rule.State {
			return func(rule.Rule) rule.State {
				st := rule.State{Name: "dana", Slots: make([]rule.Slot, star.MaxWorkers)}
				for w := range st.Slots {
					st.Slots[w] = rule.Slot{Name: strconv.Itoa(w), Data: []float32{first + float32(w)}}
				}
				return st
			}
		}
		from := start(t, jobConfig{net: pipe, addr: "from", params: 1, shards: 1, workers: 1, noReader: true, server: ServerConfig{State: state(1)}})
		to := start(t, jobConfig{net: pipe, addr: "to", params: 1, shards: 1, workers: 1, noReader: true, empty: true,
			server: ServerConfig{Network: pipe, Hello: wire.Hello{Rank: 1}, State: state(-1),
				SetState: func(_ rule.Rule, st rule.State) error { moved = st; return nil }}})
		worker, err := from.open(from.hello(0))
		if err != nil {
			t.Fatal(err)
		}
		defer worker.Close()
		if err := transport.Send(worker, wire.Init{}, transport.Floats(make([]float32, 1))); err != nil {
			t.Fatal(err)
		}
		if f, _ := next(t, from.coord); f.Kind != wire.KindReady {
			t.Fatalf("it says %v", f.Kind)
		}
		handOver(t, from, to, 1, func() {})
		for _, j := range []*fakeJob{to, from} {
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		}
		if want := state(1)(nil); !reflect.DeepEqual(moved, want) {
			t.Errorf("%d vectors came, want %d", len(moved.Slots), len(want.Slots))
		}
	})
}

// A shard that has moved knows which processes had the ranks before.
func TestPassesMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		key := transport.NewKey()
		from := start(t, jobConfig{net: pipe, addr: "from", params: 10, shards: 1, workers: 2, noReader: true, key: key})
		to := start(t, jobConfig{net: pipe, addr: "to", params: 10, shards: 1, workers: 2, noReader: true, key: key, empty: true,
			server: ServerConfig{Network: pipe, Hello: wire.Hello{Rank: 1}}})
		worker, err := from.open(from.helloOf(1, transport.Attempt{Number: 7}))
		if err != nil {
			t.Fatal(err)
		}
		defer worker.Close()
		if err := transport.Send(worker, wire.Init{Worker: 1}, transport.Floats(make([]float32, 10))); err != nil {
			t.Fatal(err)
		}
		if f, _ := next(t, from.coord); f.Kind != wire.KindReady {
			t.Fatalf("it says %v", f.Kind)
		}
		handOver(t, from, to, 10, func() {
			for _, pass := range []string{"", transport.Pass(key, wire.RoleWorker, 1, transport.Attempt{Number: 7})} {
				if c, err := from.open(wire.Hello{Job: "test", Role: wire.RoleServer, Rank: 1, Pass: pass}); err == nil {
					t.Error("it gives its shard to a server without a valid pass")
					c.Close()
				}
			}
		})
		before, err := to.open(to.helloOf(1, transport.Attempt{Number: 6}))
		if err == nil && !ended(before) {
			t.Error("who had the rank before is heard")
		}
		after, err := to.open(to.helloOf(1, transport.Attempt{Number: 7}))
		if err != nil {
			t.Fatal(err)
		}
		defer after.Close()
		if err := transport.Send(after, wire.Pull{Worker: 1}, nil); err != nil {
			t.Fatal(err)
		}
		if f, _ := next(t, after); f.Kind != wire.KindParams {
			t.Errorf("the worker was sent %v", f.Kind)
		}
		for _, j := range []*fakeJob{to, from} {
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// What a process has pushed to a copy does not make the copy ignore the next process with its rank, least of all if the
// pushed step was never assigned.
func TestStepsOfLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: 10, shards: 1, workers: 2, noReader: true, key: transport.NewKey(), server: ServerConfig{Copies: true,
			Load: func(wire.ShardInfo) ([]float32, int64, error) { return make([]float32, 10), 0, nil }}})
		stored := func() wire.Stored {
			t.Helper()
			for {
				j.coord.SetReadDeadline(time.Now().Add(10 * time.Second))
				f, err := j.coord.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if f.Kind == wire.KindStored {
					m, _ := wire.ParseStored(f.Header)
					return m
				}
			}
		}
		j.tell(wire.View{Term: 1, Holders: []wire.Holder{{Rank: 0, Addr: "ps"}}, To: 10})
		push := func(attempt transport.Attempt, step int64) transport.Conn {
			t.Helper()
			c, err := j.open(j.helloOf(1, attempt))
			if err == nil {
				err = transport.Send(c, wire.Turn{Worker: 1, Term: 1}, nil)
			}
			if err == nil {
				err = transport.Send(c, wire.Push{Worker: 1, Step: step, Samples: 1}, transport.Floats(make([]float32, 10)))
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := push(transport.Attempt{Number: 1}, 1<<60)
		defer first.Close()
		if m := stored(); m.Step != 1<<60 {
			t.Errorf("stored %+v", m)
		}
		second := push(transport.Attempt{Number: 2, Step: 5}, 4) // what is late of the life before is not of this one
		defer second.Close()
		if err := transport.Send(second, wire.Push{Worker: 1, Step: 5, Samples: 1}, transport.Floats(make([]float32, 10))); err != nil {
			t.Fatal(err)
		}
		if m := stored(); m.Step != 5 {
			t.Errorf("stored %+v", m)
		}
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}
