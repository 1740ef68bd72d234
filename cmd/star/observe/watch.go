package observe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	signals "os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/cluster/resource/gpu"
	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/internal/build"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/observe/watch"
	"star/observe/web"
	"star/runlog"
	"star/transport"
)

// watchOut is the usual folder of the run log.
const watchOut = "star-watch"

// watching is star watch.
type watching struct {
	listen, to, out, page string
	outName               string // of the setting of out
	quiet                 bool   // a job without steps is not worth a message
	attach                int
	insecure              bool
	token                 settings.Secret
	shows                 cli.Credentials
	tls                   *tls.Config
	set                   *settings.Set
}

func watchCommand() *cobra.Command {
	w := &watching{set: new(settings.Set), outName: "out"}
	s := w.set
	settings.Var(s, &w.out, w.outName, watchOut, "folder for run.jsonl; an existing one is kept under another name")
	settings.Var(s, &w.page, "http", "off", "address of the page that shows it, such as 127.0.0.1:7071")
	settings.Var(s, &w.listen, "listen", "", "be the head of star watch on other hosts: the address that they reach with --to")
	settings.Var(s, &w.to, "to", "", "address of the head, where another host has it")
	settings.Var(s, &w.token, "token", "", "shared secret of head and others (rather as STAR_TOKEN)")
	w.shows.Declare(s)
	settings.Var(s, &w.insecure, "insecure", false, "allow --listen beyond loopback without TLS or token")
	settings.Var(s, &w.attach, "attach", 0, "process that runs already, such as torchrun: say what can be seen of it and its ranks from outside, which is not their steps")
	cmd := &cobra.Command{
		Use:   "watch [flags] -- COMMAND [ARG…]",
		Short: "Say which ranks are slow in a PyTorch job that does not run on STAR",
		Long: `Runs a command, and measures each training step of the Python programs that it starts, unmodified: DistributedDataParallel, FSDP
(on GPUs coarsely), loops of one's own with torch.distributed; other loops by star_train.watch.step() (docs/watch.md). It says on standard error which rank is slow, since
when, why, what that costs, and what STAR's modes would save, and writes an ordinary run log. Output, signals and exit code are the command's.

  star watch -- torchrun --nproc_per_node 4 train.py
  star watch --http 127.0.0.1:7071 -- torchrun …       with a page to look at
  star watch --listen :7074 -- torchrun …              on the first of several hosts; STAR_TOKEN on all of them
  star watch --to node-a:7074 -- torchrun …            on the others
  star watch --attach 4711                             a job that runs already, as far as it can be seen from outside
  star explain star-watch                              the story afterwards`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() > 0 || len(args) > 0 && cmd.ArgsLenAtDash() < 0 {
				return &settings.UsageError{Msg: fmt.Sprintf("star watch: the command comes behind --: star watch -- %s", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.run(args)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// say prints a message.
func (w *watching) say(text string) { fmt.Fprintln(os.Stderr, "watch | "+text) }

func (w *watching) check(args []string) error {
	switch {
	case w.attach != 0 && (len(args) > 0 || w.to != "" || w.listen != "" || w.page != "off"):
		return w.set.Invalid("attach", errors.New("it takes no command, and there are no steps to send, to take or to show on a page: give --attach alone"))
	case w.to != "" && w.listen != "":
		return w.set.Invalid("to", errors.New("a head has none: give --listen or --to"))
	case w.to != "" && len(args) == 0:
		return w.set.Invalid("to", errors.New("there is nothing to watch: give a command behind --"))
	case len(args) == 0 && w.listen == "" && w.attach == 0:
		return &settings.UsageError{Msg: "star watch needs a command: star watch -- torchrun train.py"}
	}
	var err error
	if w.tls, err = w.shows.Config(w.set); err != nil {
		return err
	}
	for name, addr := range map[string]string{"listen": w.listen, "to": w.to} {
		if addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return w.set.Invalid(name, fmt.Errorf("%w: want host:port", err))
		}
	}
	if w.listen != "" && w.tls == nil && w.token == "" && !w.insecure && !settings.Loopback(w.listen) {
		return w.set.Invalid("listen", fmt.Errorf("any process that reaches this address could send rows; give STAR_TOKEN or certificates (--tls-cert …), listen on %s, or allow it with --insecure", settings.Home()))
	}
	return nil
}

func (w *watching) run(args []string) error {
	if err := w.check(args); err != nil {
		return err
	}
	if w.attach != 0 {
		return w.outside()
	}
	path := ""
	if len(args) > 0 {
		var err error
		if path, err = cli.FindProgram(args[0], ""); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	take, finish, err := w.sink(ctx)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		over, stop := process.Signals(ctx)
		<-over.Done()
		stop()
		finish("")
		return nil
	}
	c, end, err := w.collect(ctx, take)
	if err != nil {
		return err
	}
	defer end()
	code, err := watched(path, args, c.Env(os.Environ()))
	if err != nil {
		return err
	}
	end()
	finish("")
	if code != 0 {
		return &silent{code}
	}
	return nil
}

// collect takes the rows of this host's ranks until end, which may be called twice.
func (w *watching) collect(ctx context.Context, take func(watch.Row)) (c *watch.Collector, end func(), err error) {
	device := gpu.Start(gpu.Config{}) // nil without a driver
	c, err = watch.Listen(process.Hostname(), func(t *nouns.Telemetry) { device.AddTo(t) }, take, once(func(err error) { w.say(err.Error()) }))
	if err != nil {
		device.Close()
		return nil, nil, err
	}
	took := make(chan struct{})
	go func() { defer close(took); c.Run(ctx) }()
	return c, sync.OnceFunc(func() {
		c.Close()
		<-took
		device.Close()
	}), nil
}

// outside looks at a job that runs already.
func (w *watching) outside() error {
	o, err := watch.Attach(w.attach, nil)
	if err != nil {
		return fmt.Errorf("--attach: %w", err)
	}
	ctx, stop := process.Signals(context.Background())
	defer stop()
	o.Run(ctx, w.say)
	return nil
}

// once calls f for the first error only.
func once(f func(error)) func(error) {
	var o sync.Once
	return func(err error) { o.Do(func() { f(err) }) }
}

// silent is the end of a watched command, which has printed its own error.
type silent struct{ code int }

func (e *silent) Error() string { return "" }

// ExitCode is the command's.
func (e *silent) ExitCode() int { return e.code }

// watched runs a command with our terminal, and passes on what signals it does not get itself.
func watched(path string, args, env []string) (code int, err error) {
	cmd := &exec.Cmd{Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	came := make(chan os.Signal, 16)
	signals.Notify(came, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signals.Stop(came)
	if err := cmd.Start(); err != nil {
		return 0, job.FileError(fmt.Errorf("%s cannot be started: %w", args[0], err), fs.ErrPermission)
	}
	tty, err := os.Open("/dev/tty") // which sends its signals to the whole group
	if err == nil {
		tty.Close()
	}
	terminal := err == nil
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-came:
				if terminal && (s == os.Interrupt || s == syscall.SIGQUIT || s == syscall.SIGHUP) {
					continue
				}
				cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	if x := (*exec.ExitError)(nil); err != nil && !errors.As(err, &x) {
		return 0, err
	}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// sink returns where rows go: to the head on another host, or to our own. take does not block.
func (w *watching) sink(ctx context.Context) (take func(watch.Row), finish func(why string), err error) {
	if w.to != "" {
		take, finish := w.follow(ctx, 2*time.Second)
		return take, finish, nil
	}
	take, finish, log, err := w.head(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := w.serve(ctx, log); err != nil {
		return nil, nil, err
	}
	if w.listen == "" {
		return take, finish, nil
	}
	l, err := net.Listen(transport.ListenNetwork(w.listen), w.listen)
	if err != nil {
		return nil, nil, w.set.Invalid("listen", err)
	}
	w.say(fmt.Sprintf("takes rows of other hosts at %s (star watch --to HOST:PORT)", l.Addr()))
	w.listenOn(ctx, l, take)
	return take, finish, nil
}

// listenOn takes rows of other hosts until ctx ends.
func (w *watching) listenOn(ctx context.Context, l net.Listener, take func(watch.Row)) {
	context.AfterFunc(ctx, func() { l.Close() })
	go w.accept(transport.Limit(l, transport.Portion(4, 256)), take, w.say)
}

// follow sends rows to the head at w.to, for which it waits at the end, for most.
func (w *watching) follow(ctx context.Context, most time.Duration) (take func(watch.Row), finish func(why string)) {
	l := watch.Dial(ctx, w.to, string(w.token), w.tls, w.say)
	return l.Take, func(string) {
		dropped, err := l.Close(most)
		if err != nil && dropped == 0 {
			w.say(err.Error())
		}
		if dropped > 0 {
			w.say(fmt.Sprintf("%d rows were dropped, since the star watch at %s did not take them", dropped, w.to))
		}
	}
}

// head judges rows, and writes the run log into the folder w.out, if that is not empty. log is the file.
func (w *watching) head(ctx context.Context) (take func(watch.Row), finish func(why string), log *os.File, err error) {
	var to io.WriteCloser // nil: no log
	if w.out != "" {
		if log, err = w.create(); err != nil {
			return nil, nil, nil, err
		}
		to = log
	}
	lines, begun := runlog.NewWriter(to), time.Now()
	head := watch.NewHead(lines, runlog.Start{Program: job.Program, Commit: build.Commit(), Time: begun.UTC(), Job: "watch"}, w.say)
	type came struct {
		row watch.Row
		at  time.Duration
	}
	rows, over, lost := make(chan came, 1<<14), make(chan string), 0
	var mu sync.Mutex
	take = func(r watch.Row) {
		select {
		case rows <- came{r, time.Since(begun)}:
		default:
			mu.Lock()
			lost++
			mu.Unlock()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		broken := false
		for {
			select {
			case r := <-rows:
				head.Take(r.row, r.at)
			case <-tick.C:
				if err := lines.Flush(); err != nil && !broken {
					broken = true
					w.say(fmt.Sprintf("the run log cannot be written any more: %v", process.FullDisk(err)))
				}
			case why := <-over:
				for len(rows) > 0 {
					r := <-rows
					head.Take(r.row, r.at)
				}
				if head.Begun() || !w.quiet {
					head.End(time.Since(begun), why)
				}
				return
			}
		}
	}()
	return take, func(why string) {
		over <- why
		<-done
		if err := lines.Close(); err != nil {
			w.say(fmt.Sprintf("the run log is not whole: %v", process.FullDisk(err)))
		}
		mu.Lock()
		defer mu.Unlock()
		if lost > 0 {
			w.say(fmt.Sprintf("%d rows were dropped, since this process did not come round to them", lost))
		}
		if head.Begun() && w.out != "" {
			w.say(fmt.Sprintf("star explain %s tells the story, star view %s shows it", w.out, w.out))
		}
	}, log, nil
}

// create creates the run log.
func (w *watching) create() (*os.File, error) {
	if info, err := os.Stat(w.out); err == nil && !info.IsDir() {
		return nil, w.set.Invalid(w.outName, errors.New("it is a file: give a folder"))
	}
	if err := os.MkdirAll(w.out, 0o777); err != nil {
		return nil, w.set.Invalid(w.outName, err)
	}
	f, kept, err := process.CreateRunLog(filepath.Join(w.out, process.RunLogName))
	if err != nil {
		return nil, w.set.Invalid(w.outName, err)
	}
	if kept != "" {
		w.say("kept the run log that was there as " + kept)
	}
	return f, nil
}

// serve has the page of a run log, where that is wanted.
func (w *watching) serve(ctx context.Context, log *os.File) error {
	if w.page == "off" || w.page == "" {
		return nil
	}
	l, err := net.Listen(transport.ListenNetwork(w.page), w.page)
	if err != nil {
		return w.set.Invalid("http", fmt.Errorf("%w: choose another one, as %s", err, net.JoinHostPort(settings.Home(), "0")))
	}
	f, err := os.Open(log.Name())
	if err != nil {
		return err
	}
	if web.Exposed(l) {
		w.say(cli.Exposed)
	}
	live := web.NewLive()
	go live.Follow(ctx, f, log.Name(), nil)
	go func() {
		defer f.Close()
		cli.ServePage(ctx, l, w.page, live.Handler(daemon.Downloads(log.Name())))
	}()
	w.say(fmt.Sprintf("http://%s/ shows it", l.Addr()))
	return nil
}

// accept takes rows of collectors until l is closed. Strangers are bounded as those of package transport: a collector
// counts for the limit of l until it has proved that it knows the token, if there is one; and few of the others are
// spoken of.
func (w *watching) accept(l net.Listener, take func(watch.Row), say func(string)) {
	var refused transport.Budget
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most often
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go func() {
			c := nc
			if w.tls != nil {
				c = tls.Server(nc, w.tls)
			}
			err := watch.Accept(c, string(w.token), func() {
				if w.tls != nil || w.token != "" {
					transport.Admit(nc)
				}
			}, take)
			if err == nil {
				return
			}
			if may, silent := refused.Spend(); may && silent > 0 {
				say(fmt.Sprintf("%s is not taken: %v (nor were %d others)", nc.RemoteAddr(), err, silent))
			} else if may {
				say(fmt.Sprintf("%s is not taken: %v", nc.RemoteAddr(), err))
			}
		}()
	}
}
