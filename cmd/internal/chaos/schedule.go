package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Kinds of faults. A worker is killed, terminated, paused, or stopped for 800 ms of each second. The connections to a
// server are closed, silenced, slowed, or have a bit flipped. A server is killed, and the job restarts from its last
// checkpoint.
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

	// Coordinator kills the coordinating process where others may take over.
	Coordinator Kind = "coordinator"

	// HandOver terminates the coordinating process gracefully, so that another one takes over before its absence is
	// noticed.
	HandOver Kind = "hand-over"

	// Clock makes the wall clock of a process jump forward or back, and later corrects it (Jump).
	Clock Kind = "clock"

	// Mode switches the job to another mode, and later back to its own, as star ctl mode does.
	Mode Kind = "mode"

	// FullDisk fills the disk of checkpoints for a while.
	FullDisk Kind = "full-disk"
)

// Kinds are the kinds that any job can have, in the order of the constants.
var Kinds = []Kind{Kill, Term, Pause, StopAndGo, Cut, Silence, SlowLink, Corrupt, Server, Coordinator, HandOver, Clock, Mode}

// OnRequest are the kinds that need preparation of the job: they happen only on request.
var OnRequest = []Kind{FullDisk}

// ParseKinds parses the names of kinds.
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

// Fault is one fault of a schedule.
type Fault struct {
	At     time.Duration // since the start of the training
	Kind   Kind
	Target int           // rank of the worker, or of the server
	For    time.Duration // duration; 0: it is over at once
	Rate   int64         // bytes per second, of a slow link
	Off    time.Duration // of a clock
	Daemon bool          // the clock is that of star-ps Target, not of a worker
}

// String describes the fault.
func (f Fault) String() string {
	target := fmt.Sprintf("worker %d", f.Target)
	switch f.Kind {
	case Cut, Silence, SlowLink, Corrupt:
		target = fmt.Sprintf("the way to server %d", f.Target)
	case Server:
		target = fmt.Sprintf("server %d", f.Target)
	case Coordinator, HandOver:
		target = "the coordinator"
	case FullDisk:
		target = "the disk of checkpoints"
	case Mode:
		target = "the job"
	case Clock:
		if f.Daemon {
			target = fmt.Sprintf("ps %d", f.Target)
		}
	}
	s := fmt.Sprintf("%v %s: %s", f.At.Round(time.Millisecond), target, f.Kind)
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

// Options configure a schedule.
type Options struct {
	Seed             uint64
	Workers, Servers int
	Daemons          int // processes of star-ps
	Kinds            []Kind
	Every            time.Duration // mean time between two faults
	Until            time.Duration // no fault begins later
	Longest          time.Duration // no fault lasts longer
	Most             int           // most servers that are killed
	Successors       int           // most coordinators that are killed
	// Return is the time after which replacements are in place and as many workers may be lost again. 0: workers do not
	// return.
	Return time.Duration

	Copied time.Duration // the same for servers with copies
	Ring   bool          // only workers have the parameters: one stays until others have returned (Return)
}

// A clock jumps by a second to a day: from a small correction to a wrong time zone or date.
const leastJump, mostJump = time.Second, 24 * time.Hour

// Schedule makes faults from a seed, in the order of their times: intervals are exponential, everything else is
// uniform. Equal Options give equal faults.
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
		case Coordinator, HandOver: // no worker is admitted while leaders die
			if f.Target = 0; !coordinators.take(at) {
				continue
			}
		}
		fs = append(fs, f)
	}
}

// quota limits how many processes of a kind may be lost. It is full again if none was lost for the time that
// replacements need.
type quota struct {
	most   int
	refill time.Duration // 0: no replacements
	lost   int
	last   time.Duration // time of the last loss
}

// take reports whether one more may be lost.
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
