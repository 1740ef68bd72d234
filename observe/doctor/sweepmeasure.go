package doctor

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/mem"

	"star/internal/kernel"
	"star/internal/vector"
)

const (
	side      = 192       // of the matrices: three of them are in the second cache
	copied    = 32 << 20  // bytes of each of a thread's two vectors, at most
	leastCopy = 1 << 20   // below that the caches are measured
	diskBlock = 1 << 20   // bytes of one read or write
	diskFile  = 64 << 20  // bytes of the file, at most
	smallFile = 16 << 10  // bytes of each small file: a compressed picture
	smalls    = 64        // small files
	diskSpare = 256 << 20 // bytes that stay free on the disk
)

// tried is what a host found out in one window.
type tried map[string]float64

// threads runs f on a thread of its own for each processor, first to warm up, then until the window is over, and
// returns the work per second of wall time of all, and the work per second of processor time of each.
func threads(warm, window time.Duration, f func(thread int) (work float64)) (wall float64, each []float64, took, used time.Duration) {
	cpus := allowed()
	if before := runtime.GOMAXPROCS(0); before <= len(cpus) { // Go lowers it to the quota, which is to be seen here
		runtime.GOMAXPROCS(len(cpus) + 1)
		defer runtime.GOMAXPROCS(before)
	}
	each = make([]float64, len(cpus))
	total, times, took1 := make([]float64, len(cpus)), make([]time.Duration, len(cpus)), make([]time.Duration, len(cpus))
	start, ready := make(chan struct{}), sync.WaitGroup{}
	var all sync.WaitGroup
	ready.Add(len(cpus))
	for i, c := range cpus {
		all.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread, which is pinned, ends with the goroutine
			pin(c)
			for begin := time.Now(); ; {
				if f(i); time.Since(begin) >= warm {
					break
				}
			}
			ready.Done()
			<-start
			begin, at := time.Now(), threadTime()
			for took1[i] < window {
				total[i] += f(i)
				took1[i] = time.Since(begin)
			}
			times[i] = threadTime() - at
		})
	}
	ready.Wait()
	close(start)
	all.Wait()
	for i := range cpus {
		wall += total[i] / took1[i].Seconds()
		took, used = took+took1[i], used+times[i]
		if each[i] = total[i] / took1[i].Seconds(); times[i] > 0 {
			each[i] = total[i] / times[i].Seconds()
		}
	}
	return wall, each, took, used
}

// computes multiplies matrices on all processors at once.
func computes(window time.Duration) tried {
	type matrices struct{ a, b, c []float32 }
	ms := make([]matrices, len(allowed()))
	for i := range ms {
		v := make([]float32, 3*side*side)
		for j := range v {
			v[j] = float32(j%7) / 8
		}
		ms[i] = matrices{v[:side*side], v[side*side : 2*side*side], v[2*side*side:]}
	}
	throttled, steal := throttledTime("/"), stolen()
	_, slowed := clockLimit("/")
	// A quota is one for each period of 100 ms. After half a window it is used up, and a window of two periods has
	// its share.
	wall, each, took, used := threads(window/2, window, func(i int) float64 {
		m := &ms[i]
		kernel.Gemm(false, false, side, side, side, 1, m.a, side, m.b, side, 0, m.c, side)
		return 2 * side * side * side
	})
	least := 0
	for i, x := range each {
		if x < each[least] {
			least = i
		}
	}
	out := tried{"compute_flops": wall}
	if len(each) > 0 {
		out["core_flops"], out["core"] = each[least], float64(allowed()[least])
	}
	if took > 0 && used > 0 {
		out["held_share"] = max(0, 1-used.Seconds()/took.Seconds())
		out["throttled_share"] = min(1, (throttledTime("/")-throttled).Seconds()/took.Seconds())
	}
	if _, now := clockLimit("/"); now > slowed {
		out["slowed_by_heat"] = float64(now - slowed)
	}
	if now := stolen(); now.total > steal.total {
		out["steal_share"] = (now.steal - steal.steal) / (now.total - steal.total)
	}
	return out
}

// buffers are the vectors of memories, which are kept from round to round: to get them takes as long as to copy them.
type buffers [][2][]byte

func (b *buffers) make() {
	n := len(allowed())
	if len(*b) == n {
		return
	}
	size := copied
	if v, err := mem.VirtualMemory(); err == nil {
		size = min(size, int(v.Available/8)/max(1, 2*n))
	}
	size = max(leastCopy, size)
	*b = make(buffers, n)
	for i := range *b {
		(*b)[i] = [2][]byte{vector.Make[byte](size), vector.Make[byte](size)}
	}
}

// memories copies vectors on all processors at once. The rate is that of all threads per second of their processor
// time, so that a quota or other processes do not count: computes has these.
func memories(window time.Duration, b *buffers) tried {
	b.make()
	_, each, _, _ := threads(0, window, func(i int) float64 {
		copy((*b)[i][0], (*b)[i][1])
		return 2 * float64(len((*b)[i][0])) // read and written
	})
	rate := 0.0
	for _, x := range each {
		rate += x
	}
	return tried{"memory_Bps": rate}
}

// disk is the part of a host that writes and reads files.
type disk struct {
	dir    string // of its own, below the one of --dir
	block  []byte
	size   int64
	direct bool
	at     int64 // of the next block to write
	next   int   // small file to read
	filled bool
}

// newDisk makes a folder with small files.
func newDisk(dir string) (*disk, error) {
	made, err := os.MkdirTemp(dir, ".star-sweep-")
	if err != nil {
		return nil, err
	}
	d := &disk{dir: made, size: diskFile, block: aligned(diskBlock)}
	rand.Read(d.block) // some disks compress
	space, err := spaceFor(dir)
	if err == nil && space < diskFile+smalls*smallFile+diskSpare {
		err = fmt.Errorf("%s has %s left, and the check of the disk wants %s; give another folder with --dir", dir, size(float64(space)), size(diskFile+diskSpare))
	}
	for i := 0; i < smalls && err == nil; i++ {
		err = d.write(d.small(i), d.block[:smallFile])
	}
	if err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

// aligned returns memory that direct input and output take.
func aligned(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	if off := int(uintptr(unsafe.Pointer(&b[0]))) % page; off != 0 {
		b = b[page-off:]
	}
	return b[:n]
}

func (d *disk) small(i int) string { return filepath.Join(d.dir, "small-"+strconv.Itoa(i)) }

func (d *disk) remove() error {
	if d == nil {
		return nil
	}
	return os.RemoveAll(d.dir)
}

// write writes a file, through to the disk.
func (d *disk) write(path string, b []byte) error {
	f, direct, err := openDirect(path, os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return err
	}
	d.direct = direct
	_, err = f.Write(b)
	if !direct && err == nil {
		if err = f.Sync(); err == nil {
			uncache(f)
		}
	}
	return errors.Join(err, f.Close())
}

// writes writes blocks until the window is over.
func (d *disk) writes(window time.Duration) (tried, error) {
	f, direct, err := openDirect(filepath.Join(d.dir, "large"), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	begin, n := time.Now(), 0
	for n == 0 || time.Since(begin) < window {
		if _, err := f.WriteAt(d.block, d.at); err != nil {
			return nil, err
		}
		if !direct || n == 0 { // else the page cache is measured; once, so that a disk with a cache of its own has to write
			if err := f.Sync(); err != nil {
				return nil, err
			}
		}
		n++
		if d.at += diskBlock; d.at >= d.size {
			d.at, d.filled = 0, true
		}
	}
	return tried{"write_Bps": float64(n) * diskBlock / time.Since(begin).Seconds()}, nil
}

// reads reads the blocks that writes has written.
func (d *disk) reads(window time.Duration) (tried, error) {
	f, _, err := openDirect(filepath.Join(d.dir, "large"), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	uncache(f)
	end := d.at
	if d.filled {
		end = d.size
	}
	if end == 0 {
		return nil, errors.New("nothing was written that could be read")
	}
	begin, n, at := time.Now(), 0, int64(0)
	for n == 0 || time.Since(begin) < window {
		if _, err := f.ReadAt(d.block, at); err != nil {
			return nil, err
		}
		n++
		if at += diskBlock; at >= end {
			at = 0
			uncache(f)
		}
	}
	return tried{"read_Bps": float64(n) * diskBlock / time.Since(begin).Seconds()}, nil
}

// smallReads opens, reads and closes small files one after the other, as a loader of pictures does.
func (d *disk) smallReads(window time.Duration) (tried, error) {
	begin, n := time.Now(), 0
	for n == 0 || time.Since(begin) < window {
		f, direct, err := openDirect(d.small(d.next), os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		_, err = f.ReadAt(d.block[:smallFile], 0)
		if !direct {
			uncache(f)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		n, d.next = n+1, (d.next+1)%smalls
	}
	return tried{"files_ps": float64(n) / time.Since(begin).Seconds()}, nil
}

// ticks are the processor times of the kernel this host runs on, in seconds.
type ticks struct{ total, steal float64 }

func stolen() ticks {
	ts, err := cpu.Times(false)
	if err != nil || len(ts) == 0 {
		return ticks{}
	}
	t := ts[0]
	return ticks{t.User + t.System + t.Idle + t.Nice + t.Iowait + t.Irq + t.Softirq + t.Steal, t.Steal}
}

// throttledTime is for how long tasks of this control group were kept from running by its quota.
func throttledTime(root string) (sum time.Duration) {
	groups(root, func(v1 bool, read func(name string) string) {
		key, unit := "throttled_usec ", time.Microsecond
		if v1 {
			key, unit = "throttled_time ", time.Nanosecond
		}
		for line := range strings.Lines(read("cpu.stat")) {
			if text, ok := strings.CutPrefix(line, key); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
				sum = max(sum, time.Duration(n)*unit)
			}
		}
	})
	return sum
}

// last is the file with the numbers of this host's last clean sweep.
type last struct {
	Time   time.Time          `json:"time"`
	Values map[string]float64 `json:"values"`
}

func readLast(path string) (l last, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return last{}, nil
	}
	if err == nil {
		if err = json.Unmarshal(b, &l); err != nil {
			err = fmt.Errorf("%s: %w; delete it", path, err)
		}
	}
	for k, v := range l.Values {
		if math.IsNaN(v) || v <= 0 {
			delete(l.Values, k)
		}
	}
	return l, err
}
