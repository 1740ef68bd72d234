package host

import (
	"bytes"
	"path"
	"strconv"
	"strings"
	"time"
)

// jiffies are the times in /proc/stat's first line, summed over all processors, in ticks of any length.
type jiffies struct{ total, idle, iowait, steal float64 }

// parseStat reads the first line of /proc/stat. User and nice include the time of virtual machines.
func parseStat(b []byte) (j jiffies, ok bool) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[0]) != "cpu" {
		return j, false
	}
	for i, f := range fields[1:min(len(fields), 9)] {
		v, err := strconv.ParseUint(string(f), 10, 63)
		if err != nil {
			return jiffies{}, false
		}
		j.total += float64(v)
		switch i {
		case 3:
			j.idle = float64(v)
		case 4:
			j.iowait = float64(v)
		case 7:
			j.steal = float64(v)
		}
	}
	return j, true
}

// parseStopped reads the state in a process's stat, after the name, which may contain any characters.
func parseStopped(b []byte) bool {
	i := bytes.LastIndex(b, []byte(") "))
	return i >= 0 && i+2 < len(b) && (b[i+2] == 'T' || b[i+2] == 't')
}

// parsePressure reads the total of the line "some" of a pressure file.
func parsePressure(b []byte) (time.Duration, bool) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	if !bytes.HasPrefix(line, []byte("some ")) {
		return 0, false
	}
	return keyed(string(line), "total=", time.Microsecond)
}

// keyed reads the number after key.
func keyed(line, key string, unit time.Duration) (time.Duration, bool) {
	_, rest, ok := strings.Cut(line, key)
	if !ok {
		return 0, false
	}
	rest, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	v, err := strconv.ParseInt(rest, 10, 63)
	if err != nil || v < 0 || v > int64(1<<62)/int64(unit) {
		return 0, false
	}
	return time.Duration(v) * unit, true
}

// parseSchedstat reads the second number of a schedstat: time on the run queue.
func parseSchedstat(b []byte) (time.Duration, bool) {
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0, false
	}
	v, err := strconv.ParseInt(string(fields[1]), 10, 63)
	return time.Duration(v), err == nil && v >= 0
}

// group is a control group's path below the root of its hierarchy.
type group struct {
	v2   bool
	dirs []string // where its hierarchy may be mounted, below /sys/fs/cgroup
	path string
}

// parseCgroup finds the group that limits the processor in /proc/self/cgroup.
func parseCgroup(b []byte) (g group, ok bool) {
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		p := path.Clean("/" + parts[2])
		if parts[0] == "0" && parts[1] == "" && !ok {
			g, ok = group{v2: true, dirs: []string{"", "unified"}, path: p}, true
		}
		for _, c := range strings.Split(parts[1], ",") {
			if c == "cpu" { // version 1 has the controller, so version 2 does not
				return group{dirs: []string{parts[1], "cpu", "cpu,cpuacct", "cpuacct,cpu"}, path: p}, true
			}
		}
	}
	return g, ok
}

// parseThrottled reads from cpu.stat how long a group was throttled.
func parseThrottled(b []byte) (time.Duration, bool) {
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "throttled_usec "):
			return keyed(line, "throttled_usec ", time.Microsecond)
		case strings.HasPrefix(line, "throttled_time "):
			return keyed(line, "throttled_time ", time.Nanosecond)
		}
	}
	return 0, false
}

// parseMax reads the quota of cpu.max, in processors; false: no quota.
func parseMax(b []byte) (float64, bool) {
	fields := strings.Fields(string(b))
	if len(fields) != 2 {
		return 0, false
	}
	return quota(fields[0], fields[1])
}

func quota(q, period string) (float64, bool) {
	a, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
	if err != nil || a <= 0 { // "max", -1
		return 0, false
	}
	p, err := strconv.ParseFloat(strings.TrimSpace(period), 64)
	if err != nil || !(p > 0) {
		return 0, false
	}
	return a / p, true
}
