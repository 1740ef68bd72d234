package star_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// rooms says which rooms of this module a room may import, and which packages it
// must not import at all. A room that is not listed is a mistake: give it a line,
// and docs/architecture.md a row.
var rooms = []struct {
	room  string
	needs string // rooms, space-separated; * stands for all
	not   string // other packages
	why   string
}{
	{"star", "", "*", "the nouns import nothing but time"},
	{"star/modes", "star", "net os sync context math/rand math/rand/v2", "pure: the simulator drives the same barrier"},
	{"star/modes/baseline", "star star/modes star/ps/rule", "net os sync context math/rand math/rand/v2", "pure: a log replays to the same decisions"},
	{"star/pgns", "", "net os sync context time math/rand math/rand/v2", "pure arithmetic"},
	{"star/internal/poison", "star/internal/kernel", "net os sync time context math/rand math/rand/v2", "pure arithmetic"},
	{"star/straggler", "star star/internal/exitcode star/internal/kernel", "net os sync context math/rand math/rand/v2", "pure: who is slow follows from records"},
	{"star/cluster/resource", "star", "net os sync context math/rand math/rand/v2", "pure: who can afford what follows from what was told"},
	{"star/blossom", "", "net os sync context time math/rand math/rand/v2", "pure arithmetic: graphs, whatever their vertices stand for"},
	{"star/cluster/resource/actuate", "", "", "limits a process; knows nothing of why"},
	{"star/cluster/resource/gpu", "star", "net", "looks at the GPU, from a process of its own"},
	{"star/cluster/resource/host", "star", "", "looks at the host; knows nothing of what follows from it"},
	{"star/internal/exactsum", "", "net os sync context", "pure arithmetic"},
	{"star/internal/dtype", "", "net os sync time context math/rand math/rand/v2", "pure: numbers and their bytes"},
	{"star/internal/compress", "star/internal/kernel", "net os sync time context math/rand math/rand/v2", "pure: bytes and vectors"},
	{"star/train", "star/internal/dtype", "net os sync", "what is trained knows nothing of how"},
	{"star/internal/kernel", "", "net os context", "arithmetic"},
	{"star/internal/kernel/asmgen", "", "net", "writes the assembly of the kernels; nothing imports it"},
	{"star/internal/unpack", "", "net os sync context time math/rand math/rand/v2", "pure: bytes in, more bytes out"},
	{"star/train/data", "star/train star/internal/unpack", "net", "data sets are read from files"},
	{"star/train/net", "star/train star/internal/kernel star/internal/vector", "net", "models know nothing of workers"},
	{"star/train/optim", "star/internal/kernel", "net os sync context", "pure arithmetic"},
	{"star/train/traintest", "star/train", "net os", "the conformance kit of Model"},
	{"star/worker/foreign", "star/internal/dtype star/internal/exitcode star/internal/build star/train star/train/data", "", "a model in another process; knows neither jobs nor Python"},
	{"star/internal/vector", "", "net context time math/rand math/rand/v2", "memory, whatever is in it"},
	{"star/internal/exitcode", "", "net os sync context time math/rand math/rand/v2", "pure: a table"},
	{"star/internal/flightrecorder", "", "net os context", "who waits, and nothing else"},
	{"star/transport", "star star/internal/exitcode star/internal/build star/transport/wire star/internal/flightrecorder", "", "bytes, not rules"},
	{"star/transport/wire", "star", "net os sync context math/rand math/rand/v2", "pure: messages and their bytes"},
	{"star/transport/wire/gen", "", "net", "writes what follows from the table of messages; nothing imports it"},
	{"star/transport/transporttest", "star star/transport", "", "the conformance kit of Network"},
	{"star/ps/rule", "star star/internal/exactsum star/internal/kernel", "net os context time math/rand math/rand/v2", "pure arithmetic: what is made of gradients"},
	{"star/ps", "star star/internal/exitcode star/transport star/internal/exactsum star/internal/compress star/internal/poison star/ps/rule star/ps/replica star/internal/kernel star/internal/flightrecorder", "os", "shards know neither models nor the coordinator"},
	{"star/ps/replica", "star", "net os sync context time math/rand math/rand/v2", "pure: a simulator can drive it"},
	{"star/coord/engine", "star star/modes star/pgns star/internal/poison star/ps/replica star/transport/wire", "net os sync context math/rand math/rand/v2", "pure: the coordinator and the simulator do what it decides"},
	{"star/coord/engine/rehearsal", "star star/coord/engine star/modes star/transport/wire", "net os sync context time math/rand math/rand/v2", "pure: whoever drives it says what happens next"},
	{"star/coord/failover", "star/coord/engine star/runlog star/transport/wire", "net os sync context time math/rand math/rand/v2", "pure: from where another coordinator goes on follows from what members report"},
	{"star/coord/advice", "star/modes star/runlog", "net os sync context math/rand math/rand/v2", "pure: values"},
	{"star/coord", "star star/internal/dtype star/internal/exitcode star/coord/advice star/coord/failover star/coord/engine star/modes star/transport star/internal/exactsum star/pgns star/internal/poison star/ps/replica star/runlog star/internal/flightrecorder", "", "the control plane knows neither models nor shards"},
	{"star/runlog/parts", "star/runlog star/internal/unpack", "", "files of a run log"},
	{"star/runlog", "star star/internal/exitcode star/internal/unpack", "net os sync context math/rand math/rand/v2", "pure: lines in, lines out"},
	{"star/observe/web", "star star/modes star/runlog star/straggler", "os", "the page of a job, from its run log; knows no files"},
	{"star/coord/election", "star/internal/exitcode star/transport star/internal/flightrecorder", "", "who coordinates; knows nothing of what"},
	{"star/cluster", "star/internal/exitcode star/transport star/cluster/resource star/internal/flightrecorder", "", "jobs that share hosts; knows neither models nor what jobs do inside"},
	{"star/allreduce", "star star/transport star/internal/compress star/internal/kernel star/internal/vector star/internal/flightrecorder", "", "a library of its own: knows neither models nor the coordinator"},
	{"star/allreduce/asmgen", "", "net", "writes the assembly of the reductions; nothing imports it"},
	{"star/train/checkpoint", "star/internal/dtype star/internal/exitcode star/internal/flightrecorder", "net", "files; a lock guards the list of those that are half written"},
	{"star/cluster/placement", "star/blossom", "net os sync context math/rand math/rand/v2", "pure: where tasks go follows from hosts and demands"},
	{"star/sched", "star/blossom", "net os sync context math/rand math/rand/v2", "pure: what is simulated is what runs"},
	{"star/sched/live", "star/sched", "net os sync time context math/rand math/rand/v2", "pure: what a service does follows from its events"},
	{"star/sched/workload", "star/sched", "net os sync context math/rand math/rand/v2", "pure: bytes in, jobs and clusters out"},
	{"star/sched/estimate", "star/sched/workload", "net os sync context math/rand math/rand/v2", "pure: what will be follows from what was measured"},
	{"star/sched/market", "star/sched/workload", "net os sync context math/rand math/rand/v2", "pure: what a study measured follows from its files"},
	{"star/sim", "star star/coord/engine star/modes star/modes/baseline star/pgns star/sim/trace star/ps star/ps/rule star/allreduce star/train/optim star/transport star/transport/wire", "net os sync context", "virtual time: no clock, no goroutine; of allreduce and ps the pure parts"},
	{"star/bench", "*", "", "wiring"},
	{"star/job", "star/internal/exitcode star/train/checkpoint star/internal/build star/internal/defaults star/train/data", "net sync", "what the processes of a job have in common: values and errors"},
	{"star/worker", "star star/internal/exitcode star/allreduce star/train/checkpoint star/internal/compress star/coord star/internal/exactsum star/job/process star/job star/pgns star/internal/poison star/ps star/ps/rule star/cluster/resource/actuate star/cluster/resource/gpu star/cluster/resource/host star/train star/train/data star/internal/kernel star/train/optim star/transport star/internal/flightrecorder", "", "a worker: knows neither settings nor models"},
	{"star/server", "star star/internal/exitcode star/train/checkpoint star/cluster star/internal/compress star/coord star/coord/election star/internal/build star/job/combinations star/internal/defaults star/cluster/inventory star/coord/pilot star/job/process star/job star/modes star/modes/baseline star/cluster/placement star/ps star/ps/rule star/cluster/resource star/cluster/resource/actuate star/cluster/resource/host star/runlog star/runlog/parts star/straggler star/train star/train/data star/internal/kernel star/train/net star/train/optim star/transport star/job/tenant", "", "a server: knows neither settings nor workers"},
	{"star/job/combinations", "", "net os sync context time math/rand math/rand/v2", "pure: a table"},
	{"star/job/process", "star/allreduce star/train/checkpoint star/internal/compress star/coord star/job/combinations star/job star/modes star/modes/baseline star/ps/rule star/cluster/resource star/cluster/resource/actuate star/runlog/parts star/train star/internal/kernel star/train/optim star/transport star/internal/flightrecorder star/internal/loopback", "", "what workers and servers do alike"},
	{"star/job/options", "star/train/checkpoint star/job/process star/internal/settings star/job", "", "what a process needs out of settings: programs use it, libraries know no settings"},
	{"star/job/tenant", "star star/cluster star/coord star/internal/loopback star/job/process star/job star/modes star/cluster/resource star/cluster/resource/actuate star/cluster/resource/host star/transport", "", "the gossip and the cluster of a job: a worker knows them by an interface of its own"},
	{"star/worker/configure", "star star/coord star/worker/inject star/job/process star/internal/settings star/job star/cluster/resource/actuate star/runlog star/sim/trace star/worker star/cluster star/job/options star/job/tenant star/transport", "", "settings, and a worker"},
	{"star/worker/launch", "star/train/checkpoint star/worker/configure star/job/process star/internal/settings star/job star/worker star/job/options", "", "programs of others as workers: links no model of ours"},
	{"star/sched/schedsim", "star/internal/settings star/job star/runlog star/sched star/sched/workload star/internal/unpack", "", "what commands that simulate schedulers read and write alike"},
	{"star/internal/settings", "star/internal/exitcode star/internal/defaults star/internal/loopback star/internal/suggest", "", "settings know no room"},
	{"star/internal/loopback", "", "os context time math/rand math/rand/v2", "which addresses are this host's own"},
	{"star/internal/suggest", "", "net os sync context time math/rand math/rand/v2", "pure: words"},
	{"star/internal/build", "", "net os context time math/rand math/rand/v2", "what a program knows of itself"},
	{"star/internal/defaults", "", "net os sync context", "values only"},
	{"star/sim/trace", "star star/internal/unpack", "net sync", "files of recorded times"},
	{"star/sim/trace/ops", "star/internal/unpack", "net sync", "files of recorded operations, and what follows from them; only tools read them, not the daemons"},
	{"star/worker/inject", "star star/sim/trace star/cluster/resource/actuate", "", "stragglers on purpose"},
	{"star/internal/generated", "", "", "parts of pages that tests write; only tests import it"},
	{"star/cluster/inventory", "star/modes star/cluster/placement star/cluster/resource star/internal/suggest", "", "files of hosts and jobs"},
	{"star/cmd/internal/chaos", "star star/coord/failover star/coord/engine star/coord/engine/rehearsal star/modes star/ps/replica star/runlog star/runlog/parts star/transport/wire", "", "breaks jobs on purpose"},
	{"star/observe/doctor", "star star/internal/exitcode star/transport star/internal/defaults star/internal/settings", "", "looks at hosts"},
	{"star/coord/pilot", "star star/coord/advice star/modes star/modes/baseline star/pgns star/runlog star/straggler", "net os sync context math/rand math/rand/v2", "pure: a log replays to the same decisions"},
	{"star/observe/whatif", "star star/modes star/runlog star/sim star/train/optim", "net os sync context math/rand math/rand/v2", "pure: what a recorded run was follows from its log"},
	{"star/observe/explain", "star star/modes star/runlog star/straggler", "net os sync context math/rand math/rand/v2", "pure: the story of a run follows from its log"},
	{"star/observe/export", "star star/runlog", "net os sync context math/rand math/rand/v2", "pure: files for other tools follow from a log"},
	{"star/observe/watch", "star star/internal/exitcode star/modes star/cluster/resource/host star/runlog star/sim star/straggler star/train/optim star/transport", "", "jobs that do not run on STAR: their rows, the head pure, collector and link around it"},
	{"star/internal/ports", "", "", "addresses that are free"},
	{"star/cmd/internal/node", "*", "", "wiring"},
	{"star/sched/service", "*", "", "wiring: the queue, and processes"},
	{"star/cmd/internal/daemon", "*", "", "wiring"},
	{"star/cmd/star", "*", "", "wiring"},
	{"star/cmd/star-ps", "*", "", "wiring"},
	{"star/cmd/star-worker", "*", "", "wiring"},
	{"star/deploy", "", "", "files"},
	{"star/cmd/tests/jobtest", "star star/train/checkpoint star/cmd/internal/chaos star/internal/ports star/coord star/job/process star/sched/service star/runlog star/sched/live", "", "starts jobs as users do; only tests import it"},
	{"star/cmd/tests/servers", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/rings", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/trees", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/faults", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/recovery", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/clusters", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/network", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/chaos", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/slurm", "", "", "tests of whole jobs, nothing else"},
	{"star/cmd/tests/kubernetes", "", "", "tests of whole jobs, nothing else"},
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

// TestLayering checks the arrows of docs/architecture.md.
func TestLayering(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		i := slices.IndexFunc(rooms, func(r struct{ room, needs, not, why string }) bool { return r.room == p.ImportPath })
		if i < 0 {
			t.Errorf("%s is no room of the plan: give it a line here and a row in docs/architecture.md", p.ImportPath)
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
		t.Fatalf("go list shows %d rooms of %d", seen, len(rooms))
	}
}

// lends are packages that pure rooms may import although they are not pure themselves, and what of them is not; *: whatever they import.
var lends = map[string]string{
	"star/internal/kernel": "sync sync/atomic time", // a pool of goroutines for large products; no result depends on them
	"star/ps/rule":         "sync",                  // goroutines for long vectors, of which no result depends either
	"star/sim":             "*",                     // it uses the pure parts of allreduce and ps
}

// TestPure walks all imports of the pure rooms: who imports them gets no clock, goroutine, lock, file or network by another room.
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
		t.Fatalf("%d pure rooms", pure)
	}
}

// links are packages of others that few rooms may link, by whatever way: rooms, and why. A folder stands for all below it.
var links = []struct{ pkg, rooms, why string }{
	{"github.com/spf13/cobra", "cmd launch internal/settings job/options worker/configure sched/schedsim", "a command line is a program's affair"},
	{"github.com/spf13/pflag", "cmd launch internal/settings job/options worker/configure sched/schedsim", "a command line is a program's affair"},
	{"go.yaml.in/yaml/v3", "cmd launch internal/settings job/options worker/configure sched/schedsim cluster/inventory server sim bench sim/trace/ops", "files of settings, hosts, scenarios and recorded operations, for those that read them"},
	{"github.com/hashicorp/memberlist", "cmd launch cluster job/tenant worker/configure server", "a worker and its models take part in no gossip by themselves"},
	{"github.com/prometheus/client_golang/prometheus", "cmd", "programs have /metrics"},
	{"github.com/miekg/dns", "cmd launch cluster job/tenant worker/configure server", "memberlist links it"},
	{"golang.org/x/image/font/sfnt", "cmd bench", "pictures"},
}

// TestLinks walks all imports of every room: what it links of others' packages, and that it reaches no room that it must not import.
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	below := func(room, folders string) bool {
		return slices.ContainsFunc(strings.Fields(folders), func(f string) bool { return room == "star/"+f || strings.HasPrefix(room, "star/"+f+"/") })
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

// apart are rooms that must not reach others by any way.
var apart = []struct{ room, not, why string }{
	{"worker", "server cluster cmd launch bench sim internal/settings job/options job/tenant worker/configure train/net", "a library: knows no settings, no server, no cluster and no model of ours"},
	{"server", "worker cmd launch bench sim internal/settings job/options worker/configure", "a library: knows no settings and no worker"},
	{"launch", "server cmd bench sim train/net", "a program with a model of its own links none of ours, and no server"},
	{"member train ps allreduce transport checkpoint", "coord worker server cluster cmd launch bench sim job/process internal/settings", "parts know nothing of the whole"},
	{"coord engine election", "worker server ps allreduce cluster cmd launch bench sim job/process internal/settings train/net", "the control plane knows neither models nor shards"},
	{"sched placement", "coord worker server cmd launch bench sim job/process internal/settings", "a policy knows no processes"},
	{"sim", "coord worker server cluster cmd launch bench job/process internal/settings", "virtual time has no processes"},
	{"runlog web straggler pgns modes", "coord worker server cluster cmd launch bench job/process internal/settings", "what is known of a job follows from its log"},
}
