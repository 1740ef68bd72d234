package doctor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"star/cluster/resource/gpu"
	"star/internal/generated"
)

func TestOutliers(t *testing.T) {
	nan := math.NaN()
	up, down := &measure{factor: 1.5}, &measure{lower: true, factor: 1.5, least: 10}
	for _, c := range []struct {
		name   string
		m      *measure
		rounds [][]float64
		class  string // a letter for each host
		want   string // host value others worse
	}{
		{"equal", up, [][]float64{{10, 10, 10, 10}}, "aaaa", ""},
		{"one is slow", up, [][]float64{{10, 5, 10, 10}}, "aaaa", "1 5 10 2.0"},
		{"not by enough", up, [][]float64{{10, 7, 10, 10}}, "aaaa", ""},
		{"one is fast", up, [][]float64{{10, 50, 10, 10}}, "aaaa", ""},
		{"smaller is better", down, [][]float64{{100, 200, 100}}, "aaa", "1 200 100 2.0"},
		{"by less than counts", down, [][]float64{{4, 8, 4}}, "aaa", ""},
		{"two of four are slow", up, [][]float64{{10, 5, 10, 5}}, "aaaa", "1 5 10 2.0; 3 5 10 2.0"},
		{"the others differ as much among themselves", up, [][]float64{{10, 4, 16, 6, 25}}, "aaaaa", ""},
		{"two hosts: by the ratio", up, [][]float64{{10, 6}}, "aa", "1 6 10 1.7"},
		{"two hosts, not by enough", up, [][]float64{{10, 8}}, "aa", ""},
		{"one host", up, [][]float64{{10}}, "a", ""},
		{"no hosts", up, nil, "", ""},
		{"other processors are no comparison", up, [][]float64{{10, 5, 10}}, "aba", ""},
		{"each class by itself", up, [][]float64{{10, 5, 10, 2, 10, 5}}, "ababab", "3 2 5 2.5"},
		{"a load that comes and goes hits all", up, [][]float64{{10, 10, 10}, {2, 2, 2}, {10, 10, 10}, {4, 4, 4}}, "aaa", ""},
		{"one bad round of four", up, [][]float64{{10, 2, 10}, {10, 10, 10}, {10, 10, 10}, {10, 10, 10}}, "aaa", ""},
		{"slow below a load", up, [][]float64{{10, 5, 10}, {2, 1, 2}, {10, 5, 10}}, "aaa", "1 5 10 2.0"},
		{"not measured", up, [][]float64{{10, nan, 10}, {10, nan, 10}}, "aaa", ""},
		{"measured sometimes", up, [][]float64{{10, nan, 10}, {10, 5, 10}}, "aaa", "1 5 10 2.0"},
		{"nothing usable", up, [][]float64{{0, -1, math.Inf(1)}}, "aaa", ""},
	} {
		var got []string
		for _, o := range c.m.outliers(c.rounds, strings.Split(c.class, "")) {
			got = append(got, fmt.Sprintf("%d %g %g %.1f", o.host, o.value, o.others, o.worse))
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

func TestSinceLast(t *testing.T) {
	nan := math.NaN()
	m := &measure{factor: 2}
	for _, c := range []struct {
		name      string
		now, last []float64
		want      string
		common    float64
	}{
		{"as before", []float64{10, 10, 10}, []float64{10, 10, 10}, "", 1},
		{"one is slower", []float64{10, 3, 10}, []float64{10, 10, 10}, "1 3 10 3.3", 1},
		{"not by enough: 2 × 1.25", []float64{10, 4.1, 10}, []float64{10, 10, 10}, "", 1},
		{"alone", []float64{3}, []float64{10}, "0 3 10 3.3", 1},
		{"all are slower", []float64{3, 3, 3}, []float64{10, 10, 10}, "", 10. / 3},
		{"all are slower, one by more", []float64{5, 1, 5}, []float64{10, 10, 10}, "1 1 10 10.0", 2},
		{"all are faster, one is as before", []float64{30, 10, 30}, []float64{10, 10, 10}, "", 1. / 3},
		{"the first time", []float64{1, 1, 1}, []float64{nan, nan, nan}, "", 1},
	} {
		found, common := m.sinceLast(c.now, c.last)
		var got []string
		for _, o := range found {
			got = append(got, fmt.Sprintf("%d %g %g %.1f", o.host, o.value, o.others, o.worse))
		}
		if s := strings.Join(got, "; "); s != c.want || math.Abs(common-c.common) > 1e-9 {
			t.Errorf("%s: %q %g, want %q %g", c.name, s, common, c.want, c.common)
		}
	}
}

// pairsOf are links of all pairs with what f says of each direction.
func pairsOf(n int, f func(from, to int) float64) map[[2]int]link {
	links := map[[2]int]link{}
	for a := range n {
		for b := a + 1; b < n; b++ {
			links[[2]int{a, b}] = link{f(a, b), f(b, a), 1e-4}
		}
	}
	return links
}

func TestLinks(t *testing.T) {
	m := measureOf("out_Bps")
	for _, c := range []struct {
		name string
		n    int
		rate func(from, to int) float64
		out  string // hosts that send slowly
		in   string
		path string // directions of pairs that are slow by themselves
	}{
		{"all equal", 4, func(a, b int) float64 { return 100 }, "[]", "[]", "[]"},
		{"one sends slowly", 4, func(a, b int) float64 { return map[bool]float64{true: 1, false: 100}[a == 2] }, "[2]", "[]", "[]"},
		{"one receives slowly", 4, func(a, b int) float64 { return map[bool]float64{true: 1, false: 100}[b == 2] }, "[]", "[2]", "[]"},
		{"one does both, of three", 3, func(a, b int) float64 { return map[bool]float64{true: 1, false: 100}[a == 1 || b == 1] }, "[1]", "[1]", "[]"},
		{"one way between two", 4, func(a, b int) float64 { return map[bool]float64{true: 20, false: 100}[a == 3 && b == 1] }, "[]", "[]", "[3-1]"},
		{"half of it is no fault of a way", 4, func(a, b int) float64 { return map[bool]float64{true: 50, false: 100}[a == 3 && b == 1] }, "[]", "[]", "[]"},
	} {
		links := pairsOf(c.n, c.rate)
		out, in, _ := linkRates(c.n, links)
		hosts := func(row []float64) (hs []int) {
			for _, o := range m.outliers([][]float64{row}, make([]string, c.n)) {
				hs = append(hs, o.host)
			}
			return hs
		}
		ill := map[int]bool{}
		for _, h := range append(hosts(out), hosts(in)...) {
			ill[h] = true
		}
		var paths []string
		for _, p := range slowPaths(links, ill) {
			paths = append(paths, fmt.Sprintf("%d-%d", p.from, p.to))
		}
		if got := fmt.Sprint(hosts(out), hosts(in), paths); got != fmt.Sprint(c.out, " ", c.in, " ", c.path) {
			t.Errorf("%s: %s, want %s %s %s", c.name, got, c.out, c.in, c.path)
		}
	}
	two := map[[2]int]link{{0, 1}: {out: 100, in: 20, rtt: 1}}
	if p := slowPaths(two, nil); len(p) != 1 || p[0].from != 1 || p[0].others != 100 {
		t.Errorf("of two hosts the slow direction is from 1 to 0, not %+v", p)
	}
}

// All pairs meet once, and a host is in one pair of a round at most.
func TestTournament(t *testing.T) {
	for n := range 20 {
		met := map[[2]int]int{}
		rounds := tournament(n, 100)
		if want := max(0, n-1+n%2); n > 1 && len(rounds) != want {
			t.Errorf("%d hosts: %d rounds, want %d", n, len(rounds), want)
		}
		for _, r := range rounds {
			busy := map[int]bool{}
			for _, p := range r {
				if met[p]++; p[0] >= p[1] || p[1] >= n || busy[p[0]] || busy[p[1]] {
					t.Errorf("%d hosts: %v in %v", n, p, r)
				}
				busy[p[0]], busy[p[1]] = true, true
			}
		}
		for p, times := range met {
			if times != 1 {
				t.Errorf("%d hosts: %v meet %d times", n, p, times)
			}
		}
		if len(met) != n*(n-1)/2 {
			t.Errorf("%d hosts: %d pairs", n, len(met))
		}
	}
	some := tournament(512, 9)
	partners := map[int]map[int]bool{}
	for _, r := range some {
		for _, p := range r {
			for i := range p {
				if partners[p[i]] == nil {
					partners[p[i]] = map[int]bool{}
				}
				partners[p[i]][p[1-i]] = true
			}
		}
	}
	for h := range 512 {
		if len(some) != 9 || len(partners[h]) != 9 {
			t.Fatalf("host %d of 512 meets %d others in %d rounds", h, len(partners[h]), len(some))
		}
	}
}

func TestInTurn(t *testing.T) {
	kernels := []string{"x", "x", "y", "x", "y", "z"}
	turns := inTurn([]int{0, 1, 2, 3, 4, 5}, func(i int) []string { return kernels[i : i+1] })
	if got := fmt.Sprint(turns); got != "[[0 2 5] [1 4] [3]]" {
		t.Error(got)
	}
}

func TestKernelFaults(t *testing.T) {
	now := 48 * time.Hour
	at := func(age time.Duration, text string) string {
		return fmt.Sprintf("3,7,%d,-;%s", (now - age).Microseconds(), text)
	}
	for _, c := range []struct {
		line string
		want string // status and part of the detail; empty: nothing
	}{
		{at(time.Hour, "NVRM: Xid (PCI:0000:3b:00): 79, pid=99, GPU has fallen off the bus."), "fail GPU fault, Xid 79, 1 line"},
		{at(time.Minute, "NVRM: Xid (PCI:0000:3b:00): 31, pid=99, Ch 00000010"), "warn GPU fault, Xid 31"},
		{at(2*time.Hour, "NVRM: Xid (PCI:0000:3b:00): 31, pid=99, Ch 00000010"), ""},
		{at(30*time.Hour, "NVRM: Xid (PCI:0000:3b:00): 79, pid=99"), ""},
		{at(time.Hour, "mce: [Hardware Error]: Machine check events logged"), "fail memory error"},
		{at(time.Minute, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0"), "warn corrected memory error"},
		{at(time.Hour, "blk_update_request: I/O error, dev sda, sector 2048"), "fail disk error"},
		{at(time.Hour, "nvme nvme0: I/O 22 QID 3 timeout, aborting"), "fail disk error"},
		{at(time.Hour, "EXT4-fs (vda): mounted filesystem with ordered data mode"), ""},
		{at(time.Hour, "EXT4-fs error (device vda): ext4_lookup:1855"), "fail disk error"},
		{at(time.Minute, "mlx5_core 0000:17:00.0 ens1f0: Link down"), "warn link down"},
		{at(time.Minute, "ixgbe 0000:01:00.0 eth0: NIC Link is Down"), "warn link down"},
		{at(time.Minute, "CPU3: Core temperature above threshold, cpu clock throttled (total events = 9)"), "warn too hot"},
		{at(time.Minute, "INFO: task kworker/1:0:19 blocked for more than 120 seconds."), "warn blocked task"},
		{at(time.Minute, "watchdog: BUG: soft lockup - CPU#1 stuck for 23s!"), "fail lockup"},
		{at(time.Minute, "Out of memory: Killed process 17 (python)"), "warn killed for memory"},
		{at(time.Minute, "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer"), "warn corrected PCIe error"},
		{at(time.Minute, "systemd[1]: Started disk error, dev of nothing"), ""},
		{"nonsense", ""},
		{"3,7;I/O error, dev sda", ""},
		{"3,7,x,-;I/O error, dev sda", ""},
	} {
		found := kernelFaults([]string{c.line}, now)
		got := ""
		for _, f := range found {
			if got = string(f.Status) + " " + f.Detail; f.Fix == "" || f.Value != 1 {
				t.Errorf("%s: %+v", c.line, f)
			}
		}
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q…", c.line, got, c.want)
		}
	}
	both := kernelFaults([]string{at(time.Hour, "I/O error, dev sda"), at(time.Minute, "I/O error, dev sdb")}, now)
	if len(both) != 1 || both[0].Value != 2 || !strings.Contains(both[0].Detail, "2 lines in the kernel's log, the last one 1m0s ago: I/O error, dev sdb") {
		t.Errorf("%+v", both)
	}
}

func TestClocks(t *testing.T) {
	nan := math.NaN()
	well := clockOf{0.001, 1e-4, 0, 1e-6}
	for _, c := range []struct {
		name string
		odd  clockOf
		want string
	}{
		{"well", well, ""},
		{"late", clockOf{-0.5, 1e-4, 0, 1e-6}, "warn 501ms behind from the middle of all hosts, give or take 100µs: logs"},
		{"late, but no clock can tell", clockOf{-0.5, 0.6, 0, 1}, ""},
		{"hours ahead", clockOf{7200, 1e-4, 0, 1e-6}, "fail"},
		{"drifts", clockOf{0, 1e-4, 900e-6, 50e-6}, "warn it drifts by 900 ppm from the others, give or take 50"},
		{"drifts, but not surely", clockOf{0, 1e-4, 900e-6, 500e-6}, ""},
		{"not measured", clockOf{nan, 0, nan, 0}, ""},
	} {
		got := ""
		for _, f := range judgeClocks([]clockOf{well, c.odd, well}, []string{"a", "b", "c"}) {
			got += string(f.Status) + " " + f.Detail
			if f.Host != "b" || f.Fix == "" {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestQuotas(t *testing.T) {
	for _, c := range []struct {
		quotas []float64 // of hosts with 8 cores
		want   string
	}{
		{[]float64{0, 0, 0}, ""},
		{[]float64{4, 4, 4}, ""},
		{[]float64{0, 4.8, 0}, "fail b its control group may use 4.8 of 8 cores, others 8"},
		{[]float64{0, 7, 0}, "warn b its control group may use 7 of 8 cores, others 8"},
		{[]float64{16, 16, 12}, ""}, // above the cores: no limit
		{[]float64{2}, ""},
	} {
		var hosts []*swept
		class := make([]string, len(c.quotas))
		for i, q := range c.quotas {
			hosts = append(hosts, &swept{name: string(rune('a' + i)), about: &about{Cores: 8, Quota: q}})
		}
		got := ""
		for _, f := range judgeQuotas(hosts, class) {
			got += string(f.Status) + " " + f.Host + " " + f.Detail
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.quotas, got, c.want)
		}
	}
}

func TestGPUs(t *testing.T) {
	well := gpu.Health{Name: "H100", Width: 16, WidthMost: 16, Generation: 5, GenMost: 5, NVLinks: 18}
	with := func(f func(*gpu.Health)) gpu.Health { g := well; f(&g); return g }
	for _, c := range []struct {
		odd  []gpu.Health // of host b; others have one that is well
		want string
	}{
		{[]gpu.Health{well}, ""},
		{nil, "fail GPUs 0 GPUs, others 1"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Lost = "GPU is lost" })}, "fail GPU 0 the driver cannot read it: GPU is lost"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Uncorrected = 3 })}, "fail GPU 0 3 uncorrected ECC errors since the driver was loaded"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.RepairPending = true })}, "fail GPU 0 a fault of its memory waits for a reset to be repaired"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.RepairPending, g.RepairFailed = true, true })}, "fail GPU 0 its memory has no spare rows left"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Reasons = 0x48 })}, "fail GPU 0 its clock is lowered: hardware slowdown, much too hot"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Reasons = 0x20 })}, "warn GPU 0 its clock is lowered: too hot"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Reasons = 0x5 })}, ""}, // idle, and a power cap
		{[]gpu.Health{with(func(g *gpu.Health) { g.Width = 8 })}, "fail GPU 0 8 PCIe lanes, others 16"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Generation = 1 })}, ""}, // idle
		{[]gpu.Health{with(func(g *gpu.Health) { g.GenMost = 4 })}, "fail GPU 0 its slot has PCIe generation 4, others 5"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.NVLinks, g.NVLinksDown = 17, 1 })}, "fail GPU 0 17 NVLinks are up, others 18"},
		{[]gpu.Health{with(func(g *gpu.Health) { g.Recoveries = 2 })}, "warn GPU 0 its NVLinks were lost and came back 2 times"},
		{[]gpu.Health{{Name: "T4", Uncorrected: -1, Width: 8, WidthMost: 16, GenMost: 3, NVLinks: -1, Recoveries: -1}}, "warn GPU 0 8 of 16 PCIe lanes; some GPUs use fewer while they are idle"},
	} {
		var hosts []*swept
		for _, n := range []string{"a", "b", "c"} {
			h := &swept{name: n, about: &about{}, gpus: healthReply{GPUs: []gpu.Health{well}}}
			if n == "b" {
				h.gpus.GPUs = c.odd
			}
			hosts = append(hosts, h)
		}
		var got []string
		for _, f := range judgeGPUs(hosts) {
			got = append(got, fmt.Sprintf("%s %s %s", f.Status, f.Check, f.Detail))
			if f.Host != "b" || f.Fix == "" {
				t.Errorf("%+v", f)
			}
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%+v: %q, want %q", c.odd, s, c.want)
		}
	}
}

func TestSweepReport(t *testing.T) {
	r := &SweepReport{Seconds: 3.21, Hosts: []SweepHost{
		{Name: "a", Cores: 8, Values: map[string]float64{"compute_flops": 2e11, "rtt_s": 1e-4}, Notes: []string{"no kernel log"}},
		{Name: "bb", Cores: 8, Values: map[string]float64{"compute_flops": 1e11}, Notes: []string{"no kernel log"}},
	}}
	r.add(Finding{Host: "a", Check: "clock", Status: Warn, Detail: "late", Fix: "chrony"})
	r.add(Finding{Host: "bb", Check: "compute", Status: Fail, Detail: "half", Fix: "top"})
	r.close()
	if r.Status != Fail || r.Hosts[0].Status != Warn || r.Hosts[1].Status != Fail || !slices.Equal(r.Sick(), []string{"bb"}) || r.Failed("a") {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	const want = `
fail  bb  compute  half
                   → top
warn  a   clock    late
                   → chrony
note  a, bb: no kernel log
2 hosts in 3.2 s, 1 outlier: bb
`
	head, rest, _ := strings.Cut(b.String(), "\n\n")
	if "\n"+rest != want {
		t.Errorf("%s", rest)
	}
	lines := strings.Split(head, "\n")
	for i, want := range []string{"host cores compute", "a warn 8 200 GFLOP/s - -", "bb fail 8 100 GFLOP/s -"} {
		if i >= len(lines) || !strings.HasPrefix(strings.Join(strings.Fields(lines[i]), " "), want) {
			t.Errorf("line %d of\n%s\nwant %s…", i, head, want)
		}
	}
	if p := r.Of("a"); len(p.Hosts) != 1 || len(p.Findings) != 1 || p.Status != Warn {
		t.Errorf("%+v", p)
	}
}

func TestScaled(t *testing.T) {
	for x, want := range map[float64]string{0: "0.00 B/s", 0.5: "0.50 B/s", 12.34: "12.3 B/s", 999: "999 B/s", 999.7: "1.00 kB/s", 2.5e6: "2.50 MB/s", 67.8e9: "67.8 GB/s", 1e18: "1000 PB/s"} {
		if got := perSecond(x); got != want {
			t.Errorf("%g: %s, want %s", x, got, want)
		}
	}
	for x, want := range map[float64]string{1.333: "1.3x", 9.96: "10.0x", 2999: "2999x"} {
		if got := times(x); got != want {
			t.Errorf("%g: %s, want %s", x, got, want)
		}
	}
}

// The page has the thresholds.
func TestSweepPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| number | key in JSON | outlier: worse than the others' by | than at the last time by |\n|---|---|---|---|\n")
	for _, m := range measures {
		also := ""
		if m.least > 0 {
			also = ", and " + m.show(m.least)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %.3g%s | %.3g%s |\n", m.name, m.key, m.factor, also, m.factor*past, also)
	}
	generated.Section(t, "../../docs/sweep.md", "numbers", "go test ./observe/doctor -run TestSweepPage -write", b.String())
}
