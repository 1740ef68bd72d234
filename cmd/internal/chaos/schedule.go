package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a way to break something.
type Kind string

// Kinds of faults. Of a worker: it is killed, told to leave, stopped for a while, or stopped for 800 ms of each second. Of the way to a server: its
// connections are cut, say nothing, become slow, or have a bit turned over. Of a server: it is killed, and the job must begin again
// from its last checkpoint.
const (
	Kill      Kind = "kill"
	Term      Kind = "term"
	Pause     Kind = "pause"
	StopAndGo Kind = "stop-and-go"
	Cut       Kind = "cut"
	Silence   Kind = "silence"
	SlowLink  Kind = "slow-link"
	Corrupt   Kind = "corrupt"
	Server    Kind = "server"

	// Coordinator is the death of the process that coordinates, where others may take over.
	Coordinator Kind = "coordinator"

	// HandOver tells the process that coordinates to leave, so that another one takes over before anybody misses it.
	HandOver Kind = "hand-over"

	// Clock has the wall clock of a process jump, forward or back, and after a while to the right time again (Jump).
	Clock Kind = "clock"

	// Mode has the job change to another mode, and after a while back to its own, as star ctl mode does.
	Mode Kind = "mode"

	// FullDisk has no room left where checkpoints are written, for a while.
	FullDisk Kind = "full-disk"
)

// Kinds are those that any job can have, in the order of the constants.
var Kinds = []Kind{Kill, Term, Pause, StopAndGo, Cut, Silence, SlowLink, Corrupt, Server, Coordinator, HandOver, Clock, Mode}

// OnRequest are kinds that a job must be prepared for: nobody gets them without asking.
var OnRequest = []Kind{FullDisk}

// ParseKinds reads names.
func ParseKinds(names []string) ([]Kind, error) {
	var ks []Kind
	known := slices.Concat(Kinds, OnRequest)
	for _, n := range names {
		k := Kind(n)
		if !slices.Contains(known, k) {
			var all []string
			for _, k := range known {
				all = append(all, string(k))
			}
			return nil, fmt.Errorf("%q is no fault: want some of %s", n, strings.Join(all, ", "))
		}
		ks = append(ks, k)
	}
	return ks, nil
}

// Fault is one thing that is broken.
type Fault struct {
	At     time.Duration // since the training began
	Kind   Kind
	Target int           // rank of the worker, or of the server
	For    time.Duration // how long it lasts; 0: it is over at once
	Rate   int64         // bytes per second, of a slow link
	Off    time.Duration // of a clock
	Daemon bool          // the clock is that of star-ps Target, not of a worker
}

// String says it in a few words.
func (f Fault) String() string {
	who := fmt.Sprintf("worker %d", f.Target)
	switch f.Kind {
	case Cut, Silence, SlowLink, Corrupt:
		who = fmt.Sprintf("the way to server %d", f.Target)
	case Server:
		who = fmt.Sprintf("server %d", f.Target)
	case Coordinator, HandOver:
		who = "who coordinates"
	case FullDisk:
		who = "the disk of checkpoints"
	case Mode:
		who = "the job"
	case Clock:
		if f.Daemon {
			who = fmt.Sprintf("ps %d", f.Target)
		}
	}
	s := fmt.Sprintf("%v %s: %s", f.At.Round(time.Millisecond), who, f.Kind)
	if f.Off != 0 {
		s += fmt.Sprintf(" off by %v", f.Off)
	}
	if f.For > 0 {
		s += fmt.Sprintf(" for %v", f.For.Round(time.Millisecond))
	}
	if f.Rate > 0 {
		s += fmt.Sprintf(" at %d kB/s", f.Rate/1000)
	}
	return s
}

// Options of a schedule.
type Options struct {
	Seed             uint64
	Workers, Servers int
	Daemons          int // processes of star-ps
	Kinds            []Kind
	Every            time.Duration // mean time between two faults
	Until            time.Duration // none begins later
	Longest          time.Duration // none lasts longer
	Most             int           // servers that are killed at most
	Successors       int           // coordinators that are killed at most
	Return           time.Duration // after a pause of that, which is when others have their places, so many again; 0: they do not come back
	Copied           time.Duration // the same of servers: others have copies of what they had
	Ring             bool          // only the workers have the parameters: one of them is left, until others have come back (Return)
}

// A clock jumps by a second to a day: from what one is corrected by to a wrong time zone or a date.
const leastJump, mostJump = time.Second, 24 * time.Hour

// Schedule makes faults from a seed, in the order of their times: exponential times between them, everything else uniform. The same
// Options give the same faults.
func Schedule(o Options) []Fault {
	rnd := rand.New(rand.NewPCG(o.Seed, 0x5eed))
	var fs []Fault
	members := quota{most: o.Workers - 1, refill: o.Return}
	servers, coordinators := quota{most: o.Most, refill: o.Copied}, quota{most: o.Successors, refill: o.Return}
	for at := time.Duration(0); ; {
		at += time.Duration(rnd.ExpFloat64() * float64(o.Every))
		if at > o.Until || len(o.Kinds) == 0 {
			return fs
		}
		f := Fault{At: at, Kind: o.Kinds[rnd.IntN(len(o.Kinds))], Target: rnd.IntN(max(o.Workers, 1))}
		long := time.Duration((0.1 + 0.9*rnd.Float64()) * float64(o.Longest))
		server, rate := rnd.IntN(max(o.Servers, 1)), int64(20e3+480e3*rnd.Float64())
		switch f.Kind {
		case Kill, Term:
			if o.Ring && !members.take(at) {
				continue
			}
		case Pause, StopAndGo:
			f.For = long
		case Mode, FullDisk:
			f.Target, f.For = 0, long
		case Silence:
			f.Target, f.For = server, long
		case SlowLink:
			f.Target, f.For, f.Rate = server, long, rate
		case Cut, Corrupt:
			f.Target = server
		case Clock:
			f.For = long
			if n := rnd.IntN(max(o.Workers+o.Daemons, 1)); n >= o.Workers {
				f.Target, f.Daemon = n-o.Workers, true
			} else {
				f.Target = n
			}
			f.Off = time.Duration(float64(leastJump) * math.Pow(float64(mostJump/leastJump), rnd.Float64())).Round(time.Second)
			if rnd.IntN(2) == 0 {
				f.Off = -f.Off
			}
		case Server:
			if f.Target = server; !servers.take(at) {
				continue
			}
		case Coordinator, HandOver: // nobody lets others in while leaders die
			if f.Target = 0; !coordinators.take(at) {
				continue
			}
		}
		fs = append(fs, f)
	}
}

// quota is how many processes of a kind may be lost: so many, and again so many when none was lost for as long as it takes others to be in their places.
type quota struct {
	most   int
	refill time.Duration // 0: nobody takes their places
	lost   int
	last   time.Duration // when one was
}

// take says whether one more may be lost.
func (q *quota) take(at time.Duration) bool {
	if q.refill > 0 && at-q.last > q.refill {
		q.lost = 0
	}
	if q.lost == q.most {
		return false
	}
	q.lost, q.last = q.lost+1, at
	return true
}
