package star_test

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rooms lists for each package of this module which others it may import, and which packages it
// must not import at all. A package that is not listed is a mistake: add a line here,
// and a row in docs/architecture.md.
var rooms = []struct {
	room  string
	needs string // packages, space-separated; * means all
	not   string // other packages
	why   string
}{
	{"star/cmd/internal/chaos", "star star/coord/takeover star/coord/engine star/coord/engine/rehearsal star/modes star/ps/replica star/runlog star/runlog/parts star/transport/wire", "", "breaks jobs on purpose"},
	{"star/cmd/internal/chaos/command", "*", "", "wiring"},
	{"star/cmd/internal/cli", "star/cluster/inventory star/internal/exitcode star/internal/settings star/job star/job/process star/modes/baseline star/observe/web star/runlog star/runlog/parts star/sched/service star/train/checkpoint star/transport star/worker/launch", "", "what the groups of commands of star share"},
	{"star/cmd/internal/console", "star/coord star/internal/exitcode star/internal/settings star/job star/job/options star/modes star/runlog star/transport star/transport/wire", "", "what tools ask of a running job, and show"},
	{"star/cmd/internal/daemon", "*", "", "wiring"},
	{"star/cmd/internal/launch", "*", "", "wiring"},
	{"star/cmd/internal/node", "*", "", "wiring"},
	{"star/cmd/star", "*", "", "wiring"},
	{"star/cmd/star/bench", "*", "", "wiring: a group of commands"},
	{"star/cmd/star/observe", "*", "", "wiring: a group of commands"},
	{"star/cmd/star/ops", "*", "", "wiring: a group of commands"},
	{"star/cmd/star/plan", "*", "", "wiring: a group of commands"},
	{"star/cmd/star/run", "*", "", "wiring: a group of commands"},
	{"star/cmd/star/sched", "*", "", "wiring: a group of commands"},
	{"star/cmd/star-chaos", "*", "", "wiring"},
	{"star/cmd/star-ps", "*", "", "wiring"},
	{"star/cmd/star-worker", "*", "", "wiring"},
	{"star/cmd/tests/chaos", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/clusters", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/compat", "", "", "what earlier releases wrote is read"},
	{"star/cmd/tests/faults", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/jobtest", "star star/train/checkpoint star/cmd/internal/chaos star/internal/ports star/internal/settings star/coord star/job/process star/sched/service star/runlog star/sched/live star/internal/durable", "", "starts jobs as users do; only tests import it"},
	{"star/cmd/tests/kubernetes", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/network", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/recovery", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/rings", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/servers", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/slurm", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/trees", "", "", "tests of whole jobs, nothing else"},
	{"star/sched", "star/blossom", "net os sync context math/rand math/rand/v2", "pure: what is simulated is what runs"},
	{"star/sched/estimate", "star/sched/workload", "net os sync context math/rand math/rand/v2", "pure: what will be follows from what was measured"},
	{"star/sched/live", "star/sched", "net os sync time context math/rand math/rand/v2", "pure: what a service does follows from its events"},
	{"star/sched/market", "star/sched/workload", "net os sync context math/rand math/rand/v2", "pure: what a study measured follows from its files"},
	{"star/sched/schedsim", "star/internal/settings star/job star/runlog star/sched star/sched/workload star/internal/unpack", "", "what commands that simulate schedulers read and write alike"},
	{"star/sched/service", "*", "", "wiring: the queue, and processes"},
	{"star/sched/workload", "star/sched", "net os sync context math/rand math/rand/v2", "pure: bytes in, jobs and clusters out"},
	{"star/bench", "*", "", "wiring"},
	{"star/worker", "star star/internal/exitcode star/allreduce star/train/checkpoint star/internal/compress star/coord/engine star/coord/session star/internal/exactsum star/job/process star/job star/pgns star/internal/poison star/ps star/ps/rule star/cluster/resource/actuate star/cluster/resource/gpu star/cluster/resource/host star/train star/train/data star/internal/kernel star/train/optim star/transport star/transport/wire star/internal/flightrecorder", "", "a worker: knows neither settings nor models"},
	{"star/worker/agent", "star/allreduce star/internal/build star/internal/exitcode star/internal/loopback star/job/process star/transport", "", "collectives between hosts for processes that share memory; knows neither models nor the coordinator"},
	{"star/worker/configure", "star star/coord/session star/worker/inject star/job/process star/internal/settings star/job star/cluster/resource/actuate star/runlog star/sim/trace star/worker star/cluster star/job/options star/job/tenant star/transport/wire", "", "settings, and a worker"},
	{"star/worker/foreign", "star/internal/dtype star/internal/exitcode star/internal/build star/train star/train/data", "", "a model in another process; knows neither jobs nor Python"},
	{"star/worker/inject", "star star/sim/trace star/cluster/resource/actuate", "", "stragglers on purpose"},
	{"star/worker/launch", "star/train/checkpoint star/worker/configure star/job/process star/internal/settings star/job star/worker star/job/options", "", "programs of others as workers: links no model of ours"},
	{"star/server", "star star/internal/exitcode star/train/checkpoint star/internal/compress star/coord star/coord/election star/coord/session star/internal/build star/job/combinations star/internal/defaults star/coord/pilot star/job/process star/job star/modes star/modes/auto star/modes/price star/modes/baseline star/cluster/placement star/ps star/ps/rule star/cluster/resource star/cluster/resource/actuate star/cluster/resource/host star/runlog star/runlog/parts star/straggler star/train star/train/data star/internal/kernel star/train/net star/train/optim star/transport star/transport/wire", "", "a server: knows neither settings nor workers"},
	{"star/server/outside", "star/cluster star/coord star/job star/job/process star/job/tenant star/server star/transport/wire", "", "connects a server with gossip and the resource service"},
	{"star/observe/compare", "star star/observe/explain star/runlog", "net os sync context math/rand math/rand/v2", "pure: what differs between two runs follows from their logs"},
	{"star/observe/doctor", "star star/cluster/resource/gpu star/internal/defaults star/internal/durable star/internal/exitcode star/internal/kernel star/internal/settings star/internal/vector star/transport star/transport/wire", "", "looks at hosts"},
	{"star/observe/explain", "star star/modes star/runlog star/straggler", "net os sync context math/rand math/rand/v2", "pure: the story of a run follows from its log"},
	{"star/observe/export", "star star/runlog", "net os sync context math/rand math/rand/v2", "pure: files for other tools follow from a log"},
	{"star/observe/fleet", "star star/observe/web star/runlog star/straggler", "os", "several jobs, from their run logs; knows no files"},
	{"star/observe/sink", "star star/internal/durable star/internal/exitcode star/internal/unpack star/job star/observe/export star/observe/web star/runlog star/runlog/parts", "", "sends a run log to tools of others"},
	{"star/observe/watch", "star star/coord/measure star/internal/exitcode star/modes star/modes/price star/cluster/resource/host star/runlog star/sim star/straggler star/train/optim star/transport", "", "jobs that do not run on STAR: their rows, the head pure, collector and link around it"},
	{"star/observe/web", "star star/modes star/runlog star/straggler", "os", "the page of a job, from its run log; knows no files"},
	{"star/observe/whatif", "star star/modes star/modes/auto star/modes/price star/runlog star/sim star/train/optim", "net os sync context math/rand math/rand/v2", "pure: what a recorded run was follows from its log"},
	{"star/job", "star/internal/exitcode star/train/checkpoint star/internal/build star/internal/defaults star/train/data", "net sync", "what the processes of a job have in common: values and errors"},
	{"star/job/combinations", "", "net os sync context time math/rand math/rand/v2", "pure: a table"},
	{"star/job/options", "star/train/checkpoint star/job/process star/internal/settings star/job", "", "what a process needs out of settings: programs use it, libraries know no settings"},
	{"star/job/process", "star/allreduce star/train/checkpoint star/internal/compress star/coord/engine star/coord/session star/job/combinations star/job star/modes star/modes/price star/modes/baseline star/ps/rule star/cluster/resource star/cluster/resource/actuate star/runlog/parts star/train star/internal/kernel star/train/optim star/transport star/transport/wire star/internal/flightrecorder star/internal/loopback", "", "what workers and servers do alike"},
	{"star/job/tenant", "star star/cluster star/coord star/internal/loopback star/job/process star/job star/modes star/modes/price star/cluster/resource star/cluster/resource/actuate star/cluster/resource/host star/transport star/transport/wire", "", "the gossip and the cluster of a job: a worker knows them by an interface of its own"},
	{"star/sim", "star star/coord/engine star/modes star/modes/auto star/modes/price star/modes/baseline star/pgns star/sim/trace star/ps star/ps/rule star/allreduce star/train/optim star/transport star/transport/wire", "net os sync context", "virtual time: no clock, no goroutine; of allreduce and ps the pure parts"},
	{"star/sim/trace", "star star/internal/unpack", "net sync", "files of recorded times"},
	{"star/sim/trace/ops", "star/internal/unpack", "net sync", "files of recorded operations, and what follows from them; only tools read them, not the daemons"},
	{"star/cluster", "star/internal/exitcode star/transport star/transport/wire star/cluster/resource star/internal/flightrecorder", "", "jobs that share hosts; knows neither models nor what jobs do inside"},
	{"star/cluster/inventory", "star/modes star/cluster/placement star/cluster/resource star/cluster/resource/host star/internal/suggest", "", "files of hosts and jobs"},
	{"star/cluster/placement", "star/blossom", "net os sync context math/rand math/rand/v2", "pure: where tasks go follows from hosts and demands"},
	{"star/cluster/resource", "star", "net os sync context math/rand math/rand/v2", "pure: who can afford what follows from what was told"},
	{"star/cluster/resource/actuate", "star/internal/durable", "", "limits a process; knows nothing of why"},
	{"star/cluster/resource/gpu", "star", "net", "looks at the GPU, from a process of its own"},
	{"star/cluster/resource/host", "star", "", "looks at the host; knows nothing of what follows from it"},
	{"star/coord", "star star/coord/advice star/coord/advisor star/coord/architecture star/coord/choice star/coord/config star/coord/copies star/coord/ending star/coord/engine star/coord/evaluate star/coord/journal star/coord/layout star/coord/lease star/coord/length star/coord/measure star/coord/membership star/coord/moves star/coord/outbox star/coord/said star/coord/session star/coord/takeover star/coord/tool star/coord/traffic star/coord/view star/internal/exitcode star/internal/flightrecorder star/internal/poison star/modes star/pgns star/ps/replica star/runlog star/transport star/transport/wire", "", "the control plane knows neither models nor shards"},
	{"star/coord/advice", "star/modes star/runlog", "net os sync context math/rand math/rand/v2", "pure: values"},
	{"star/coord/advisor", "star star/coord/advice star/runlog", "net os context math/rand math/rand/v2", "a goroutine and its queue: knows no job"},
	{"star/coord/architecture", "star star/coord/config star/coord/engine star/coord/said star/coord/session star/modes star/transport/wire", "net os sync context math/rand math/rand/v2", "decides what members must be like: servers or a ring"},
	{"star/coord/choice", "star/internal/outer star/modes", "net os sync context math/rand math/rand/v2", "pure: which mode a job has follows from what users set"},
	{"star/coord/config", "star star/coord/advice star/coord/engine star/coord/evaluate star/coord/layout star/coord/lease star/coord/membership star/coord/session star/internal/poison star/modes star/runlog star/transport/wire", "net os sync context math/rand math/rand/v2", "values and their checks: knows no member"},
	{"star/coord/copies", "star star/coord/engine star/ps/replica star/runlog star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: what becomes of copies follows from what servers say"},
	{"star/coord/election", "star/internal/exitcode star/transport star/transport/wire star/internal/flightrecorder star/internal/durable", "", "chooses the coordinator; knows nothing of what"},
	{"star/coord/ending", "star star/internal/exitcode", "net os sync context math/rand math/rand/v2", "pure: how a job ends follows from what members say"},
	{"star/coord/engine", "star star/modes star/pgns star/internal/poison star/ps/replica star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: the coordinator and the simulator do what it decides"},
	{"star/coord/engine/rehearsal", "star star/coord/engine star/modes star/transport/wire", "net os sync context time math/rand math/rand/v2", "pure: its caller says what happens next"},
	{"star/coord/evaluate", "star star/internal/dtype star/internal/exactsum star/pgns star/runlog star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: what becomes of evaluations, checkpoints and checks follows from what members report"},
	{"star/coord/journal", "star/coord/advice star/coord/advisor star/runlog", "net os context math/rand math/rand/v2", "writes the run log: knows no member"},
	{"star/coord/layout", "star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: which server has which shard"},
	{"star/coord/lease", "star/coord/session star/coord/takeover", "net os sync context math/rand math/rand/v2", "the right to coordinate, and the handover: knows no member"},
	{"star/coord/length", "star star/coord/engine star/coord/session star/internal/outer star/modes star/transport/wire", "net os sync context time math/rand math/rand/v2", "decides without I/O of its own how long a job is"},
	{"star/coord/measure", "star star/internal/poison star/runlog star/straggler", "net os sync context math/rand math/rand/v2", "pure: its caller says what the time is"},
	{"star/coord/membership", "star star/coord/engine star/coord/said star/coord/session star/internal/dtype star/internal/exitcode star/modes star/transport star/transport/wire", "os sync context math/rand math/rand/v2", "decides without I/O of its own which members take part in a job"},
	{"star/coord/moves", "star star/coord/engine star/runlog star/transport/wire", "os sync context math/rand math/rand/v2", "pure: a move follows from what servers say"},
	{"star/coord/outbox", "star/internal/exitcode star/transport star/transport/wire star/internal/flightrecorder", "", "bytes and connections: knows no member"},
	{"star/coord/pilot", "star star/coord/advice star/modes star/modes/auto star/modes/price star/modes/baseline star/pgns star/runlog star/straggler", "net os sync context math/rand math/rand/v2", "pure: a log replays to the same decisions"},
	{"star/coord/said", "star star/coord/engine star/transport star/transport/wire", "os sync context math/rand math/rand/v2", "reads and checks messages: its caller says what the job is like"},
	{"star/coord/session", "star star/internal/dtype star/internal/exitcode star/transport star/transport/wire star/internal/flightrecorder", "", "a member's side of its connection: knows no coordinator"},
	{"star/coord/takeover", "star star/coord/engine star/modes star/ps/replica star/runlog star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: how another coordinator goes on follows from what members report"},
	{"star/coord/tool", "star/transport star/transport/wire", "", "answers tools: knows no job"},
	{"star/coord/traffic", "star star/coord/engine star/modes star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: its caller says what the time is, and where workers are"},
	{"star/coord/view", "star star/coord/advisor star/coord/measure star/coord/moves star/runlog star/transport/wire", "net os sync context math/rand math/rand/v2", "makes the status without I/O of its own"},
	{"star/modes", "star star/internal/outer", "net os sync context math/rand math/rand/v2", "pure: the simulator drives the same barrier"},
	{"star/modes/auto", "star star/modes star/modes/price", "net os sync context math/rand math/rand/v2", "pure: a log replays to the same decisions"},
	{"star/modes/baseline", "star star/internal/outer star/modes star/ps/rule", "net os sync context math/rand math/rand/v2", "pure: a log replays to the same decisions"},
	{"star/modes/price", "star star/modes", "net os sync context math/rand math/rand/v2", "pure: a price follows from a forecast"},
	{"star/ps", "star star/internal/exitcode star/transport star/transport/wire star/internal/exactsum star/internal/compress star/internal/poison star/ps/rule star/ps/replica star/internal/kernel star/internal/flightrecorder", "os", "shards know neither models nor the coordinator"},
	{"star/ps/replica", "star", "net os sync context time math/rand math/rand/v2", "pure: a simulator can drive it"},
	{"star/ps/rule", "star star/internal/exactsum star/internal/kernel star/internal/outer", "net os context time math/rand math/rand/v2", "pure arithmetic: what is made of gradients"},
	{"star/allreduce", "star star/transport star/internal/compress star/internal/kernel star/internal/vector star/internal/flightrecorder star/internal/durable", "", "a library of its own: knows neither models nor the coordinator"},
	{"star/allreduce/asmgen", "", "net", "writes the assembly of the reductions; nothing imports it"},
	{"star/runlog", "star star/internal/exitcode star/internal/unpack", "net os sync context math/rand math/rand/v2", "pure: lines in, lines out"},
	{"star/runlog/parts", "star/runlog star/internal/unpack star/internal/durable", "", "files of a run log"},
	{"star/straggler", "star star/internal/exitcode star/internal/kernel", "net os sync context math/rand math/rand/v2", "pure: verdicts follow from records"},
	{"star/train", "star/internal/dtype", "net os sync", "what is trained knows nothing of how"},
	{"star/train/checkpoint", "star/internal/dtype star/internal/exitcode star/internal/flightrecorder star/internal/durable", "net", "files; a lock guards the list of those that are half written"},
	{"star/train/data", "star/train star/internal/unpack", "net", "data sets are read from files"},
	{"star/train/net", "star/train star/internal/kernel star/internal/vector", "net", "models know nothing of workers"},
	{"star/train/optim", "star/internal/kernel", "net os sync context", "pure arithmetic"},
	{"star/train/traintest", "star/train", "net os", "the conformance kit of Model"},
	{"star/transport", "star star/internal/exitcode star/internal/build star/transport/wire star/internal/flightrecorder", "", "bytes, not rules"},
	{"star/transport/transporttest", "star star/transport star/transport/wire", "", "the conformance kit of Network"},
	{"star/transport/wire", "star", "net os sync context math/rand math/rand/v2", "pure: messages and their bytes"},
	{"star/transport/wire/gen", "", "net", "writes what follows from the table of messages; nothing imports it"},
	{"star", "", "*", "the nouns import nothing but time"},
	{"star/internal/build", "", "net os context time math/rand math/rand/v2", "what a program knows of itself"},
	{"star/internal/compress", "star/internal/kernel", "net os sync time context math/rand math/rand/v2", "pure: bytes and vectors"},
	{"star/internal/defaults", "", "net os sync context", "values only"},
	{"star/internal/dtype", "", "net os sync time context math/rand math/rand/v2", "pure: numbers and their bytes"},
	{"star/internal/durable", "", "net sync time context math/rand math/rand/v2", "files that a crash leaves whole"},
	{"star/internal/exactsum", "", "net os sync context", "pure arithmetic"},
	{"star/internal/exitcode", "", "net os sync context time math/rand math/rand/v2", "pure: a table"},
	{"star/internal/flightrecorder", "", "net os context", "who waits, and nothing else"},
	{"star/internal/generated", "", "", "parts of pages that tests write; only tests import it"},
	{"star/internal/kernel", "", "net os context", "arithmetic"},
	{"star/internal/kernel/asmgen", "", "net", "writes the assembly of the kernels; nothing imports it"},
	{"star/internal/loopback", "", "os context time math/rand math/rand/v2", "which addresses are this host's own"},
	{"star/internal/outer", "", "net os sync time context math/rand math/rand/v2", "pure: a rule and its text"},
	{"star/internal/poison", "star/internal/kernel", "net os sync time context math/rand math/rand/v2", "pure arithmetic"},
	{"star/internal/ports", "", "", "addresses that are free"},
	{"star/internal/settings", "star/internal/exitcode star/internal/defaults star/internal/loopback star/internal/suggest", "", "settings know no room"},
	{"star/internal/suggest", "", "net os sync context time math/rand math/rand/v2", "pure: words"},
	{"star/internal/unpack", "", "net os sync context time math/rand math/rand/v2", "pure: bytes in, more bytes out"},
	{"star/internal/vector", "", "net context time math/rand math/rand/v2", "memory, whatever is in it"},
	{"star/pgns", "", "net os sync context time math/rand math/rand/v2", "pure arithmetic"},
	{"star/blossom", "", "net os sync context time math/rand math/rand/v2", "pure arithmetic: graphs, whatever their vertices stand for"},
	{"star/deploy", "", "", "files"},
}

// module is a package as go list shows it.
type module struct {
	ImportPath string
	Imports    []string
}

// packages are those of this module.
func packages(t *testing.T) (ps []module) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p module
		if err := dec.Decode(&p); err == io.EOF {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}

// ours says whether a package is one of this module.
func ours(imp string) bool { return imp == "star" || strings.HasPrefix(imp, "star/") }

// among says whether a package is one of a list, or below one.
func among(imp string, list []string) bool {
	return slices.ContainsFunc(list, func(n string) bool { return imp == n || path.Dir(imp) == n && n != "math" })
}

// mostArrows is how many pairs of top-level folders may be joined by an import (decision 25).
const mostArrows = 125

// TestImportsPointDown checks that an import between top-level folders leads to a lower line of the picture in
// docs/architecture.md, and that the picture and doc.go have all of them.
func TestImportsPointDown(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(page), "\n## Packages\n")
	_, picture, _ = strings.Cut(picture, "\n```\n")
	picture, _, _ = strings.Cut(picture, "\n```\n")
	floor := map[string]int{}
	for i, line := range strings.Split(picture, "\n") {
		for room := range strings.FieldsSeq(line) {
			floor[room] = i
		}
	}
	room := func(imp string) string {
		room, _, _ := strings.Cut(strings.TrimPrefix(imp, "star/"), "/")
		return room
	}
	there, arrows := map[string]bool{}, map[string]bool{}
	for _, p := range packages(t) {
		from := room(p.ImportPath)
		there[from] = true
		for _, imp := range p.Imports {
			to := room(imp)
			if !ours(imp) || from == to {
				continue
			}
			arrows[from+" "+to] = true
			if floor[to] <= floor[from] {
				t.Errorf("%s imports %s, but in docs/architecture.md %s is not below %s", p.ImportPath, imp, to, from)
			}
		}
	}
	concepts, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(concepts), "\n// # The folders\n")
	list, _, _ = strings.Cut(list, "\n// # ")
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(\w+) `).FindAllStringSubmatch(list, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	want := slices.Sorted(maps.Keys(there))
	if !slices.Equal(listed, want) {
		t.Errorf("doc.go lists the folders %q, want %q", listed, want)
	}
	if drawn := slices.Sorted(maps.Keys(floor)); !slices.Equal(drawn, want) {
		t.Errorf("docs/architecture.md draws the folders %q, want %q", drawn, want)
	}
	if len(arrows) > mostArrows {
		t.Errorf("%d pairs of folders are joined by an import, at most %d: move what they share into one of them, or below both", len(arrows), mostArrows)
	}
}

// TestLayering checks the arrows of docs/architecture.md.
func TestLayering(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		i := slices.IndexFunc(rooms, func(r struct{ room, needs, not, why string }) bool { return r.room == p.ImportPath })
		if i < 0 {
			t.Errorf("%s is not listed: add a line here and a row in docs/architecture.md", p.ImportPath)
			continue
		}
		seen++
		r := rooms[i]
		needs, not := strings.Fields(r.needs), strings.Fields(r.not)
		for _, imp := range p.Imports {
			switch {
			case ours(imp):
				if r.needs != "*" && !slices.Contains(needs, imp) {
					t.Errorf("%s must not import %s: %s", r.room, imp, r.why)
				}
			case r.not == "*" && imp != "time":
				t.Errorf("%s must not import %s: %s", r.room, imp, r.why)
			case among(imp, not):
				t.Errorf("%s must not import %s: %s", r.room, imp, r.why)
			}
		}
	}
	if seen < len(rooms)/2 {
		t.Fatalf("go list shows %d packages of %d", seen, len(rooms))
	}
}

// lends are packages that pure packages may import although they are not pure themselves, and what of them is not; *:
// whatever they import.
var lends = map[string]string{
	"star/internal/kernel": "sync sync/atomic time", // a pool of goroutines for large products; no result depends on them
	"star/ps/rule":         "sync sync/atomic",      // goroutines for long vectors; no result depends on them either
	"star/sim":             "*",                     // it uses the pure parts of allreduce and ps
}

// TestPure walks all imports of the pure packages: a package that imports them gets no clock, goroutine, lock, file or
// network through another package.
func TestPure(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range packages(t) {
		imports[p.ImportPath] = p.Imports
	}
	pure := 0
	for _, r := range rooms {
		if !strings.HasPrefix(r.why, "pure") {
			continue
		}
		pure++
		not := strings.Fields(r.not)
		way := map[string]string{r.room: r.room}
		for queue := []string{r.room}; len(queue) > 0; queue = queue[1:] {
			for _, imp := range imports[queue[0]] {
				switch {
				case lends[queue[0]] == "*":
				case ours(imp):
					if way[imp] == "" {
						way[imp] = way[queue[0]] + " → " + imp
						queue = append(queue, imp)
					}
				case imp != "time" && among(imp, not) && !slices.Contains(strings.Fields(lends[queue[0]]), imp):
					t.Errorf("%s imports %s by way of %s: %s", r.room, imp, way[queue[0]], r.why)
				}
			}
		}
	}
	if pure < 10 {
		t.Fatalf("%d pure packages", pure)
	}
}

// links are packages that few others may link, by whatever way: these, and why. A folder means all below it.
var links = []struct{ pkg, rooms, why string }{
	{"github.com/spf13/cobra", "cmd worker/launch internal/settings job/options worker/configure sched/schedsim observe/doctor sched/service", "a command line is a program's affair"},
	{"github.com/spf13/pflag", "cmd worker/launch internal/settings job/options worker/configure sched/schedsim observe/doctor sched/service", "a command line is a program's affair"},
	{"go.yaml.in/yaml/v3", "cmd worker/launch internal/settings job/options worker/configure sched/schedsim cluster/inventory sim bench observe/doctor observe/watch observe/whatif sched/service", "files of settings, hosts, scenarios and recorded operations, for those that read them"},
	{"github.com/hashicorp/memberlist", "cmd worker/launch cluster job/tenant worker/configure server/outside", "workers, servers and models take part in no gossip by themselves"},
	{"github.com/prometheus/client_golang/prometheus", "cmd", "programs have /metrics"},
	{"github.com/miekg/dns", "cmd worker/launch cluster job/tenant worker/configure server/outside", "memberlist links it"},
	{"golang.org/x/image/font/sfnt", "cmd bench observe/explain observe/compare", "pictures; compare reads stories, which explain can draw"},
	{pkg: "star/cmd/internal/chaos", rooms: "cmd/internal/chaos cmd/star-chaos cmd/tests", why: "the programs of users contain nothing that breaks jobs"},
}

// TestLinks walks all imports of every package: what it links of other modules, and that it reaches no package that it
// must not import.
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	below := func(room, folders string) (is bool) {
		for f := range strings.FieldsSeq(folders) {
			f, out := strings.CutPrefix(f, "-")
			if room == "star/"+f || strings.HasPrefix(room, "star/"+f+"/") {
				is = !out
			}
		}
		return is
	}
	linked := map[string]int{}
	for line := range strings.Lines(string(out)) {
		deps := strings.Fields(line)
		room, deps := deps[0], deps[1:]
		for _, l := range links {
			if !slices.Contains(deps, l.pkg) {
				continue
			}
			linked[l.pkg]++
			if !below(room, l.rooms) {
				t.Errorf("%s links %s: %s (go list -deps says by way of what)", room, l.pkg, l.why)
			}
		}
		for _, a := range apart {
			if below(room, a.room) {
				for _, d := range deps {
					if ours(d) && below(d, a.not) {
						t.Errorf("%s reaches %s: %s", room, d, a.why)
					}
				}
			}
		}
	}
	for _, l := range links {
		if linked[l.pkg] == 0 {
			t.Errorf("nothing links %s: the list is old", l.pkg)
		}
	}
}

// apart are packages that must not reach others by any way. One after a minus is excepted, although it lies below one
// that is listed.
var apart = []struct{ room, not, why string }{
	{"worker -worker/configure -worker/inject -worker/launch", "server cluster cmd worker/launch bench sim internal/settings job/options job/tenant worker/configure train/net coord -coord/engine -coord/session -cluster/resource", "a library: knows no settings, no server, no coordinator, no cluster and no model of ours"},
	{"server -server/outside", "worker cluster cmd bench sim internal/settings job/options job/tenant -cluster/placement -cluster/resource", "a library: knows no settings, no worker and no cluster"},
	{"worker/launch", "server cmd bench sim train/net -sim/trace", "a program with a model of its own links none of ours, and no server"},
	{"job train ps allreduce transport -job/options -job/process -job/tenant", "coord worker server cluster cmd bench sim job/process internal/settings", "parts know nothing of the whole"},
	{"coord -coord/pilot", "worker server ps allreduce cluster cmd bench sim job/process internal/settings train/net -ps/replica", "the control plane knows neither models nor shards"},
	{"sched cluster/placement -sched/schedsim -sched/service", "coord worker server cmd bench sim job/process internal/settings", "a policy knows no processes"},
	{"sim", "coord worker server cluster cmd bench job/process internal/settings -coord/engine", "virtual time has no processes"},
	{"runlog observe/web straggler pgns modes", "coord worker server cluster cmd bench job/process internal/settings", "what is known of a job follows from its log"},
}
