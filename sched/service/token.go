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

// There are two kinds of secrets. That of several services (--peers) lets its holder vote and ask questions, so submit
// commands: no job gets it. Each job has one of its own, made by the service, with which its processes join and its owner
// uses star ctl.

// secretName is the file of the services' secret, in the folder of the jobs, where no STAR_TOKEN gives them one.
const secretName = "services.token"

// madeSecret is the secret in a file that its owner alone may read. It makes a missing one: of several processes that
// do so at once all get the same.
func madeSecret(name string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".token-*") // its mode is 0600
	if err != nil {
		return "", coded{err, exitcode.Unwritable}
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", coded{err, exitcode.Unwritable}
	}
	if err := os.Link(f.Name(), name); err != nil && !errors.Is(err, fs.ErrExist) { // whole or not at all
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
		return "", coded{fmt.Errorf("%s: other users may read this secret (mode %v): take the file away, and a new one is made", name, i.Mode().Perm()), exitcode.Refused}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", coded{err, exitcode.Refused}
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", coded{fmt.Errorf("%s: empty: take the file away, and a new secret is made", name), exitcode.Corrupt}
	}
	return token, nil
}

// tokenFile has the token of a job.
func (s *Service) tokenFile(job string) string { return filepath.Join(s.o.Jobs, job, "token") }

// token is that of a job.
func (s *Service) token(job string) (string, error) { return secret(s.tokenFile(job)) }

// reached is where the coordinator of a job that runs answers, and the token that it wants, for the owner of the service.
func (s *Service) reached(job string) (addr, token string, err error) {
	for _, j := range s.q.Jobs {
		if (j.State == live.Running || j.State == live.Stopping) && (j.Name == job || j.Addr == job) {
			token, err = s.token(j.Name)
			return j.Addr, token, err
		}
	}
	return "", "", coded{fmt.Errorf("no job %s runs: %w", job, live.ErrNoJob), exitcode.Missing}
}

// closeLives has jobs begin a new life that an earlier release began, which gave jobs no tokens of their own: a worker of today
// would not be let in.
func (s *Service) closeLives() {
	for _, j := range s.q.Jobs {
		if j.State != live.Running || !s.coordinator(j).alive() {
			continue
		}
		if _, err := os.Stat(s.tokenFile(j.Name)); errors.Is(err, fs.ErrNotExist) {
			s.commit(live.Event{At: s.now(), Kind: live.KindStop, Job: j.Name, State: live.Waiting, Why: "begun by an earlier release without a token of its own: it saves itself, and goes on with one"})
		}
	}
}
