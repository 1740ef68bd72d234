package main

import (
	"os"
	"runtime"
	"testing"
)

func TestGrowth(t *testing.T) {
	g := &growth{stop: make(chan struct{}), seen: map[string]*held{}}
	for range growthLeast {
		g.look("me", os.Getpid())
	}
	g.look("nobody", 1<<22+1) // more than there can be
	g.look("short", os.Getppid())
	got := g.end()
	if runtime.GOOS != "linux" {
		return
	}
	if len(got) != 1 || got[0].Name != "me" || got[0].Memory[0] < 1<<20 || got[0].Descriptors[1] < 3 || got[0].Age != 20 {
		t.Errorf("%+v", got)
	}
	if got := quarters([]int64{100, 100, 5, 6, 50, 60, 9, 8, 7, 100, 100, 100}); got != [2]int64{50, 100} {
		t.Errorf("%v", got)
	}
}
