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

// folderPatience is how long a process that was killed may take to be gone, and to leave its
// folders. The system gives a lock back when the process is gone, and a killed process with much
// memory is not gone at once.
const folderPatience = 2 * time.Second

// takeFolders takes the folders of the run log and of checkpoints for this job, so that no other
// job writes into them while it lives, and removes what crashes have left among the checkpoints. A
// process that takes the job over does without a folder that the one before still has.
//
// An error is a *job.SettingError of --out or --checkpoint: another job has the folder, or the
// system does not let us. A folder whose file system knows no locks is used without one, with a
// warning. Locks are held until leaveFolders.
func (s *server) takeFolders() error {
	if len(s.locks) > 0 { // it has coordinated before
		return nil
	}
	dir, err := s.lockFolders()
	if err != nil || dir == "" || s.handover != nil { // others of the job may be writing there already
		return err
	}
	removed, err := checkpoint.Sweep(dir)
	for _, path := range removed {
		s.log.Info("removed what a crash had left", "path", path)
	}
	if err != nil {
		s.log.Warn("what crashes have left among the checkpoints is still there", "folder", dir, "reason", err)
	}
	return nil
}

// CheckFolders says whether a job on this host could have its folders, before any process of it
// starts. The error names the setting, and who holds the folder or what the system says. It takes
// the locks for a moment, and creates folders that are not there. Between it and Run another job
// may take them: then Run says so.
func CheckFolders(c Config) error {
	c.complete()
	s := &server{job: &c, log: slog.New(slog.DiscardHandler)}
	defer s.leaveFolders()
	_, err := s.lockFolders()
	return err
}

// lockFolders takes the locks, and says where checkpoints are if that folder is locked. Empty: it
// is none (an object store), or could not be locked; then nothing may be swept in it. Both folders
// may be one, which is locked once.
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
			s.log.Warn("this folder cannot be locked: see to it yourself that no other job writes into it", "folder", dir, "reason", err)
		case s.handover != nil && errors.As(err, new(*checkpoint.HeldError)):
			s.log.Debug("who coordinated before still has the folder", "reason", err)
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

// same says whether two paths are of one folder.
func same(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// leaveFolders gives the folders to others.
func (s *server) leaveFolders() {
	for _, l := range s.locks {
		l.Release()
	}
	s.locks = nil
}
