package chaos

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A schedule keeps to its options, and its seed makes it.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Seed: rapid.Uint64().Draw(t, "seed"), Workers: rapid.IntRange(1, 8).Draw(t, "workers"), Servers: rapid.IntRange(1, 4).Draw(t, "servers"),
			Kinds: rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Concat(Kinds, OnRequest)), 1, len(Kinds), rapid.ID).Draw(t, "kinds"),
			Every: time.Second, Until: 30 * time.Second, Longest: 3 * time.Second, Most: rapid.IntRange(0, 3).Draw(t, "most"),
			Daemons: rapid.IntRange(0, 4).Draw(t, "daemons"),
		}
		fs := Schedule(o)
		if !reflect.DeepEqual(fs, Schedule(o)) {
			t.Fatal("the same seed gives another schedule")
		}
		last, killed := time.Duration(0), 0
		for _, f := range fs {
			ranks := o.Workers
			switch f.Kind {
			case Cut, Silence, SlowLink, Corrupt, Server:
				ranks = o.Servers
			}
			if f.Kind == Server {
				killed++
			}
			if f.Daemon {
				ranks = o.Daemons
			}
			if off := f.Off.Abs(); (f.Kind == Clock) != (off > 0) || off > 0 && (off < time.Second || off > 24*time.Hour || off%time.Second != 0) || f.Daemon && f.Kind != Clock {
				t.Fatalf("%+v", f)
			}
			lasts := f.Kind == Pause || f.Kind == StopAndGo || f.Kind == Silence || f.Kind == SlowLink || f.Kind == FullDisk || f.Kind == Clock || f.Kind == Mode
			if f.At < last || f.At > o.Until || f.Target < 0 || f.Target >= ranks || lasts != (f.For > 0) || f.For > o.Longest || (f.Kind == SlowLink) != (f.Rate > 0) {
				t.Fatalf("%+v after %v", f, last)
			}
			last = f.At
		}
		if killed > o.Most {
			t.Fatalf("%d servers are killed, at most %d may be", killed, o.Most)
		}
	})
	kinds := map[[2]bool]int{} // of clocks: of a server or not, forward or back
	for _, f := range Schedule(Options{Seed: 1, Workers: 3, Daemons: 3, Kinds: []Kind{Clock}, Every: time.Second, Until: time.Minute, Longest: time.Second}) {
		kinds[[2]bool{f.Daemon, f.Off > 0}]++
	}
	if len(kinds) != 4 {
		t.Errorf("clocks jump in %v", kinds)
	}
	if _, err := ParseKinds([]string{"kill", "flood"}); err == nil || !strings.Contains(err.Error(), `"flood" is no fault: want some of kill, term`) {
		t.Error(err)
	}
	if got := (Fault{At: time.Second, Kind: Clock, Target: 2, Daemon: true, For: time.Second, Off: -time.Hour}).String(); got != "1s ps 2: clock off by -1h0m0s for 1s" {
		t.Error(got)
	}
	if got := (Fault{At: 1500 * time.Millisecond, Kind: SlowLink, Target: 1, For: time.Second, Rate: 50000}).String(); got != "1.5s the way to server 1: slow-link for 1s at 50 kB/s" {
		t.Error(got)
	}
}

// The schedule kills as many servers as copies make up for, and as many coordinators as leave most of them running.
// After a while without a loss others have replaced the lost ones, and as many may be lost again.
func TestProcessesDieWithinReason(t *testing.T) {
	for name, o := range map[string]Options{
		"servers":      {Kinds: []Kind{Server, Pause}, Servers: 3, Most: 2, Copied: 12 * time.Second},
		"coordinators": {Kinds: []Kind{Coordinator, HandOver, Pause}, Successors: 2, Return: 10 * time.Second},
		"a ring":       {Kinds: []Kind{Kill, Term, Pause}, Workers: 3, Ring: true, Return: 10 * time.Second},
	} {
		o.Every, o.Until, o.Longest = time.Second, 2*time.Minute, time.Second
		most, refill := max(o.Most, o.Successors, o.Workers-1), o.Copied+o.Return
		lost := func(o Options) []Fault {
			return slices.DeleteFunc(Schedule(o), func(f Fault) bool { return f.Kind == Pause })
		}
		for o.Seed = range uint64(50) {
			run, last := 0, -time.Hour
			all := lost(o)
			for _, f := range all {
				if f.At-last > refill {
					run = 0
				}
				if run++; run > most {
					t.Fatalf("%s, seed %d: at %v number %d in a row is lost", name, o.Seed, f.At, run)
				}
				last = f.At
			}
			if len(all) <= 4 {
				t.Errorf("%s, seed %d: in two minutes only %d are lost", name, o.Seed, len(all))
			}
			final := o
			if final.Copied, final.Return = 0, 0; len(lost(final)) != most {
				t.Errorf("%s, seed %d: where nobody takes their places not %d are lost", name, o.Seed, most)
			}
		}
	}
}
