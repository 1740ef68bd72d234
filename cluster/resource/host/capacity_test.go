package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
	"eth1\t00000000\t0101A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\neth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\neth2\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"

// What a host has, and what of it the control group may use.
func TestCapacity(t *testing.T) {
	for _, c := range []struct {
		name, link string
		files      map[string]string
		want       Capacity
		note       string
	}{
		{"a whole host", "", map[string]string{"proc/meminfo": "MemFree: 1 kB\nMemTotal:  1024 kB\n", "proc/net/route": routes, "sys/class/net/eth0/speed": "10000\n", "sys/class/net/eth1/speed": "1\n"},
			Capacity{CPU: 8, Memory: 1 << 20, Net: 1.25e9, Interface: "eth0"}, ""},
		{"another link", "eth1", map[string]string{"proc/meminfo": "MemTotal: 1024 kB", "proc/net/route": routes, "sys/class/net/eth1/speed": "1000"},
			Capacity{CPU: 8, Memory: 1 << 20, Net: 125e6, Interface: "eth1"}, ""},
		{"groups, v2", "", map[string]string{"proc/meminfo": "MemTotal: 1024 kB", "proc/net/route": routes, "sys/class/net/eth0/speed": "8", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "250000 100000", "sys/fs/cgroup/a/b/memory.max": "4096", "sys/fs/cgroup/a/memory.max": "8192"},
			Capacity{CPU: 2.5, Memory: 4096, Net: 1e6, Interface: "eth0"}, ""},
		{"groups, v1", "", map[string]string{"proc/meminfo": "MemTotal: 1024 kB", "proc/net/route": routes, "sys/class/net/eth0/speed": "8", "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/x\n",
			"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712"},
			Capacity{CPU: 0.5, Memory: 1 << 20, Net: 1e6, Interface: "eth0"}, ""},
		{"a limit above what there is", "", map[string]string{"proc/meminfo": "MemTotal: 1 kB", "proc/net/route": routes, "sys/class/net/eth0/speed": "8", "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/cpu.max": "9900000 100000", "sys/fs/cgroup/memory.max": "8192"}, Capacity{CPU: 8, Memory: 1024, Net: 1e6, Interface: "eth0"}, ""},
		{"a link without a speed", "", map[string]string{"proc/meminfo": "MemTotal: 1 kB", "proc/net/route": routes, "sys/class/net/eth0/speed": "-1"}, Capacity{CPU: 8, Memory: 1024}, "driver of eth0"},
		{"no route", "", map[string]string{"proc/meminfo": "MemTotal: 1 kB"}, Capacity{CPU: 8, Memory: 1024}, "no default route"},
		{"another system", "", nil, Capacity{CPU: 8}, "how much memory"},
		{"a path", "../../..", map[string]string{"proc/meminfo": "MemTotal: 1 kB", "speed": "8"}, Capacity{CPU: 8, Memory: 1024}, "does not tell"},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := capacity(root, c.link, 8)
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) || (c.note == "") != (notes == "") {
			t.Errorf("%s: notes %q, want %q", c.name, notes, c.note)
		}
		got.Notes = nil
		if !cmp.Equal(got, c.want) {
			t.Errorf("%s:\n%s", c.name, cmp.Diff(c.want, got))
		}
	}
}
