package allreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
)

// Beside the links for vectors, every rank has one to rank 0 for failures. In a
// ring, one stalled rank makes every rank wait for its predecessor; only
// together can they find it. So a rank that times out complains to rank 0, rank
// 0 queries every rank, and one that does not answer is at fault. Rank 0 sends
// its verdict to all.
//
//	running ──timeout──► complained ──verdict, or no answer──► failed
//	   └─query from rank 0─► answered "waiting" ──the same──► failed

// notice is a message about a failure.
type notice struct {
	kind  noticeKind
	fault Error
}

type noticeKind uint8

const (
	// To rank 0: something is broken.
	noticeComplaint noticeKind = 1 + iota
	// To rank 0: no byte moves. Also the answer to noticeQuery.
	noticeWaiting
	// From rank 0: which rank do you wait for?
	noticeQuery
	// From rank 0: the reason why the group fails.
	noticeVerdict
	// The sender closes in good order.
	noticeBye
)

// A notice has a fixed size: kind and length of texts, rank, step, steps, done,
// total, then the two texts, and a CRC-32 (IEEE 802.3) of all that: a damaged
// verdict would blame another rank.
const (
	noticeSize   = 768
	noticeFields = 4 + 4 + 4 + 4 + 8 + 8
	noticeSum    = 4
	noticeTexts  = noticeSize - noticeFields - noticeSum
)

const noticeMagic = 0xA1

// bytes encodes a notice. It cuts texts that are too long: the position in the
// operation is more useful than the end of a cause.
func (m notice) bytes() []byte {
	b := make([]byte, noticeFields, noticeSize)
	op, why := m.fault.Operation, ""
	if m.fault.Err != nil {
		why = m.fault.Err.Error()
	}
	op = op[:min(len(op), 200)]
	why = why[:min(len(why), noticeTexts-len(op))]
	b[0], b[1] = noticeMagic, byte(m.kind)
	b[2] = byte(len(op))
	binary.LittleEndian.PutUint32(b[4:], uint32(m.fault.Rank))
	binary.LittleEndian.PutUint32(b[8:], uint32(m.fault.Step))
	binary.LittleEndian.PutUint32(b[12:], uint32(m.fault.Steps))
	binary.LittleEndian.PutUint64(b[16:], uint64(m.fault.Done))
	binary.LittleEndian.PutUint64(b[24:], uint64(m.fault.Total))
	b = append(append(b, op...), why...)
	// Zero after the texts.
	b = b[:noticeSize-noticeSum]
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// parseNotice decodes a notice. It verifies the checksum before it uses a
// field.
func parseNotice(b []byte) (notice, error) {
	if b[0] != noticeMagic || b[1] < byte(noticeComplaint) || b[1] > byte(noticeBye) || int(b[2]) > noticeTexts {
		return notice{}, fmt.Errorf("bad notice % x", b[:4])
	}
	b, sum := b[:noticeSize-noticeSum], binary.LittleEndian.Uint32(b[noticeSize-noticeSum:])
	if crc32.ChecksumIEEE(b) != sum {
		return notice{}, errDamaged{"the checksum of a notice is wrong"}
	}
	op, why := b[noticeFields:][:b[2]], b[noticeFields+int(b[2]):]
	return notice{noticeKind(b[1]), Error{
		Rank:      int(int32(binary.LittleEndian.Uint32(b[4:]))),
		Operation: string(op),
		Step:      int(binary.LittleEndian.Uint32(b[8:])),
		Steps:     int(binary.LittleEndian.Uint32(b[12:])),
		Done:      int64(binary.LittleEndian.Uint64(b[16:])),
		Total:     int64(binary.LittleEndian.Uint64(b[24:])),
		Err:       errors.New(strings.TrimRight(string(why), "\x00")),
	}}, nil
}

// controlLink is a control link and the received part of its next notice.
type controlLink struct {
	link link
	buf  [noticeSize]byte
	n    int
	bye  bool
}

// send writes a notice, best effort: a failure of this link shows where it is
// read.
func (w *controlLink) send(m notice) {
	b := m.bytes()
	// A notice is small and rare: a link without room for it has been broken
	// for long.
	for try := 0; len(b) > 0 && try < 100; try++ {
		n, err := w.link.send(b)
		if err != nil {
			return
		}
		if b = b[n:]; n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// poll reports whether a whole notice has come.
func (w *controlLink) poll() (bool, error) {
	for w.n < noticeSize {
		n, err := w.link.read(w.buf[w.n:])
		if n == 0 {
			return false, err
		}
		w.n += n
	}
	return true, nil
}

// take returns the notice that has come.
func (w *controlLink) take() (notice, error) {
	w.n = 0
	return parseNotice(w.buf[:])
}

// next returns the next notice; ok is false if none has come.
func (w *controlLink) next() (m notice, ok bool, err error) {
	if ok, err = w.poll(); ok {
		m, err = w.take()
	}
	return m, ok && err == nil, err
}

// drop forgets a control link.
func (g *Group) drop(i int) {
	g.control[i].link.close()
	g.control[i] = nil
}

// at0 returns the rank at the other end of control link i.
func (g *Group) at0(i int) int {
	if g.rank == 0 {
		return i
	}
	return 0
}

// tell sends a notice over all control links: rank 0 reaches every rank,
// another rank reaches rank 0.
func (g *Group) tell(m notice) {
	for _, c := range g.control {
		if c != nil {
			c.send(m)
		}
	}
}

// here returns err without a position in the operation.
func (g *Group) here(rank int, err error) *Error {
	return &Error{Rank: rank, Operation: g.now.operation.String(), Err: err}
}

// listen reads notices. It returns the reason to fail, or nil.
func (g *Group) listen() error {
	for i, c := range g.control {
		if c == nil {
			continue
		}
		ok, err := c.poll()
		if err != nil {
			g.drop(i)
			// A peer that has closed in good order is no failure.
			if c.bye {
				continue
			}
			return g.report(g.here(g.at0(i), errGone))
		}
		if !ok {
			continue
		}
		m, err := c.take()
		switch {
		case err != nil:
			return g.report(g.here(g.at0(i), err))
		case m.kind == noticeBye:
			c.bye = true
		case m.kind == noticeVerdict:
			return g.adopt(m.fault, None)
		case m.kind == noticeComplaint:
			// Only rank 0 gets complaints. Its report makes the complaint the
			// verdict for all.
			return g.report(&m.fault)
		case m.kind == noticeWaiting:
			// Only rank 0 gets this unasked: one rank has timed out, and rank 0
			// looks for the cause.
			return g.judge(g.waitingFor(timedOut(g.timeout)), i, &m.fault)
		case m.kind == noticeQuery:
			// An answer shows that this rank is alive and in the operation. The
			// operation has failed, so the verdict follows.
			e := g.waitingFor(timedOut(time.Since(g.moved).Round(time.Millisecond)))
			g.tell(notice{noticeWaiting, *e})
			return g.verdict(e)
		}
	}
	return nil
}

// adopt returns a verdict, in this rank's own words if it knows more.
func (g *Group) adopt(e Error, mine int) *Error {
	for i := range g.now.prog.lanes {
		if l := &g.now.prog.lanes[i]; l.peer == e.Rank && l.peer != mine {
			return g.at(l, e.Err)
		}
	}
	return &e
}

// report fails with e and informs the other ranks.
func (g *Group) report(e *Error) error {
	if g.rank == 0 {
		if e.Rank > 0 && e.Err.Error() == errGone.Error() { // also in a complaint
			e = g.lastWords(e)
		}
		g.tell(notice{noticeVerdict, *e})
		return e
	}
	g.tell(notice{noticeComplaint, *e})
	return g.verdict(e)
}

// lastWords returns why a rank that has gone gave up, or e if it said nothing.
// It said so before it closed its links, but on another one.
func (g *Group) lastWords(e *Error) *Error {
	for end := time.Now().Add(answerTime); ; {
		c := g.control[e.Rank]
		if c == nil || c.bye {
			return e
		}
		m, ok, err := c.next()
		switch {
		case err != nil:
			g.drop(e.Rank)
			return e
		case ok && m.kind == noticeBye:
			c.bye = true
		case ok && m.kind == noticeComplaint:
			return g.adopt(m.fault, None)
		case !ok && time.Now().After(end):
			return e
		case !ok:
			g.waiter.wait(append(g.asks[:0], ask{c.link, true, false}), napTime)
		}
	}
}

// abandon fails because this rank gives up.
func (g *Group) abandon(err error) error {
	g.giveUp(err)
	return g.waitingFor(err)
}

// giveUp informs the other ranks that this one gives up.
func (g *Group) giveUp(err error) {
	// Rank 0 decides for all, so its own reason is the verdict.
	kind := noticeComplaint
	if g.rank == 0 {
		kind = noticeVerdict
	}
	g.tell(notice{kind, *g.here(g.rank, fmt.Errorf("it gave up: %w", err))})
}

// expired fails because no byte has moved for too long.
func (g *Group) expired() error {
	// Rank 0 looks for the rank at fault itself. Another rank asks it to.
	e := g.waitingFor(timedOut(g.timeout))
	if g.rank == 0 {
		return g.judge(e, 0, nil)
	}
	g.tell(notice{noticeWaiting, *e})
	return g.verdict(e)
}

// Limits for finding the rank at fault. A rank that is alive and in the
// operation answers within napTime.
const (
	answerTime  = 500 * time.Millisecond
	verdictTime = 2 * answerTime
)

// verdict waits for rank 0's verdict about e, and returns e if none comes.
func (g *Group) verdict(e *Error) error {
	end := time.Now().Add(verdictTime)
	for c := g.control[0]; c != nil; {
		m, ok, err := c.next()
		switch {
		case err != nil:
			g.drop(0)
			if c.bye {
				return e
			}
			// A rank that leaves in good order says so: the others left because
			// of it.
			return g.adopt(*g.here(0, errGone), None)
		case ok && m.kind == noticeBye:
			c.bye = true
		case ok && m.kind == noticeVerdict:
			// This rank's own error has the cause, such as damaged bytes; the
			// verdict repeats it. Why a rank has gone, only the verdict knows.
			if m.fault.Rank == e.Rank && !errors.Is(e.Err, errTimeout) && !errors.Is(e.Err, errGone) {
				return e
			}
			return g.adopt(m.fault, g.rank)
		case ok:
			continue
		}
		left := time.Until(end)
		if left <= 0 {
			// Rank 0 judges timeouts. If it is silent itself, it is at fault.
			if errors.Is(e.Err, errTimeout) {
				return g.here(0, fmt.Errorf("it does not answer, and %w", e))
			}
			return e
		}
		g.waiter.wait(append(g.asks[:0], ask{c.link, true, false}), min(left, napTime))
	}
	return e
}

// judge runs on rank 0 and finds the rank that delays all others. mine is what
// rank 0 waits for; the rank of control link from has reported what it waits
// for.
func (g *Group) judge(mine *Error, from int, reported *Error) error {
	// waits is by rank: what each rank that has answered waits for.
	waits := make([]*Error, len(g.peers))
	waits[0] = mine
	if reported != nil {
		waits[from] = reported
	}
	g.tell(notice{kind: noticeQuery, fault: *mine})
	fail := func(e *Error) error {
		g.tell(notice{noticeVerdict, *e})
		return g.adopt(*e, g.rank)
	}
	for end := time.Now().Add(answerTime); ; {
		silent := None
		for i, c := range g.control {
			if i == 0 || waits[i] != nil {
				continue
			}
			if c == nil || c.bye {
				// A rank that has left explains why the others wait.
				return fail(g.here(i, errGone))
			}
			m, ok, err := c.next()
			switch {
			case err != nil:
				g.drop(i)
				return fail(g.here(i, errGone))
			case ok && m.kind == noticeBye:
				c.bye = true
			case ok && m.kind == noticeComplaint:
				return fail(&m.fault)
			case ok && m.kind == noticeWaiting:
				waits[i] = &m.fault
				continue
			}
			if silent == None {
				silent = i
			}
		}
		left := time.Until(end)
		switch {
		// Every rank has answered, so none hangs: the error lists which rank
		// waits for which.
		case silent == None:
			var all []string
			for r, e := range waits {
				all = append(all, fmt.Sprintf("rank %d in %s for rank %d", r, e.Operation, e.Rank))
			}
			return fail(&Error{Rank: mine.Rank, Operation: mine.Operation, Step: mine.Step, Steps: mine.Steps, Done: mine.Done, Total: mine.Total,
				Err: fmt.Errorf("%w, and every rank waits: %s", mine.Err, strings.Join(all, ", "))})
		case left <= 0:
			return fail(g.here(silent, fmt.Errorf("%w, and it does not answer: it hangs, or has not begun", timedOut(g.timeout))))
		}
		// Any control link may bring the next answer, so all are polled every
		// millisecond.
		g.waiter.wait(nil, min(left, time.Millisecond))
	}
}
