package transport

import "star"

// The move of a shard from one server to another while the job runs. docs/protocol.md
// draws it, package ps has the two ends of it and coord who directs them.

// AdoptStage is what a server is to do about a shard that comes to it.
type AdoptStage uint8

const (
	Prepare AdoptStage = iota // make room, and connect to the server that has it
	Own                       // it is yours: every Fire after this message is for it too
	Forget                    // it stays where it is
)

// Adopt tells a server about a shard that is to come to it. Addr is that of the server that
// has it.
type Adopt struct {
	Move     int64 // counts moves
	Stage    AdoptStage
	Shard    int
	Addr     string
	From, To int64 // its elements
}

// HandStage is what a server is to do about a shard that leaves it.
type HandStage uint8

const (
	Give HandStage = iota // after the firing Seq, send its state to who has come for it; it does not change until further notice
	Gone                  // it is the other's: pass on what still comes
	Keep                  // it stays here: go on

	Lend   // like Give, but the other server gets a copy of it
	Shared // the copy is there: go on, and pass on what workers push that do not know of it
)

// Hand tells a server about a shard that is to leave it.
type Hand struct {
	Move  int64
	Stage HandStage
	Shard int
	Seq   int64
}

// MovedStage is how far a move is.
type MovedStage uint8

const (
	Prepared MovedStage = iota // there is room, and a connection to who has it
	Loaded                     // its state is here
	Complete                   // nothing more will come from who had it
)

// Moved: a server says how far the move of a shard to it is. With Err it has failed.
type Moved struct {
	Move    int64
	Stage   MovedStage
	Shard   int
	Version int64 // of the parameters, when Loaded
	Err     string
}

// State begins the state of a shard, from the server that has it to the one that gets it.
// Payload: float32, its parameters. As many Slots follow as it says, then as many Pushes as
// are Pending, then those that still come, then Leave.
type State struct {
	Shard   int
	Seq     int64 // of the last firing that is in it
	Version int64
	Rule    string // name of the update rule
	Steps   int64  // updates that the rule counts
	Slots   int
	Pending int
	Lives   []int64 // by rank: the highest number of a pass that the shard has seen
}

// Slot is one vector of the state of an update rule. Payload: float32, as long as the
// shard.
type Slot struct {
	Shard int
	Name  string
}

// Route tells a worker where a shard is now. What it has pushed to the old place is passed
// on; what it pushes or pulls next goes to the new one.
type Route struct {
	Worker star.Worker
	Shard  int
	Addr   string
}

func (Adopt) Kind() Kind { return KindAdopt }

func (m Adopt) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 6)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendString(dst, m.Addr)
	dst = appendInt(dst, m.From)
	return appendInt(dst, m.To)
}

// ParseAdopt parses the header of an Adopt.
func ParseAdopt(b []byte) (Adopt, error) {
	p := parse(KindAdopt, b, 6)
	m := Adopt{
		Move: p.natural("move"), Stage: AdoptStage(p.within("stage", 0, int64(Forget))), Shard: p.shard("shard"),
		Addr: p.string("addr", maxName), From: p.within("from", 0, MaxParams), To: p.within("to", 0, MaxParams),
	}
	return m, p.end()
}

func (Hand) Kind() Kind { return KindHand }

func (m Hand) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	return appendInt(dst, m.Seq)
}

// ParseHand parses the header of a Hand.
func ParseHand(b []byte) (Hand, error) {
	p := parse(KindHand, b, 4)
	m := Hand{Move: p.natural("move"), Stage: HandStage(p.within("stage", 0, int64(Shared))), Shard: p.shard("shard"), Seq: p.natural("seq")}
	return m, p.end()
}

func (Moved) Kind() Kind { return KindMoved }

func (m Moved) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.Move)
	dst = appendInt(dst, int64(m.Stage))
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Version)
	return appendText(dst, m.Err, maxText)
}

// ParseMoved parses the header of a Moved.
func ParseMoved(b []byte) (Moved, error) {
	p := parse(KindMoved, b, 5)
	m := Moved{
		Move: p.natural("move"), Stage: MovedStage(p.within("stage", 0, int64(Complete))), Shard: p.shard("shard"),
		Version: p.natural("version"), Err: p.string("err", maxText),
	}
	return m, p.end()
}

func (State) Kind() Kind { return KindState }

func (m State) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 8)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Seq)
	dst = appendInt(dst, m.Version)
	dst = appendString(dst, m.Rule)
	dst = appendInt(dst, m.Steps)
	dst = appendInt(dst, int64(m.Slots))
	dst = appendInt(dst, int64(m.Pending))
	dst = appendArray(dst, len(m.Lives))
	for _, n := range m.Lives {
		dst = appendInt(dst, n)
	}
	return dst
}

// maxRanks is how many ranks a shard knows: the workers, and the validator.
const maxRanks = MaxWorkers + 1

// maxSlots is how many vectors an update rule may have.
const maxSlots = 16

// ParseState parses the header of a State.
func ParseState(b []byte) (State, error) {
	p := parse(KindState, b, 7)
	m := State{
		Shard: p.shard("shard"), Seq: p.natural("seq"), Version: p.natural("version"), Rule: p.string("rule", maxName),
		Steps: p.natural("steps"), Slots: int(p.within("slots", 0, maxSlots)), Pending: int(p.within("pending", 0, MaxWorkers)),
	}
	if p.err == nil && p.left > 0 { // absent from older peers
		const field = "lives"
		p.left--
		for range p.arrayLen(field, maxRanks) {
			m.Lives = append(m.Lives, p.between(field, 0, 1<<63-1))
		}
	}
	return m, p.end()
}

func (Slot) Kind() Kind { return KindSlot }

func (m Slot) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Shard))
	return appendString(dst, m.Name)
}

// ParseSlot parses the header of a Slot.
func ParseSlot(b []byte) (Slot, error) {
	p := parse(KindSlot, b, 2)
	m := Slot{Shard: p.shard("shard"), Name: p.string("name", maxName)}
	return m, p.end()
}

func (Route) Kind() Kind { return KindRoute }

func (m Route) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, int64(m.Shard))
	return appendString(dst, m.Addr)
}

// ParseRoute parses the header of a Route.
func ParseRoute(b []byte) (Route, error) {
	p := parse(KindRoute, b, 3)
	m := Route{Worker: p.worker("worker"), Shard: p.shard("shard"), Addr: p.string("addr", maxName)}
	return m, p.end()
}
