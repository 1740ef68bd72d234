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
			lasts := f.Kind == Pause || f.Kind == StopAndGo || f.Kind == Silence || f.Kind == SlowLink || f.Kind == FullDisk
			if f.At < last || f.At > o.Until || f.Target < 0 || f.Target >= ranks || lasts != (f.For > 0) || f.For > o.Longest || (f.Kind == SlowLink) != (f.Rate > 0) {
				t.Fatalf("%+v after %v", f, last)
			}
			last = f.At
		}
		if killed > o.Most {
			t.Fatalf("%d servers are killed, at most %d may be", killed, o.Most)
		}
	})
	if _, err := ParseKinds([]string{"kill", "flood"}); err == nil || !strings.Contains(err.Error(), `"flood" is no fault: want some of kill, term`) {
		t.Error(err)
	}
	if got := (Fault{At: 1500 * time.Millisecond, Kind: SlowLink, Target: 1, For: time.Second, Rate: 50000}).String(); got != "1.5s the way to server 1: slow-link for 1s at 50 kB/s" {
		t.Error(got)
	}
}

// Of servers as many are killed as copies make up for; when none was for a while, others have copies, and as many may be killed again.
func TestServersDieWithinReason(t *testing.T) {
	for seed := range uint64(50) {
		o := Options{Seed: seed, Kinds: []Kind{Server, Kill}, Servers: 3, Every: time.Second, Until: 2 * time.Minute, Longest: time.Second, Most: 2, Copied: 12 * time.Second}
		run, last, all := 0, -time.Hour, 0
		for _, f := range Schedule(o) {
			if f.Kind == Kill {
				continue
			}
			if all++; f.At-last > o.Copied {
				run = 0
			}
			if run++; run > o.Most {
				t.Fatalf("seed %d: at %v server %d in a row", seed, f.At, run)
			}
			last = f.At
		}
		if all <= 4 {
			t.Errorf("seed %d: in two minutes only %d servers are killed", seed, all)
		}
		if o.Copied = 0; len(slices.DeleteFunc(Schedule(o), func(f Fault) bool { return f.Kind == Kill })) != 2 {
			t.Errorf("seed %d: where nobody gets copies more than two are killed", seed)
		}
	}
}

// So many coordinators die that most are left; when nobody has died for a while others have their places, and as many may die again.
func TestCoordinatorsDieWithinReason(t *testing.T) {
	for seed := range uint64(50) {
		o := Options{Seed: seed, Kinds: []Kind{Coordinator, HandOver, Kill}, Every: time.Second, Until: 2 * time.Minute, Longest: time.Second, Successors: 2, Return: 10 * time.Second}
		run, last, all := 0, -time.Hour, 0
		for _, f := range Schedule(o) {
			if f.Kind == Kill {
				continue
			}
			if all++; f.At-last > o.Return {
				run = 0
			}
			if run++; run > o.Successors {
				t.Fatalf("seed %d: at %v coordinator %d in a row", seed, f.At, run)
			}
			last = f.At
		}
		if all <= 4 {
			t.Errorf("seed %d: of a job of two minutes only %d coordinators die", seed, all)
		}
		if o.Return = 0; len(slices.DeleteFunc(Schedule(o), func(f Fault) bool { return f.Kind == Kill })) != 2 {
			t.Errorf("seed %d: those that do not come back die more than twice", seed)
		}
	}
}
