package actuate

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
)

// TC limits an interface, for all processes that use it, with tc: outgoing traffic with a token bucket filter, incoming
// traffic by redirecting it through an ifb device with such a filter. It needs root and the programs tc and ip; the
// second direction also a kernel with ifb, u32 and mirred. An interface that is already shaped is left alone, with an
// error.
type TC struct {
	holder
	namespace string
	dev       string
}

// NewTC returns an actuator for an interface, in a named network namespace (ip netns) or, if that is empty, in our own.
// process describes the owner in leases. Nothing changes before Apply.
func NewTC(s *Store, process, namespace, dev string) *TC {
	return &TC{holder{store: s, process: process}, namespace, dev}
}

// Apply limits the interface, in one direction or both.
func (t *TC) Apply(l Limit, until time.Time) error {
	fail := func(err error) error { return fmt.Errorf("tc: interface %s: %w", t.dev, err) }
	if err := l.Check(); err != nil {
		return fail(err)
	}
	if (l != Limit{NetOut: l.NetOut, NetIn: l.NetIn}) {
		return fmt.Errorf("tc cannot bring about %v", l)
	}
	if l.Zero() {
		return t.Undo()
	}
	unlock, err := t.store.lock()
	if err != nil {
		return err
	}
	defer unlock()
	sys := t.store.sys
	var next Lease
	var had Limit
	if t.held == nil {
		next = t.store.lease(kindTC, t.process)
		next.TC = &Interface{Namespace: t.namespace, Net: sys.link("ns/net"), Dev: t.dev, Handle: "1:"}
		if err := next.TC.check(); err != nil {
			return fail(err)
		}
		if err := sys.mark(&next); err != nil {
			return fail(err)
		}
	} else {
		next, had = *t.held, t.held.Set.Limit()
		copied := *t.held.TC
		next.TC = &copied
	}
	i := next.TC
	before, err := sys.disciplines(i)
	if err != nil {
		return fail(err)
	}
	if l.NetOut > 0 && had.NetOut == 0 {
		// "qdisc noqueue 0: root refcnt 2": the handle 0: is the kernel's default.
		if q := before.root; q.kind != "" && q.handle != "0:" {
			return fail(fmt.Errorf("has a queueing discipline already (%s %s); remove it with: tc qdisc del dev %s root", q.kind, q.handle, t.dev))
		}
		next.Former += "out: " + before.root.text() + "; "
	}
	if l.NetIn > 0 && had.NetIn == 0 {
		if before.ingress {
			return fail(fmt.Errorf("what comes in is treated already; look with: tc filter show dev %s ingress; remove it with: tc qdisc del dev %s ingress", t.dev, t.dev))
		}
		i.IFB = ifb(i.Handle)
		next.Former += "in: none; "
	}
	next = next.with(l, until)
	if err := t.store.write(next); err != nil {
		return err
	}
	err = sys.out(i, had.NetOut, l.NetOut)
	if err == nil {
		err = sys.in(i, had.NetIn, l.NetIn)
	}
	if err != nil {
		t.held = &next
		if e := t.store.undo(next); e != nil {
			return fail(errors.Join(err, e))
		}
		t.held = nil
		return fail(err)
	}
	t.held = &next
	return nil
}

// mark gives a lease the handle of our queueing disciplines, so that only these are removed. The kernel assigns handles
// from 8000: on itself.
func (y *system) mark(l *Lease) error {
	links, err := y.links(l.TC)
	if err != nil {
		return err
	}
	for try := range 100 {
		h := fnv.New32a()
		fmt.Fprint(h, l.Owner.Boot, l.Owner.PID, l.Owner.Started, l.Name, try)
		l.TC.Handle = strconv.FormatUint(uint64(h.Sum32()%0x7ffe+1), 16) + ":"
		if !links[ifb(l.TC.Handle)] {
			return nil
		}
	}
	return errors.New("every name for a device ifb is taken; star limits undo removes what processes left behind")
}

// ifb is the name of our device with that handle.
func ifb(handle string) string { return "starifb" + strings.TrimSuffix(handle, ":") }

// out changes the limit of outgoing traffic; 0 is unlimited.
func (y *system) out(i *Interface, from, to float64) error {
	switch {
	case from == to:
		return nil
	case to == 0:
		y.step("tc: out, remove")
		_, err := y.tc(i, "qdisc", "del", "dev", i.Dev, "root", "handle", i.Handle)
		return err
	case from == 0:
		y.step("tc: out, add")
		_, err := y.tc(i, append([]string{"qdisc", "add", "dev", i.Dev, "root", "handle", i.Handle}, bucket(to)...)...)
		return err
	}
	y.step("tc: out, change")
	_, err := y.tc(i, append([]string{"qdisc", "change", "dev", i.Dev, "root", "handle", i.Handle}, bucket(to)...)...)
	return err
}

// in changes the limit of incoming traffic; 0 is unlimited.
func (y *system) in(i *Interface, from, to float64) error {
	switch {
	case from == to:
		return nil
	case to == 0:
		if err := y.unlead(i); err != nil {
			return err
		}
		i.IFB = ""
		return nil
	case from != 0:
		y.step("tc: in, change")
		_, err := y.tc(i, append([]string{"qdisc", "change", "dev", i.IFB, "root", "handle", i.Handle}, bucket(to)...)...)
		return err
	}
	for _, c := range [][]string{
		{"ip", "link", "add", i.IFB, "type", "ifb"},
		{"ip", "link", "set", i.IFB, "up"},
		append([]string{"tc", "qdisc", "add", "dev", i.IFB, "root", "handle", i.Handle}, bucket(to)...),
		{"tc", "qdisc", "add", "dev", i.Dev, "ingress"},
		{"tc", "filter", "add", "dev", i.Dev, "parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0",
			"action", "mirred", "egress", "redirect", "dev", i.IFB},
	} {
		y.step("tc: in, " + strings.Join(c[:3], " "))
		if _, err := y.netns(i, c[0], c[1:]...); err != nil {
			return fmt.Errorf("what comes in can be limited only with the devices ifb, the classifier u32 and the action mirred (modprobe ifb cls_u32 act_mirred): %w", err)
		}
	}
	return nil
}

// bucket is a token bucket filter with that rate in bytes per second. It must hold the data of two ticks of the
// kernel's timer (10 ms at worst), and at least some packets.
func bucket(rate float64) []string {
	burst := max(int64(rate/100), 16<<10)
	return []string{"tbf", "rate", strconv.FormatInt(int64(8*rate), 10) + "bit", "burst", strconv.FormatInt(burst, 10) + "b", "latency", "100ms"}
}

// unshape undoes the existing limits of an interface.
func (y *system) unshape(i *Interface) error {
	byHand := func(err error) error {
		return fmt.Errorf("undo the limit of interface %s: %w; by hand: tc qdisc del dev %s root", i.Dev, err, i.Dev)
	}
	links, err := y.links(i)
	if err != nil {
		return byHand(err)
	}
	if links[i.Dev] {
		qs, err := y.disciplines(i)
		if err != nil {
			return byHand(err)
		}
		if qs.root.handle == i.Handle {
			if err := y.out(i, 1, 0); err != nil {
				return byHand(err)
			}
		}
	}
	if i.IFB == "" {
		return nil
	}
	if err := y.unlead(i); err != nil {
		return fmt.Errorf("undo the limit of interface %s: %w; by hand: tc qdisc del dev %s ingress; ip link del %s", i.Dev, err, i.Dev, i.IFB)
	}
	return nil
}

// unlead undoes the redirection of incoming traffic through our device. It removes the device last: while it exists,
// the rest may be ours.
func (y *system) unlead(i *Interface) error {
	links, err := y.links(i)
	if err != nil || !links[i.IFB] {
		return err
	}
	if links[i.Dev] {
		qs, err := y.disciplines(i)
		if err != nil {
			return err
		}
		filters := ""
		if qs.ingress {
			if filters, err = y.tc(i, "filter", "show", "dev", i.Dev, "parent", "ffff:"); err != nil {
				return err
			}
		}
		// Without filters it has no effect: it is ours, created just before a crash.
		if qs.ingress && (strings.TrimSpace(filters) == "" || strings.Contains(filters, i.IFB)) {
			y.step("tc: in, remove")
			if _, err := y.tc(i, "qdisc", "del", "dev", i.Dev, "ingress"); err != nil {
				return err
			}
		}
	}
	y.step("tc: in, remove ifb")
	_, err = y.netns(i, "ip", "link", "del", i.IFB)
	return err
}

// links are the names of the existing interfaces.
func (y *system) links(i *Interface) (map[string]bool, error) {
	if i.Namespace != "" {
		out, err := y.run("ip", "netns", "list")
		if err != nil {
			return nil, err
		}
		there := false
		for line := range strings.Lines(out) { // NAME, or NAME (id: 0)
			name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			there = there || name == i.Namespace
		}
		if !there {
			return nil, nil // the namespace is gone with its interfaces
		}
	}
	out, err := y.netns(i, "ip", "-o", "link", "show")
	if err != nil {
		return nil, err
	}
	return parseLinks(out), nil
}

// parseLinks reads ip -o link: lines such as "3: d0@d1: <BROADCAST,…".
func parseLinks(out string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			names[name] = true
		}
	}
	return names
}

// discipline is a queueing discipline.
type discipline struct{ kind, handle string }

func (d discipline) text() string {
	if d.kind == "" {
		return "none"
	}
	return d.kind + " " + d.handle
}

// disciplines are the queueing disciplines of an interface.
type disciplines struct {
	root    discipline
	ingress bool // incoming traffic has a discipline
}

func (y *system) disciplines(i *Interface) (disciplines, error) {
	out, err := y.tc(i, "qdisc", "show", "dev", i.Dev)
	if err != nil {
		return disciplines{}, err
	}
	return parseDisciplines(out), nil
}

// parseDisciplines reads tc qdisc show dev: lines such as "qdisc tbf 57a2: root refcnt 2 …" and
// "qdisc ingress ffff: parent ffff:fff1".
func parseDisciplines(out string) (d disciplines) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "qdisc" {
			continue
		}
		switch {
		case f[1] == "ingress" || f[1] == "clsact":
			d.ingress = true
		case f[3] == "root":
			d.root = discipline{f[1], f[2]}
		}
	}
	return d
}

func (y *system) tc(i *Interface, args ...string) (string, error) { return y.netns(i, "tc", args...) }

// netns runs a program in the namespace of the interface.
func (y *system) netns(i *Interface, name string, args ...string) (string, error) {
	if i.Namespace != "" {
		name, args = "ip", append([]string{"netns", "exec", i.Namespace, name}, args...)
	}
	return y.run(name, args...)
}
