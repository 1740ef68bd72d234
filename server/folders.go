package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"star/job/process"
	"star/train/checkpoint"
)

// folderPatience is how long to wait for the locks of a process that was killed. The system releases
// them when the process has ended, which takes a moment if it has much memory.
const folderPatience = 2 * time.Second

// Two folders belong to a job: --out with the run log, and the folder of checkpoints, which may be
// the same or an object store. At most one job has a folder at a time. Within a job, only the process
// that coordinates writes the run log; shards write their parts of a checkpoint without a lock, into
// a folder named by the coordinator.

// takeFolders locks the folders of the run log and of checkpoints, so that no other job writes into
// them, and removes incomplete checkpoints of crashed jobs. A process that takes over the job
// continues without the lock of a folder that the coordinator before it still holds.
//
// An error is a *job.SettingError of --out or --checkpoint: another job has the folder, or the
// system denies it. A file system without locks is used with a warning. Locks are held until
// leaveFolders.
func (s *server) takeFolders() error {
	if len(s.locks) > 0 { // it has coordinated before
		return nil
	}
	dir, err := s.lockFolders()
	if err != nil || dir == "" || s.handover != nil { // other processes of the job may be writing there already
		return err
	}
	removed, err := checkpoint.Sweep(dir)
	for _, path := range removed {
		s.log.Info("removed an incomplete checkpoint", "path", path)
	}
	if err != nil {
		s.log.Warn("could not remove incomplete checkpoints", "folder", dir, "reason", err)
	}
	return nil
}

// CheckFolders checks whether a job on this host can lock its folders, before any of its processes
// starts. The error names the setting, and the holder or the system's error. It takes the locks for
// a moment, and creates missing folders. If another job takes them before Run, Run reports that.
func CheckFolders(c Config) error {
	c.complete()
	s := &server{job: &c, log: slog.New(slog.DiscardHandler)}
	defer s.leaveFolders()
	_, err := s.lockFolders()
	return err
}

// lockFolders takes the locks, and returns the folder of checkpoints if it is locked. Empty: it is
// not a folder (an object store), or could not be locked; then nothing may be removed in it. If both
// folders are the same one, it is locked once.
func (s *server) lockFolders() (dir string, err error) {
	job := s.job
	patience := folderPatience
	if s.handover != nil {
		patience = 0
	}
	holder := fmt.Sprintf("process %d on %s, of the job %q", os.Getpid(), process.Hostname(), job.Name)
	take := func(name, dir string) (taken bool, err error) {
		l, err := checkpoint.Acquire(dir, holder, patience)
		switch {
		case err == nil:
			s.locks = append(s.locks, l)
			return true, nil
		case errors.Is(err, errors.ErrUnsupported):
			s.log.Warn("could not lock the folder; make sure that no other job writes into it", "folder", dir, "reason", err)
		case s.handover != nil && errors.As(err, new(*checkpoint.HeldError)):
			s.log.Debug("folder still locked by the coordinator before", "reason", err)
		default:
			return false, job.Invalid(name, err)
		}
		return false, nil
	}
	taken, err := take("out", job.Out)
	dir = process.CheckpointsOf(&job.Job)
	if err != nil || !checkpoint.Folder(dir) {
		return "", err
	}
	if !same(dir, job.Out) {
		name := "out"
		if job.Checkpoint != "" {
			name = "checkpoint"
		}
		if taken, err = take(name, dir); err != nil {
			return "", err
		}
	}
	if !taken {
		return "", nil
	}
	return dir, nil
}

// same reports whether two paths are the same folder.
func same(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// leaveFolders releases the locks.
func (s *server) leaveFolders() {
	for _, l := range s.locks {
		l.Release()
	}
	s.locks = nil
}
