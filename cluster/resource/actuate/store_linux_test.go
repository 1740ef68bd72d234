package actuate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is a process that sets limits when it is called with these variables.
func TestMain(m *testing.M) {
	if os.Getenv("ACTUATE_LIFE") != "" {
		os.Exit(life())
	}
	os.Exit(m.Run())
}

// life sets limits, changes them and takes them back, or undoes those of others, and is killed just before
// the change number ACTUATE_KILL. At the end it says how many changes it made.
func life() int {
	s := OpenStore(os.Getenv("ACTUATE_DIR"))
	if dir := os.Getenv("ACTUATE_FAKE"); dir != "" {
		f := fakeGroups{dir}
		if f.groupOf(strconv.Itoa(os.Getpid())) == "" {
			s.sys = f.system(os.Getpid())
		}
		s.sys.groups, s.sys.proc = f, f.dir
	}
	kill, _ := strconv.Atoi(os.Getenv("ACTUATE_KILL"))
	n := 0
	s.sys.step = func(what string) {
		if n++; n == kill {
			fmt.Println("killed before", what)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	var a Actuator
	var limits []Limit
	switch os.Getenv("ACTUATE_LIFE") {
	case "undo":
		done, err := s.Undo()
		for _, u := range done {
			err = errors.Join(err, u.Err)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	case "cgroup":
		a, limits = NewCgroup(s, "a child", os.Getpid()), []Limit{{Cores: 0.5}, {Cores: 0.05}, {}}
	case "tc":
		a = NewTC(s, "a child", os.Getenv("ACTUATE_NS"), "d0")
		limits = []Limit{{NetOut: 1e6}, {NetOut: 2e6, NetIn: 1e6}, {NetIn: 2e6}, {}}
	}
	for _, l := range limits {
		if err := a.Apply(l, time.Time{}); err != nil {
			fmt.Println(err)
			return 2
		}
	}
	fmt.Println("changes:", n)
	return 0
}

// groupsOfChildren are the names that control groups of our children have: others may limit processes here at the same
// time.
var groupsOfChildren = map[string]bool{}

// child runs a life that is killed before its change number kill. It reports whether it was.
func child(t *testing.T, life string, kill int, env ...string) (killed bool, said string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "ACTUATE_LIFE="+life, "ACTUATE_KILL="+strconv.Itoa(kill))...)
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		groupsOfChildren[prefix+strconv.Itoa(cmd.Process.Pid)] = true
	}
	var x *exec.ExitError
	switch {
	case err == nil:
		return false, string(out)
	case errors.As(err, &x) && x.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true, string(out)
	}
	if life != "undo" && kill > 40 || strings.Contains(string(out), "needs root") {
		t.Skipf("%v: %s", err, out)
	}
	t.Fatalf("%v: %s", err, out)
	return false, ""
}

// A process is killed before each of its changes, one life for each; the next process undoes the changes that it finds,
// and is itself killed before each of its changes. At last one lives, and everything is as it was before.
func TestKilledAnywhere(t *testing.T) {
	t.Run("cgroup", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("needs root")
		}
		y := realSystem()
		home, err := y.cgroupOf(os.Getpid())
		if err != nil {
			t.Skip(err)
		}
		killAnywhere(t, "cgroup", 1, func() string {
			groups, _ := filepath.Glob(filepath.Join(home.dir, prefix+"*"))
			return fmt.Sprint(slices.DeleteFunc(groups, func(g string) bool { return !groupsOfChildren[filepath.Base(g)] }))
		})
	})
	t.Run("v2", func(t *testing.T) {
		f := newFakeGroups(t)
		killAnywhere(t, "cgroup", 1, func() string {
			groups, _ := filepath.Glob(filepath.Join(f.root(), "job", "*"))
			return fmt.Sprint(groups)
		}, "ACTUATE_FAKE="+f.dir)
	})
	t.Run("tc", func(t *testing.T) {
		if testing.Short() {
			t.Skip("calls tc a thousand times: not in a short run")
		}
		ns := namespace(t)
		killAnywhere(t, "tc", 5, func() string { return network(t, ns) }, "ACTUATE_NS="+ns)
	})
}

// killAnywhere plants the kills. Of every few places, counted in every, the sweepers are killed as well.
func killAnywhere(t *testing.T, what string, every int, state func() string, env ...string) {
	dir := filepath.Join(t.TempDir(), "leases")
	env = append(env, "ACTUATE_DIR="+dir)
	before := state()
	kills, limited := 0, 0
	for k := 1; ; k++ {
		killed, said := child(t, what, k, env...)
		if state() != before {
			limited++
		}
		for j := 1; k%every == 0 || j < 2; j++ {
			again := 0
			if k%every == 0 {
				again = j
			}
			if swept, _ := child(t, "undo", again, env...); !swept {
				break
			}
			kills++
		}
		if now := state(); now != before {
			t.Errorf("life %d, %s: left\n%s\nwas\n%s", k, strings.TrimSpace(said), now, before)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.json*")); len(left) > 0 {
			t.Fatalf("life %d, %s: left %v", k, strings.TrimSpace(said), left)
		}
		if !killed {
			if k < 10 || limited < 5 {
				t.Errorf("only %d changes, and limits found after %d lives: nothing was tested", k-1, limited)
			}
			t.Logf("%d lives, %d sweepers killed; %d lives left a limit", k-1, kills, limited)
			return
		}
	}
}

// A lease is judged by its owner.
func TestStates(t *testing.T) {
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	f := newFakeGroups(t)
	s.sys = f.system(os.Getpid())
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Skip(err)
	}
	zombie := exec.Command("true")
	zombie.Start()
	defer zombie.Wait()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(ms) {
		if _, alive := s.sys.started(zombie.Process.Pid); !alive {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a process that has ended counts as alive")
		}
	}
	past, soon, future := time.Now().Add(-late-time.Second), time.Now().Add(-late/2), time.Now().Add(time.Hour)
	unlock, err := s.lock()
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name  string
		f     func(l *Lease)
		state State
		why   string
	}{
		{"alive", func(l *Lease) {}, Alive, ""},
		{"another-boot", func(l *Lease) { l.Owner.Boot = "x" }, Void, "started again"},
		{"another-container", func(l *Lease) { l.Owner.PIDs = "pid:[0]" }, Foreign, "container"},
		{"another-net", func(l *Lease) {
			l.Kind, l.Cgroup, l.Set = kindTC, nil, Terms{NetOut: 1e6}
			l.TC = &Interface{Net: "net:[0]", Dev: "eth0", Handle: "1:"}
		}, Foreign, "network namespace"},
		{"expired", func(l *Lease) { l.Expires = &past }, Stale, "ended at"},
		{"expires-now", func(l *Lease) { l.Expires = &soon }, Alive, ""},
		{"expires-later", func(l *Lease) { l.Expires = &future }, Alive, ""},
		{"gone", func(l *Lease) { l.Owner.PID = gone.Process.Pid }, Stale, "is gone"},
		{"reused", func(l *Lease) { l.Owner.Started-- }, Stale, "another one"},
		{"zombie", func(l *Lease) { l.Owner.PID = zombie.Process.Pid }, Stale, "is gone"},
	}
	for _, c := range cases {
		l := s.lease(kindCgroup, c.name)
		l.Name, l.Set = c.name, Terms{Cores: 1}
		l.Cgroup = &Group{PID: 1, Version: 2, Dir: filepath.Join(f.root(), "star-"+c.name), Home: f.root()}
		c.f(&l)
		if err := s.write(l); err != nil {
			t.Fatal(err)
		}
	}
	unlock()
	os.WriteFile(s.file("corrupt"), []byte("{"), 0o600)
	os.WriteFile(s.file("cut.json.part"), []byte("{"), 0o600)
	os.Symlink("/etc/passwd", s.file("link"))
	os.Mkdir(s.file("folder"), 0o700)
	os.WriteFile(filepath.Join(s.dir, "readme.txt"), nil, 0o600)
	es, err := s.List()
	if err != nil || len(es) != len(cases)+4 {
		t.Fatalf("%+v, %v", es, err)
	}
	for _, e := range es {
		want, why := Corrupt, ""
		for _, c := range cases {
			if c.name == e.Name {
				want, why = c.state, c.why
			}
		}
		if e.State != want || !strings.Contains(e.Why, why) || e.State != Alive && e.Why == "" {
			t.Errorf("%s: %s, %q; want %s, %q", e.Name, e.State, e.Why, want, why)
		}
	}

	// Sweeping undoes stale and void ones, names the corrupt, and leaves the rest.
	done, err := s.Undo()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, u := range done {
		got[u.Name] = u.Err == nil
	}
	want := map[string]bool{"another-boot": true, "expired": true, "gone": true, "reused": true, "zombie": true,
		"corrupt": false, "link": false, "folder": false, "cut.json.part": false}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("undone %v, want %v", got, want)
	}
	for _, name := range []string{"corrupt", "link", "folder"} {
		if !exists(s.file(name)) {
			t.Errorf("%s is gone", name)
		}
	}

	// By name also those of the living and of other containers, but none on another network.
	if _, err := s.Undo("alive", "nobody"); err == nil || !strings.Contains(err.Error(), `no lease "nobody"`) || !exists(s.file("alive")) {
		t.Error(err)
	}
	done, err = s.Undo("alive", "another-container", "another-net")
	if err != nil || len(done) != 3 || done[0].Err != nil || done[1].Err != nil || done[2].Err == nil {
		t.Errorf("%+v, %v", done, err)
	}
	if exists(s.file("alive")) || exists(s.file("another-container")) || !exists(s.file("another-net")) || !exists(s.file("expires-now")) {
		t.Error("other leases than those named are undone, or not all of those")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Files that others could have written are not acted on.
func TestFolderMustBeOurs(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	os.Mkdir(open, 0o700)
	os.Chmod(open, 0o755)
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	link := filepath.Join(t.TempDir(), "link")
	os.Symlink(t.TempDir(), link)
	dirs := map[string]string{open: "chmod 700", file: "no folder", link: "no folder"}
	if os.Getuid() == 0 {
		theirs := filepath.Join(t.TempDir(), "theirs")
		os.Mkdir(theirs, 0o700)
		os.Chown(theirs, 12345, 12345)
		dirs[theirs] = "another user"
	}
	for dir, want := range dirs {
		s := OpenStore(dir)
		if _, err := s.List(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("List of %s: %v, want %q", dir, err, want)
		}
		if want == "no folder" {
			want = "" // the kernel says it
		}
		if _, err := s.Undo(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Undo of %s: %v, want %q", dir, err, want)
		}
	}
	s := OpenStore(filepath.Join(t.TempDir(), "none"))
	es, err := s.List()
	done, err2 := s.Undo()
	if len(es)+len(done) > 0 || err != nil || err2 != nil || exists(s.Dir()) {
		t.Errorf("a folder that is not there: %v %v, %v %v", es, done, err, err2)
	}
}

func TestDefaultDir(t *testing.T) {
	own := t.TempDir()
	for _, c := range [][2]string{{own, filepath.Join(own, "star")}, {"", ""}, {"relative", ""}, {"/no/such/folder", ""}} {
		t.Setenv("XDG_RUNTIME_DIR", c[0])
		want := c[1]
		if want == "" {
			want = filepath.Join(os.TempDir(), fmt.Sprintf("star-%d", os.Geteuid()))
		}
		if got := OpenStore("").Dir(); got != want {
			t.Errorf("XDG_RUNTIME_DIR=%q: %s, want %s", c[0], got, want)
		}
	}
}

// Processes wait for each other.
func TestLock(t *testing.T) {
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	var wg sync.WaitGroup
	held, most := 0, 0
	var mu sync.Mutex
	count := func(d int) {
		mu.Lock()
		held += d
		most = max(most, held)
		mu.Unlock()
	}
	for range 8 {
		wg.Go(func() {
			unlock, err := s.lock()
			if err != nil {
				t.Error(err)
				return
			}
			count(1)
			time.Sleep(ms)
			count(-1)
			unlock()
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d had the lock at the same time", most)
	}
}

func TestParseStat(t *testing.T) {
	rest := " 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 5 6"
	for text, want := range map[string]struct {
		started uint64
		alive   bool
	}{
		"7 (sleep) S" + rest:      {4711, true},
		"7 (a) b) Z (c) R" + rest: {4711, true},
		"7 (sleep) Z" + rest:      {0, false},
		"7 (sleep) X" + rest:      {0, false},
		"7 (sleep) S 1 2":         {0, false},
		"":                        {0, false},
		"7 sleep S" + rest:        {0, false},
		"7 (sleep) S" + strings.Replace(rest, "4711", "x", 1): {0, false},
	} {
		if started, alive := parseStat([]byte(text)); started != want.started || alive != want.alive {
			t.Errorf("%q: %d %v, want %v", text, started, alive, want)
		}
	}
}

// Sweep says of each what it was and why.
func TestSweepNames(t *testing.T) {
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	f := newFakeGroups(t)
	s.sys = f.system(os.Getpid())
	unlock, err := s.lock()
	if err != nil {
		t.Fatal(err)
	}
	l := s.lease(kindCgroup, "worker 2 of job digits")
	l.Owner.Started--
	l.Set, l.Cgroup = Terms{Cores: 1}, &Group{PID: 9, Version: 2, Dir: filepath.Join(f.root(), "star-9"), Home: f.root()}
	if err := s.write(l); err != nil {
		t.Fatal(err)
	}
	unlock()
	os.WriteFile(s.file("rubbish"), nil, 0o600)
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	Sweep(s, log)
	for _, want := range []string{"undid a limit", l.Name, "cpu=1 for process 9", "worker 2 of job digits", "is another one by now", "rubbish.json: is not a lease", "then remove the file"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	b.Reset()
	os.Chmod(s.dir, 0o777)
	Sweep(s, log)
	if !strings.Contains(b.String(), "chmod 700") {
		t.Errorf("%s", &b)
	}
	Sweep(OpenStore(filepath.Join(t.TempDir(), "none")), slog.New(slog.NewTextHandler(io.Discard, nil)))
}
