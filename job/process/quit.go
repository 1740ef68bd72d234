package process

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"star/internal/flightrecorder"
)

// quitAgain is how soon a second SIGQUIT must follow for Go's own dump.
const quitAgain = 3 * time.Second

// pageLines is how many waits a page shows.
const pageLines = 50

var processBegan = time.Now()

// Page writes what this process waits for, on one page.
func Page(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s, process %d, %v old, %d goroutines; waits, the longest first:\n",
		filepath.Base(os.Args[0]), os.Getpid(), time.Since(processBegan).Round(time.Second), runtime.NumGoroutine()); err != nil {
		return err
	}
	return flightrecorder.Write(w, pageLines)
}

// explainQuits makes SIGQUIT write a Page to standard error, after which the process continues; a second one soon after
// it ends the process with Go's dump of all goroutines. The returned function undoes that.
func explainQuits() (undo func()) {
	c, over := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(c, syscall.SIGQUIT)
	go func() {
		last := time.Time{}
		for {
			select {
			case <-c:
			case <-over:
				return
			}
			if time.Since(last) < quitAgain {
				signal.Reset(syscall.SIGQUIT)
				syscall.Kill(os.Getpid(), syscall.SIGQUIT)
				return
			}
			last = time.Now()
			Page(os.Stderr)
			fmt.Fprintf(os.Stderr, "(SIGQUIT once more within %v: every goroutine, and the end)\n", quitAgain)
		}
	}()
	return func() { signal.Stop(c); close(over) }
}
