package network

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/transport"
)

// All workers of a large job may connect before any of them says hello: none of their connections is closed for
// another.
func TestCrowdOfWorkers(t *testing.T) {
	const workers = transport.DefaultPending + 44
	_, addr, errs := jobtest.StartServer(t, "--workers", strconv.Itoa(workers), "--shards", "1")
	jobtest.WaitFor(t, addr)
	tcp := transport.NewTCP(transport.Config{})
	var conns []transport.Conn
	for range workers {
		c, err := tcp.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	closed := 0
	for _, c := range conns { // half a second for all, five times what a silent connection may keep when others wait
		c.SetReadDeadline(time.Now().Add(500*time.Millisecond/workers + time.Millisecond))
		if _, err := c.Recv(); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed > 0 {
		t.Errorf("%d connections of %d were closed before they said hello: %s", closed, workers, errs)
	}
}
