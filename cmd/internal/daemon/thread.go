package daemon

import "runtime"

// A process has a first thread, and some of what the kernel keeps per thread survives execve only there. Linux forgets
// the signal for a parent's death (PR_SET_PDEATHSIG of prctl(2)) if any other thread calls execve(2). Main keeps the
// first thread for onMainThread.
func init() { runtime.LockOSThread() }

var mainThread = make(chan func())

// onMainThread runs f on the process's first thread. Main must be running.
func onMainThread(f func()) {
	done := make(chan struct{})
	mainThread <- func() { defer close(done); f() }
	<-done
}

// serveMainThread runs a program on other threads, and the functions of onMainThread on this one. It returns the
// program's exit code.
func serveMainThread(program func() int) int {
	code := make(chan int, 1)
	go func() { code <- program() }()
	for {
		select {
		case f := <-mainThread:
			f()
		case c := <-code:
			return c
		}
	}
}
