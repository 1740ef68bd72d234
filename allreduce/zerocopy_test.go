package allreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// If a rank lends what it sends, and later receives into the same block without adding, what it receives there depends
// on the receipt of the lent data: it has passed through a rank that received them. transfer.zeroCopy relies on that
// alone.
func TestLentIsReceivedBeforeItIsOverwritten(t *testing.T) {
	type sending struct{ rank, transfer int }
	type known map[sending]bool // sends received by the ranks that contributed to a block
	for n := 1; n <= 17; n++ {
		check := func(name string, all []Schedule) {
			blocks, programs := make([][]known, n), make([]*program, n)
			next := make([]int, n) // transfer of each rank's program
			for r, s := range all {
				blocks[r] = make([]known, s.Blocks)
				for b := range blocks[r] {
					blocks[r][b] = known{}
				}
				programs[r] = compile(s, n, s.Blocks, 1)
			}
			lent := 0
			for step := range all[0].Steps {
				type transfer struct{ from, to int }
				type message struct {
					send  sending
					knows []known
				}
				wire := map[transfer]message{}
				recvs := map[int]int{} // transfer of the receive of a rank in this step
				for r, s := range all {
					for _, m := range s.Moves {
						if m.Step != step {
							continue
						}
						if m.To != None && m.Send.Lo < m.Send.Hi {
							msg := message{send: sending{r, next[r]}}
							for b := m.Send.Lo; b < m.Send.Hi; b++ {
								copied := known{}
								for k := range blocks[r][b] {
									copied[k] = true
								}
								msg.knows = append(msg.knows, copied)
							}
							wire[transfer{r, m.To}] = msg
							next[r]++
						}
						if m.From != None && m.Recv.Lo < m.Recv.Hi {
							recvs[r] = next[r]
							next[r]++
						}
					}
				}
				for r, s := range all {
					for _, m := range s.Moves {
						if m.Step != step || m.From == None || m.Recv.Lo == m.Recv.Hi {
							continue
						}
						msg := wire[transfer{m.From, r}]
						for i := range msg.knows {
							b := m.Recv.Lo + i
							for id := range recvs[r] {
								// The program's own sends of this block before.
								if o := &programs[r].transfers[id]; isSend(programs[r], id) && o.lo <= b && b < o.hi && o.step < step {
									if o.zeroCopy && !msg.knows[i][sending{r, id}] {
										t.Fatalf("%s of %d: rank %d lends block %d in step %d, and receives into it from %d in step %d, which knows nothing of that", name, n, r, b, o.step, m.From, step)
									} else if o.zeroCopy {
										lent++
									}
								}
							}
							for k := range msg.knows[i] {
								blocks[r][b][k] = true
							}
							blocks[r][b][msg.send] = true
						}
					}
				}
			}
			if n == 4 && lent == 0 && (name == "ring" || name == "halving" || name == "binomial" || name == "double") {
				t.Errorf("%s of %d: nothing that is received into is lent before", name, n)
			}
		}
		everySchedule(n, func(name string, all []Schedule) {
			if name != "barrier" { // its token has the same 8 bytes everywhere, which are never lent
				check(name, all)
			}
		})
		check("deliver", every(n, AllToAll))
	}
}

func isSend(p *program, id int) bool {
	for i := range p.lanes {
		for _, s := range p.lanes[i].sends {
			if int(s) == id {
				return true
			}
		}
	}
	return false
}

// zeroCopyWay is one direction of a connection that lends: what was lent is read from the sender's memory when the
// receiver takes it.
type zeroCopyWay struct {
	mu     sync.Mutex
	chance *rand.Rand
	queue  [][]byte
	bytes  int
	ended  bool

	sender, receiver chan<- struct{} // wake them

	stopAfter, total int // bytes, from which on nothing moves for a second
	stopped          time.Time
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *zeroCopyWay) put(b []byte, lent bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return 0, io.EOF
	}
	n := min(len(b), max(0, 2000-w.bytes), 1+w.chance.IntN(1000))
	if w.stopAfter > 0 && w.total+n > w.stopAfter {
		if w.stopped.IsZero() {
			w.stopped = time.Now()
		}
		if time.Since(w.stopped) < time.Second {
			n = 0
		}
	}
	if n == 0 {
		return 0, nil
	}
	w.total += n
	if b = b[:n:n]; !lent {
		b = append([]byte(nil), b...)
	}
	w.queue = append(w.queue, b)
	w.bytes += n
	wake(w.receiver)
	return n, nil
}

func (w *zeroCopyWay) take(dst []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := 0
	for most := min(len(dst), 1+w.chance.IntN(1000)); got < most && len(w.queue) > 0; {
		n := copy(dst[got:most], w.queue[0])
		got += n
		if w.queue[0] = w.queue[0][n:]; len(w.queue[0]) == 0 {
			w.queue = w.queue[1:]
		}
	}
	w.bytes -= got
	if got == 0 && w.ended {
		return 0, io.EOF
	}
	if got > 0 {
		wake(w.sender)
	}
	return got, nil
}

// zeroCopyTestLink is an end of such a connection.
type zeroCopyTestLink struct {
	out, in *zeroCopyWay
	got     []byte
}

func (k *zeroCopyTestLink) send(b []byte) (int, error)         { return k.out.put(b, false) }
func (k *zeroCopyTestLink) zeroCopySend(b []byte) (int, error) { return k.out.put(b, true) }
func (k *zeroCopyTestLink) canZeroCopy() bool                  { return true }
func (k *zeroCopyTestLink) reclaim([]byte) error               { return nil }
func (k *zeroCopyTestLink) gains([]byte) bool                  { return true }
func (k *zeroCopyTestLink) skip(n int)                         { k.got = k.got[n:] }
func (k *zeroCopyTestLink) kind() string                       { return "tcp" }

func (k *zeroCopyTestLink) view(int) ([]byte, error) {
	b := make([]byte, 1000)
	n, err := k.in.take(b)
	k.got = append(k.got, b[:n]...)
	return k.got, err
}

func (k *zeroCopyTestLink) read(dst []byte) (int, error) {
	if len(k.got) > 0 {
		n := copy(dst, k.got)
		k.skip(n)
		return n, nil
	}
	return k.in.take(dst)
}

func (k *zeroCopyTestLink) close() {
	for _, w := range []*zeroCopyWay{k.out, k.in} {
		w.mu.Lock()
		w.ended = true
		wake(w.sender)
		wake(w.receiver)
		w.mu.Unlock()
	}
}

// zeroCopyGroup is piped over links that lend.
func zeroCopyGroup(n int, cfg Config, seed uint64) []*Group {
	groups := piped(n, cfg)
	for b := range n {
		for a := range b {
			way := func(from, to int) *zeroCopyWay {
				wakeOf := func(r int) chan<- struct{} { return groups[r].waiter.(*channelWaiter).wake }
				return &zeroCopyWay{chance: rand.New(rand.NewPCG(seed, uint64(from*n+to))), sender: wakeOf(from), receiver: wakeOf(to)}
			}
			x, y := way(a, b), way(b, a)
			groups[a].peers[b].link.close()
			groups[b].peers[a].link.close()
			groups[a].peers[b].link, groups[b].peers[a].link = &zeroCopyTestLink{out: x, in: y}, &zeroCopyTestLink{out: y, in: x}
		}
	}
	return groups
}

// Results are right over links that read the sender's memory late, for all that is done one after the other, though
// every rank writes to its vector as soon as an operation has returned.
func TestLentMemoryAgainstReference(t *testing.T) {
	defer func(before int) { pageSize = before }(pageSize)
	pageSize = 64
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			n := rapid.IntRange(2, 9).Draw(t, "ranks")
			cfg := Config{
				Algorithm: Algorithm(rapid.IntRange(0, int(AlgorithmDoubleTree)).Draw(t, "algorithm")),
				Segment:   align * rapid.IntRange(1, 20).Draw(t, "segment"),
				ZeroCopy:  ZeroCopyAll,
			}
			groups := zeroCopyGroup(n, cfg, rapid.Uint64().Draw(t, "seed"))
			defer closeAll(groups)
			for range 4 {
				count, root := rapid.IntRange(0, 1500).Draw(t, "count"), rapid.IntRange(0, n-1).Draw(t, "root")
				which := rapid.SampledFrom([]call{callAllReduce, callReduceScatter, callAllGather, callBroadcast, callReduce}).Draw(t, "call")
				if err := errors.Join(together(groups, func(g *Group) error {
					v := make([]int32, count)
					for i := range v {
						v[i] = int32((g.rank + 1) * (i + 1))
					}
					err := collective(context.Background(), g, which, Sum, root, v)
					got := append([]int32(nil), v...)
					for i := range v {
						v[i] = -1
					}
					if err != nil {
						return err
					}
					for i, x := range got {
						want := int32(n * (n + 1) / 2 * (i + 1))
						lo, hi := Block(count, n, g.rank)
						switch which {
						case callReduceScatter:
							if i < lo || i >= hi {
								continue
							}
						case callReduce:
							if g.rank != root {
								continue
							}
						case callBroadcast:
							want = int32((root + 1) * (i + 1))
						case callAllGather:
							owner := 0
							for r := range n {
								if lo, hi := Block(count, n, r); lo <= i && i < hi {
									owner = r
								}
							}
							want = int32((owner + 1) * (i + 1))
						}
						if x != want {
							return fmt.Errorf("%v: rank %d of %d: element %d of %d is %d, want %d", which, g.rank, n, i, count, x, want)
						}
					}
					return nil
				})...); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// A receipt may come long before what a rank waits for from another one. It is no sign of another operation.
func TestReceiptIsNoStray(t *testing.T) {
	defer func(before int) { pageSize = before }(pageSize)
	pageSize = 64
	synctest.Test(t, func(t *testing.T) {
		groups := zeroCopyGroup(3, Config{Algorithm: AlgorithmRing, ZeroCopy: ZeroCopyAll}, 1)
		defer closeAll(groups)
		// What rank 0 waits for at last; it has then sent everything to rank 1.
		groups[2].peers[0].link.(*zeroCopyTestLink).out.stopAfter = 64 + 4*4000 - 1000
		begun := time.Now()
		for range 3 {
			if err := errors.Join(together(groups, func(g *Group) error { return g.AllReduce(t.Context(), Sum, make([]float32, 3000)) })...); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(begun) < time.Second {
			t.Error("nobody has waited")
		}
	})
}
