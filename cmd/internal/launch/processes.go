package launch

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	notify "os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"star/internal/exitcode"
	"star/internal/ports"
)

// ProcessesCommand is the hidden command of star that runs a command in several processes.
const ProcessesCommand = "processes"

// InProcesses returns the words that run a command in n processes, which are one worker. self is star.
func InProcesses(self string, n int, command []string) []string {
	if n <= 1 {
		return command
	}
	return append([]string{self, ProcessesCommand, strconv.Itoa(n), "--"}, command...)
}

// othersEnd is how long the other processes of a worker may take to end by themselves after one has failed.
const othersEnd = 10 * time.Second

// Processes is a command in several processes, as torchrun starts it: each has its rank, and the address at which
// process 0 waits for the others, in the variables of torch.distributed.
type Processes struct {
	Command        []string
	N              int
	Stdout, Stderr io.Writer // get whole lines; those of other processes than 0 begin with the rank
}

// Run starts the processes and waits for all of them. It forwards SIGINT, SIGTERM, SIGQUIT and SIGUSR1. It returns the
// exit code of the first process that failed; an error means that one could not be started.
func (p Processes) Run() (code int, err error) {
	// A child gets a signal when the thread that started it ends, so the thread must live.
	runtime.LockOSThread()
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		return exitcode.Failure, fmt.Errorf("cannot find a free port for the processes of this worker: %w", err)
	}
	host, port, _ := net.SplitHostPort(addr)
	signals := make(chan os.Signal, 8)
	notify.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1)
	defer notify.Stop(signals)

	type exit struct {
		rank int
		err  error
	}
	ended := make(chan exit, p.N)
	running := make(map[int]*os.Process, p.N)
	send := func(s os.Signal) {
		for _, c := range running {
			c.Signal(s) // it may have ended
		}
	}
	var mu sync.Mutex
	for i := range p.N {
		cmd := exec.Command(p.Command[0], p.Command[1:]...)
		cmd.SysProcAttr = Attributes()
		cmd.Env = append(os.Environ(), "RANK="+strconv.Itoa(i), "LOCAL_RANK="+strconv.Itoa(i), "WORLD_SIZE="+strconv.Itoa(p.N),
			"LOCAL_WORLD_SIZE="+strconv.Itoa(p.N), "MASTER_ADDR="+host, "MASTER_PORT="+port)
		var pipes sync.WaitGroup
		for _, out := range []struct {
			pipe func() (io.ReadCloser, error)
			to   io.Writer
		}{{cmd.StdoutPipe, p.Stdout}, {cmd.StderrPipe, p.Stderr}} {
			from, e := out.pipe()
			if err == nil {
				err = e
			}
			if e == nil {
				pipes.Go(func() { relay(&mu, out.to, i, from) })
			}
		}
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			send(syscall.SIGKILL)
			return exitcode.Failure, fmt.Errorf("cannot start process %d of this worker: %w", i, err)
		}
		running[i] = cmd.Process
		go func() {
			pipes.Wait() // Wait closes them
			ended <- exit{i, cmd.Wait()}
		}()
	}
	var late <-chan time.Time
	last, asked := syscall.SIGTERM, false
	for len(running) > 0 {
		select {
		case s := <-signals:
			send(s)
			asked = true
		case e := <-ended:
			delete(running, e.rank)
			if c := ExitCode(e.err); c != 0 && code == 0 {
				code = c
				if c > 128 && !asked { // others print their reason
					fmt.Fprintf(p.Stderr, "process %d of the %d of this worker was ended by a signal: %v\n", e.rank, p.N, syscall.Signal(c-128))
				}
				late = time.After(othersEnd)
			}
		case <-late:
			send(last)
			last, late = syscall.SIGKILL, time.After(othersEnd)
		}
	}
	return code, nil
}

// relay copies lines.
func relay(mu *sync.Mutex, to io.Writer, rank int, from io.Reader) {
	prefix := ""
	if rank > 0 {
		prefix = fmt.Sprintf("[%d] ", rank)
	}
	r := bufio.NewReaderSize(from, 1<<16)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			mu.Lock()
			io.WriteString(to, prefix+strings.TrimSuffix(line, "\n")+"\n")
			mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}
