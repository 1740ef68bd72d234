package command

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestGrowth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ear")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := 0
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			return // says nothing
		}
		w.Write([]byte("# TYPE go_goroutines gauge\ngo_goroutines 37\n"))
	}))
	g := &growth{stop: make(chan struct{}), seen: map[string]*held{}}
	for i := range growthLeast {
		if h := g.look("me", os.Getpid()); h != nil && i%growthAsk == 0 {
			g.ask(h, "unix:"+path)
		}
	}
	g.look("nobody", 1<<22+1) // more than there can be
	g.look("short", os.Getppid())
	got := g.end()
	if runtime.GOOS != "linux" {
		return
	}
	if len(got) != 1 || got[0].Name != "me" || got[0].Memory[0] < 1<<20 || got[0].Descriptors[1] < 3 || got[0].Goroutines != [2]int64{37, 37} || got[0].Age != 20 {
		t.Errorf("%+v", got)
	}
	if v := flat([]grown{{"me", 20, [2]int64{1 << 30, 1 << 31}, [2]int64{1, 1}, [2]int64{1, 1}}}, 1); v.OK {
		t.Errorf("%+v", v)
	}
}
