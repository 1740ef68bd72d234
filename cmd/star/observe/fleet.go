package observe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/observe/fleet"
	"star/observe/web"
	"star/runlog"
	"star/runlog/parts"
	"star/transport"
)

// mostLogs is how many run logs star top --all follows: the newest. deepest is how many folders below the given one
// they are.
const mostLogs, deepest = 500, 4

// quiet is after what time without a new line a job counts as silent: longer than most evaluations and checkpoints.
const quiet = 5 * time.Minute

// followed is a run log that is followed.
type followed struct {
	job  *fleet.Job
	file *parts.File // nil: it has ended, or cannot be read
	tail *runlog.Tail
}

// next reads what has been written since.
func (f *followed) next() {
	if f.file == nil {
		return
	}
	err := f.tail.Next(f.job.Line)
	if err != nil {
		f.job.Wrong(err)
	}
	if err != nil || f.job.Ended() {
		f.file.Close()
		f.file = nil
	}
}

// jobs are the run logs below some folders.
type jobs struct {
	dirs  []string
	known map[string]*followed
}

// look finds new logs and reads all.
func (js *jobs) look() ([]*fleet.Job, error) {
	type found struct {
		name string
		at   time.Time
	}
	paths := map[string]found{}
	for _, dir := range js.dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, path)
			switch {
			case err != nil && path == dir:
				return job.FileError(fmt.Errorf("cannot look for jobs: %w; give folders of jobs, or the folder of star sched serve", err), fs.ErrNotExist)
			case err != nil: // it has just gone, or is another user's
				return nil
			case d.IsDir() && (strings.Count(rel, string(filepath.Separator)) >= deepest || d.Name() == "checkpoints"):
				return fs.SkipDir
			case d.IsDir() || d.Name() != process.RunLogName:
				return nil
			}
			name := filepath.Dir(path)
			if len(js.dirs) == 1 && filepath.Dir(rel) != "." {
				name = filepath.Dir(rel)
			}
			if strings.HasPrefix(filepath.Base(name), "life-") { // of star sched serve: lives of one job
				name = filepath.Dir(name)
			}
			at := time.Time{}
			if info, err := d.Info(); err == nil {
				at = info.ModTime()
			}
			paths[path] = found{name, at}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var newest []string
	for path := range paths {
		newest = append(newest, path)
	}
	slices.SortFunc(newest, func(a, b string) int { return cmp.Or(paths[b].at.Compare(paths[a].at), cmp.Compare(a, b)) })
	for _, path := range newest[:min(len(newest), mostLogs)] {
		if js.known[path] != nil {
			continue
		}
		f := &followed{job: fleet.NewJob(paths[path].name)}
		js.known[path] = f
		var err error
		if f.file, err = parts.Follow(path); err != nil {
			f.job.Wrong(err)
			continue
		}
		f.tail = runlog.NewTail(f.file, path)
	}
	var all []*fleet.Job
	for _, path := range newest {
		if f := js.known[path]; f != nil {
			f.next()
			f.job.Quiet(time.Since(paths[path].at) > quiet)
			all = append(all, f.job)
		}
	}
	return all, nil
}

// close closes the logs.
func (js *jobs) close() {
	for _, f := range js.known {
		if f.file != nil {
			f.file.Close()
		}
	}
}

// topAll shows all jobs below some folders: once, or until ctx is over where out is a terminal or the page is served.
func topAll(ctx context.Context, s *settings.Set, dirs []string, page string, every time.Duration, out io.Writer, asJSON bool) error {
	if len(dirs) == 0 {
		dirs = []string{"."}
		if cli.IsFolder(cli.SchedDir) {
			dirs = []string{cli.SchedDir}
		}
	}
	js := &jobs{dirs: dirs, known: map[string]*followed{}}
	defer js.close()
	fd, live := -1, false
	if f, ok := out.(*os.File); ok && !asJSON {
		fd = int(f.Fd())
		live = term.IsTerminal(fd)
	}
	var tables *web.LiveTables
	served := make(chan error, 1)
	if page != "" {
		l, err := net.Listen(transport.ListenNetwork(page), page)
		if err != nil {
			return s.Invalid("http", fmt.Errorf("%w: choose another one, as %s", err, net.JoinHostPort(settings.Home(), "0")))
		}
		if web.Exposed(l) {
			fmt.Fprintln(os.Stderr, cli.Exposed)
		}
		tables = web.NewTables(web.Tables{Title: "Jobs", Headline: "reads run logs", Live: true})
		fmt.Fprintf(out, "http://%s/ shows the jobs below %s; Ctrl-C ends it\n", l.Addr(), strings.Join(dirs, ", "))
		go func() { served <- cli.ServePage(ctx, l, page, tables.Handler()) }()
	}
	for {
		all, err := js.look()
		if err != nil {
			return err
		}
		f := fleet.Of(all, process.Hostname())
		switch {
		case tables != nil:
			tables.Show(fleetPage(&f, dirs))
		case asJSON:
			return json.NewEncoder(out).Encode(f)
		default:
			most := 50
			if live {
				fmt.Fprint(out, "\x1b[H\x1b[2J")
				if _, h, err := term.GetSize(fd); err == nil {
					most = max(h-len(f.Hosts)-7, 3)
				}
			}
			if err := f.Text(out, most); err != nil || !live {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return err
		case <-time.After(every):
		}
	}
}

// fleetPage is the page of several jobs.
func fleetPage(f *fleet.Fleet, dirs []string) web.Tables {
	t := web.Tables{Title: "Jobs", Subtitle: "below " + strings.Join(dirs, ", "), Live: true}
	t.Headline, t.Bad = f.Headline()
	hosts := web.Table{Title: "Hosts", Empty: "no worker has joined"}
	for i, row := range f.HostRows() {
		hosts.Rows = append(hosts.Rows, web.TableRow{Cells: row, Bad: f.Hosts[i].Kind == "chronic"})
	}
	list := web.Table{Title: "Jobs", Empty: "there is no run log"}
	for i, row := range f.JobRows() {
		list.Rows = append(list.Rows, web.TableRow{Cells: row, Bad: f.Jobs[i].Bad})
	}
	t.Tables = []web.Table{hosts, list}
	for i, classes := range [2][]string{{"", "n", "n", "n", "", "", "text"}, {"", "", "n", "n", "n", "", "text"}} {
		for k, class := range classes {
			t.Tables[i].Heads = append(t.Tables[i].Heads, web.TableCol{Name: fleet.Heads[i][k], Class: class})
		}
	}
	return t
}
