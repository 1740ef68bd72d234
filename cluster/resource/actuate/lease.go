package actuate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"strings"
	"time"
)

// Actuator applies limits.
type Actuator interface {
	// Apply applies a limit, in place of the previous one; a zero Limit lifts it. An unsupported limit is an error and
	// changes nothing. After any other error no limit is in force. until is the end of the limit, zero: with the process.
	// Other processes may undo it after that time; the caller has to lift it in time.
	Apply(l Limit, until time.Time) error

	// Undo lifts the limit in force, and may be called again. After an error it must be called again.
	Undo() error
}

// Kinds of leases.
const (
	kindCgroup = "cgroup"
	kindTC     = "tc"
)

// Lease records what a process has changed outside of itself, and the former state.
type Lease struct {
	Format int    `json:"format"` // 1
	Kind   string `json:"kind"`   // cgroup or tc
	Owner  Owner  `json:"owner"`

	Made    time.Time  `json:"made"`
	Expires *time.Time `json:"expires,omitempty"` // nil: at the owner's end

	Set    Terms  `json:"set"`
	Former string `json:"former"` // the former state, in words

	Cgroup *Group     `json:"cgroup,omitempty"` // of kind cgroup
	TC     *Interface `json:"tc,omitempty"`     // of kind tc

	// Name is the name of the file without its suffix; it is not in the file.
	Name string `json:"-"`
}

// Owner identifies a process, although PIDs are reused.
type Owner struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // ticks of the kernel's clock since the host started
	Boot    string `json:"boot"`    // of the host's start
	PIDs    string `json:"pids"`    // PID namespace
	Process string `json:"who"`     // description of the process
}

// Terms is the JSON form of a Limit.
type Terms struct {
	Delay  float64 `json:"delay_s,omitempty"`
	Cores  float64 `json:"cores,omitempty"`
	NetOut float64 `json:"net_out_Bps,omitempty"`
	NetIn  float64 `json:"net_in_Bps,omitempty"`
}

// Limit converts t.
func (t Terms) Limit() Limit {
	return Limit{time.Duration(t.Delay * float64(time.Second)), t.Cores, t.NetOut, t.NetIn}
}

// Group is a control group that was created for a process.
type Group struct {
	PID     int    `json:"pid"`     // of the process that is limited
	Version int    `json:"version"` // of control groups: 1 or 2
	Dir     string `json:"dir"`     // the group
	Home    string `json:"home"`    // where the process was before
}

// Interface is a network interface that was limited.
type Interface struct {
	Namespace string `json:"namespace,omitempty"` // by name (ip netns); empty: the owner's
	Net       string `json:"net"`                 // the owner's network namespace
	Dev       string `json:"dev"`
	Handle    string `json:"handle"`        // handle of our queueing disciplines, such as 57a2:
	IFB       string `json:"ifb,omitempty"` // the device through which incoming traffic is redirected; empty: none
}

// maxLease bounds the size of a lease's file, in bytes.
const maxLease = 16 << 10

var (
	deviceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)
	nsName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$`)
	handleText = regexp.MustCompile(`^[0-9a-f]{1,4}:$`)
	ifbName    = regexp.MustCompile(`^starifb[0-9a-f]{1,4}$`)
)

// ParseLease reads the content of a lease's file. It rejects a file with any invalid field, because undoing uses them.
func ParseLease(b []byte) (Lease, error) {
	var l Lease
	if len(b) > maxLease {
		return l, fmt.Errorf("is longer than %d bytes", maxLease)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return Lease{}, fmt.Errorf("is not a lease: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Lease{}, errors.New("is not a lease: something follows it")
	}
	if err := l.check(); err != nil {
		return Lease{}, err
	}
	return l, nil
}

func (l *Lease) check() error {
	switch {
	case l.Format != 1:
		return fmt.Errorf("has format %d; this program knows 1", l.Format)
	case l.Owner.PID <= 0 || l.Owner.PID > math.MaxInt32:
		return fmt.Errorf("owner: %d is no process", l.Owner.PID)
	case l.Owner.Boot == "" || l.Owner.PIDs == "":
		return errors.New("owner: without the start of the host, or the namespace")
	case l.Made.IsZero():
		return errors.New("made: no time")
	}
	set := l.Set.Limit()
	if err := set.Check(); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	if set.Delay != 0 {
		return errors.New("set: a pause needs no lease")
	}
	g, i := l.Cgroup, l.TC
	switch {
	case l.Kind == kindCgroup && g != nil && i == nil && set.NetIn == 0 && set.NetOut == 0:
		return g.check()
	case l.Kind == kindTC && i != nil && g == nil && set.Cores == 0:
		return i.check()
	}
	return fmt.Errorf("kind %q does not fit what is set", l.Kind)
}

// prefix is the prefix of the names of our control groups.
const prefix = "star-"

func (g *Group) check() error {
	switch {
	case g.PID <= 0 || g.PID > math.MaxInt32:
		return fmt.Errorf("cgroup: %d is no process", g.PID)
	case g.Version != 1 && g.Version != 2:
		return fmt.Errorf("cgroup: version %d", g.Version)
	case !path.IsAbs(g.Dir) || path.Clean(g.Dir) != g.Dir || !strings.HasPrefix(path.Base(g.Dir), prefix):
		return fmt.Errorf("cgroup: %q is no group of ours", g.Dir)
	case !path.IsAbs(g.Home) || path.Clean(g.Home) != g.Home || g.Home == g.Dir:
		return fmt.Errorf("cgroup: %q is no group to go back to", g.Home)
	}
	return nil
}

func (i *Interface) check() error {
	switch {
	case !deviceName.MatchString(i.Dev):
		return fmt.Errorf("tc: %q is no name of an interface", i.Dev)
	case !handleText.MatchString(i.Handle):
		return fmt.Errorf("tc: %q is no handle", i.Handle)
	case i.IFB != "" && !ifbName.MatchString(i.IFB):
		return fmt.Errorf("tc: %q is no device of ours", i.IFB)
	case i.Namespace != "" && !nsName.MatchString(i.Namespace):
		return fmt.Errorf("tc: %q is no name of a namespace", i.Namespace)
	case i.Net == "":
		return errors.New("tc: without the network namespace")
	}
	return nil
}

// What describes the limits of a lease.
func (l *Lease) What() string {
	switch {
	case l.Cgroup != nil:
		return fmt.Sprintf("%v for process %d, by %s", l.Set.Limit(), l.Cgroup.PID, l.Cgroup.Dir)
	case l.TC != nil && l.TC.Namespace != "":
		return fmt.Sprintf("%v on interface %s of namespace %s", l.Set.Limit(), l.TC.Dev, l.TC.Namespace)
	case l.TC != nil:
		return fmt.Sprintf("%v on interface %s", l.Set.Limit(), l.TC.Dev)
	}
	return l.Set.Limit().String()
}

// String describes a lease and its owner.
func (l Lease) String() string {
	return fmt.Sprintf("%s: %s, set by %s (process %d)", l.Name, l.What(), l.Owner.Process, l.Owner.PID)
}

// State is the state of a lease, as another process sees it.
type State string

const (
	Alive   State = "alive"   // its owner lives
	Stale   State = "stale"   // must be undone
	Void    State = "void"    // from before a restart of the host: only the file is left
	Foreign State = "foreign" // cannot be judged or undone by this process
	Corrupt State = "corrupt" // the file is not a lease
)

// Entry is a lease with its state, as star limits lists it.
type Entry struct {
	Lease
	State State
	Why   string
	File  string
}

var (
	_ Actuator = (*Pacer)(nil)
	_ Actuator = (*Cgroup)(nil)
	_ Actuator = (*TC)(nil)
)
