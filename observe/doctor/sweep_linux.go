package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// allowed are the processors on which this process may run.
func allowed() (cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// pin keeps this thread, which the caller has locked, on a processor.
func pin(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	unix.SchedSetaffinity(0, &set) // an error leaves it where the kernel wants it
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// openDirect opens a file past the page cache, where the file system can. direct reports whether it does.
func openDirect(path string, flags int) (f *os.File, direct bool, err error) {
	if f, err = os.OpenFile(path, flags|syscall.O_DIRECT, 0o600); err == nil {
		return f, true, nil
	}
	if errors.Is(err, syscall.EINVAL) {
		f, err = os.OpenFile(path, flags, 0o600)
	}
	return f, false, err
}

// uncache asks the kernel to forget a file's pages. It keeps those that are not written yet.
func uncache(f *os.File) { unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// spaceFor reports how many bytes an unprivileged process may add to a folder.
func spaceFor(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// kernelName identifies the running kernel. Containers and network namespaces of one machine have the same.
func kernelName() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// placeName distinguishes hosts that share a kernel and a name: by their network.
func placeName() string {
	s, _ := os.Readlink("/proc/self/ns/net")
	return s
}

// processor is the name of its model.
func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// maxKernelLog bounds what is read of the kernel's log, in records.
const maxKernelLog = 100_000

// kernelLog reads the records of /dev/kmsg, and the time since boot.
func kernelLog() (records []string, now time.Duration, err error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot read /dev/kmsg: %w; run as root to have the kernel's log checked", err)
	}
	defer unix.Close(fd)
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	b := make([]byte, 8192) // one record
	for len(records) < maxKernelLog {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EPIPE || err == unix.EINTR: // records were overwritten meanwhile
			continue
		case err == unix.EAGAIN || n <= 0:
			return records, time.Duration(t.Nano()), nil
		case err != nil:
			return records, time.Duration(t.Nano()), fmt.Errorf("cannot read /dev/kmsg: %w", err)
		}
		records = append(records, string(b[:n]))
	}
	return records, time.Duration(t.Nano()), nil
}

// clockLimit is the lowest share of its largest frequency to which a processor is limited, 0 where that is unknown,
// and how often processors were slowed by heat since boot.
func clockLimit(root string) (share float64, slowed int) {
	number := func(path string) float64 {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0
		}
		x, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
		return x
	}
	dirs, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/cpu/cpu[0-9]*"))
	for _, d := range dirs {
		most, now := number(filepath.Join(d, "cpufreq/cpuinfo_max_freq")), number(filepath.Join(d, "cpufreq/scaling_max_freq"))
		if most > 0 && now > 0 && (share == 0 || now/most < share) {
			share = now / most
		}
		slowed += int(number(filepath.Join(d, "thermal_throttle/core_throttle_count")))
	}
	return share, slowed
}
