package service

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"star/internal/exitcode"
	"star/sched/live"
)

// There are two kinds of secrets. That of several services (--peers) lets its holder vote and send requests, including
// submit: no job gets it. Each job has its own token, made by the service: its processes join with it, and its owner
// uses it for star ctl.

// secretName is the file of the services' secret, in the folder of the jobs, for services without STAR_TOKEN.
const secretName = "services.token"

// madeSecret returns the secret in a file that only its owner may read. It creates a missing file: several processes
// that do so at once get the same secret.
func madeSecret(name string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".token-*") // mode 0600
	if err != nil {
		return "", coded{err, exitcode.Unwritable}
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", coded{err, exitcode.Unwritable}
	}
	if err := os.Link(f.Name(), name); err != nil && !errors.Is(err, fs.ErrExist) { // atomic
		return "", coded{err, exitcode.Unwritable}
	}
	return secret(name)
}

// secret reads the secret in a file.
func secret(name string) (string, error) {
	i, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if i.Mode().Perm()&0o007 != 0 {
		return "", coded{fmt.Errorf("%s: other users may read this secret (mode %v): remove the file, and a new one is made", name, i.Mode().Perm()), exitcode.Refused}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", coded{err, exitcode.Refused}
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", coded{fmt.Errorf("%s: empty: remove the file, and a new secret is made", name), exitcode.Corrupt}
	}
	return token, nil
}

// tokenFile has the token of a job.
func (s *Service) tokenFile(job string) string { return filepath.Join(s.o.Jobs, job, "token") }

// token returns a job's token.
func (s *Service) token(job string) (string, error) { return secret(s.tokenFile(job)) }

// reached returns the address of a running job's coordinator and the token that it requires, for the service's owner.
func (s *Service) reached(job string) (addr, token string, err error) {
	for _, j := range s.q.Jobs {
		if (j.State == live.Running || j.State == live.Stopping) && (j.Name == job || j.Addr == job) {
			token, err = s.token(j.Name)
			return j.Addr, token, err
		}
	}
	return "", "", coded{fmt.Errorf("no job %s is running: %w", job, live.ErrNoJob), exitcode.Missing}
}

// closeLives restarts jobs that an earlier release started without a token of their own: a current worker would not be
// admitted.
func (s *Service) closeLives() {
	for _, j := range s.q.Jobs {
		if j.State != live.Running || !s.coordinator(j).alive() {
			continue
		}
		if _, err := os.Stat(s.tokenFile(j.Name)); errors.Is(err, fs.ErrNotExist) {
			s.commit(live.Event{At: s.now(), Kind: live.KindStop, Job: j.Name, State: live.Waiting, Why: "started by an earlier release without a token of its own: it saves a checkpoint, and resumes with one"})
		}
	}
}
