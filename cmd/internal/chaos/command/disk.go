package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"star/cmd/internal/chaos"
)

// diskBytes is the size of the disk that is filled. It must hold what --keep keeps, and one more.
const diskBytes = 32 << 20

// disk is a file system of its own for a job's checkpoints, which can be filled.
type disk struct {
	dir  string
	mu   sync.Mutex
	busy sync.WaitGroup
	full []chaos.Filled
	over chan struct{} // the job has ended
}

// newDisk mounts one at dir, which it makes.
func newDisk(dir string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	if err := mountMemory(dir, diskBytes); err != nil {
		return nil, fmt.Errorf("full-disk: a small file system is mounted at %s, which only root may do (in a namespace of its own: unshare --map-root-user --mount star-chaos …): %w", dir, err)
	}
	return &disk{dir: dir, over: make(chan struct{})}, nil
}

// longestFull is how long we wait at most until a process notices that a disk is full.
const longestFull = 30 * time.Second

// fill lets there be no room for a while, whatever is removed meanwhile; for longer where no checkpoint has failed yet.
// failures says how many have.
func (d *disk) fill(long time.Duration, failures func() int) {
	d.busy.Go(func() {
		d.mu.Lock() // one after the other
		defer d.mu.Unlock()
		f := chaos.Filled{}
		before := failures()
		f.Before, _ = loadable(d.dir)
		name := filepath.Join(d.dir, "ballast")
		b, err := os.Create(name)
		if err != nil {
			f.Broken = append(f.Broken, err.Error())
			d.full = append(d.full, f)
			return
		}
		for start := time.Now(); f.For < long || f.For < longestFull && failures() == before; f.For = time.Since(start) {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-d.over:
				long, before = 0, -1
			}
			for n := 1 << 20; n >= 1<<12; n >>= 1 {
				for err = nil; err == nil; {
					_, err = b.Write(make([]byte, n))
				}
				if !errors.Is(err, syscall.ENOSPC) {
					f.Broken = append(f.Broken, err.Error())
				}
			}
		}
		f.After, err = d.survivors()
		if err != nil {
			f.Broken = append(f.Broken, err.Error())
		}
		d.full = append(d.full, f)
		b.Close()
		os.Remove(name)
	})
}

// survivors are the versions that load now. One may be removed while we look, because a later one is complete: then we
// look again.
func (d *disk) survivors() (versions []int64, err error) {
	for range 5 {
		var bad []string
		if versions, bad = loadable(d.dir); len(bad) == 0 {
			return versions, nil
		}
		err = errors.New(bad[0])
		time.Sleep(10 * time.Millisecond)
	}
	return versions, err
}

// end waits until there is room, and says when there was none.
func (d *disk) end() []chaos.Filled {
	close(d.over)
	d.busy.Wait()
	return d.full
}

// close takes the file system away, with what is on it.
func (d *disk) close() { unmountMemory(d.dir) }

// noRoom is how many checkpoints have failed because there was no room, as the run logs say.
func (r *breaker) noRoom() (n int) {
	for _, name := range runLogs(r.job.Out) {
		text, _ := os.ReadFile(name) // the one of an attempt that begins is not there yet
		n += bytes.Count(text, []byte(syscall.ENOSPC.Error()))
	}
	return n
}
