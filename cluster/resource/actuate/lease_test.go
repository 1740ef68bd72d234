package actuate

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

func quotaLease() Lease {
	until := time.Date(2026, 1, 2, 3, 4, 15, 0, time.UTC)
	return Lease{
		Format: 1, Kind: kindCgroup, Owner: Owner{PID: 7, Started: 99, Boot: "b", PIDs: "pid:[1]", Process: "worker 2 of job digits"},
		Made: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Expires: &until, Set: Terms{Cores: 0.5}, Former: "process 7 in /c",
		Cgroup: &Group{PID: 7, Version: 1, Dir: "/c/star-7", Home: "/c"},
	}
}

func rateLease() Lease {
	return Lease{
		Format: 1, Kind: kindTC, Owner: Owner{PID: 7, Started: 99, Boot: "b", PIDs: "pid:[1]"},
		Made: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Set: Terms{NetOut: 1e6, NetIn: 2e6}, Former: "out: noqueue 0:; ",
		TC: &Interface{Namespace: "ns1", Net: "net:[1]", Dev: "eth0", Handle: "57a2:", IFB: "starifb57a2"},
	}
}

func TestParseLease(t *testing.T) {
	for _, l := range []Lease{quotaLease(), rateLease()} {
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseLease(b); err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("%+v, %v; want %+v", got, err, l)
		}
	}
	change := func(l Lease, f func(l *Lease)) Lease { f(&l); return l }
	for want, l := range map[string]Lease{
		"format 2":                         change(quotaLease(), func(l *Lease) { l.Format = 2 }),
		"does not fit":                     change(quotaLease(), func(l *Lease) { l.Kind = kindTC }),
		`kind "" does not`:                 change(quotaLease(), func(l *Lease) { l.Kind = "" }),
		"kind \"cgroup\" does not":         change(quotaLease(), func(l *Lease) { l.TC = rateLease().TC }),
		"kind \"tc\" does not":             change(rateLease(), func(l *Lease) { l.Set.Cores = 1 }),
		"owner: 0 is no process":           change(quotaLease(), func(l *Lease) { l.Owner.PID = 0 }),
		"owner: -1 is no process":          change(quotaLease(), func(l *Lease) { l.Owner.PID = -1 }),
		"without the start of the host":    change(quotaLease(), func(l *Lease) { l.Owner.Boot = "" }),
		"or the namespace":                 change(quotaLease(), func(l *Lease) { l.Owner.PIDs = "" }),
		"made":                             change(quotaLease(), func(l *Lease) { l.Made = time.Time{} }),
		"set: cpu: -1":                     change(quotaLease(), func(l *Lease) { l.Set.Cores = -1 }),
		"a pause needs no lease":           change(quotaLease(), func(l *Lease) { l.Set.Delay = 1 }),
		"cgroup: 0 is no process":          change(quotaLease(), func(l *Lease) { l.Cgroup.PID = 0 }),
		"cgroup: version 3":                change(quotaLease(), func(l *Lease) { l.Cgroup.Version = 3 }),
		`"/c/system.slice" is no group of`: change(quotaLease(), func(l *Lease) { l.Cgroup.Dir = "/c/system.slice" }),
		`"/c/../star-7" is no group of`:    change(quotaLease(), func(l *Lease) { l.Cgroup.Dir = "/c/../star-7" }),
		`"star-7" is no group of`:          change(quotaLease(), func(l *Lease) { l.Cgroup.Dir = "star-7" }),
		`"" is no group to go back to`:     change(quotaLease(), func(l *Lease) { l.Cgroup.Home = "" }),
		`"/c/star-7" is no group to go`:    change(quotaLease(), func(l *Lease) { l.Cgroup.Home = l.Cgroup.Dir }),
		`"-h" is no name of an interface`:  change(rateLease(), func(l *Lease) { l.TC.Dev = "-h" }),
		`"" is no name of an interface`:    change(rateLease(), func(l *Lease) { l.TC.Dev = "" }),
		`"57a2" is no handle`:              change(rateLease(), func(l *Lease) { l.TC.Handle = "57a2" }),
		`"eth1" is no device of ours`:      change(rateLease(), func(l *Lease) { l.TC.IFB = "eth1" }),
		`"../x" is no name of a namespace`: change(rateLease(), func(l *Lease) { l.TC.Namespace = "../x" }),
		"without the network namespace":    change(rateLease(), func(l *Lease) { l.TC.Net = "" }),
	} {
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseLease(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", b, err, want)
		}
	}
	b, _ := json.Marshal(quotaLease())
	for text, want := range map[string]string{
		"":                   "not a lease",
		"{}":                 "format 0",
		"null":               "format 0",
		string(b[:len(b)-1]): "not a lease",
		string(b) + "{}":     "something follows",
		`{"format":1,"x":2}`: "unknown field",
		`{"format":"1"}`:     "not a lease",
		string(b) + strings.Repeat(" ", maxLease): "longer than",
	} {
		if _, err := ParseLease([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: %v, want %q", text, err, want)
		}
	}
}

// What is read as a lease acts on nothing but groups and devices of ours.
func FuzzParseLease(f *testing.F) {
	for _, l := range []Lease{quotaLease(), rateLease()} {
		b, _ := json.Marshal(l)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLease(b)
		if err != nil {
			return
		}
		if g := l.Cgroup; g != nil && (!strings.Contains(g.Dir, "/star-") || strings.Contains(g.Dir, "..") && !strings.Contains(g.Dir, "/star-..")) {
			t.Fatalf("undoing would remove %s", g.Dir)
		}
		if i := l.TC; i != nil && (strings.HasPrefix(i.Dev, "-") || strings.ContainsAny(i.Dev+i.IFB+i.Namespace, "/ \n")) {
			t.Fatalf("undoing would touch %+v", i)
		}
		b, err = json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseLease(b); err != nil || !reflect.DeepEqual(again, l) {
			t.Fatalf("%s is %+v, %v; was %+v", b, again, err, l)
		}
	})
}
