package schedule

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"star/exitcode"
	"star/member"
	"star/sched"
	"star/sched/live"
)

// answer is what a service says to a question.
type answer struct {
	Error  string  `json:"error,omitempty"`
	Code   int     `json:"code,omitempty"`  // with which whoever asked is to exit
	Again  bool    `json:"again,omitempty"` // nothing was done: another service is to be asked
	Job    string  `json:"job,omitempty"`   // under which name a job was taken in
	Addr   string  `json:"addr,omitempty"`  // of a job's coordinator
	Token  string  `json:"token,omitempty"` // with which a job's coordinator is asked
	Status *Status `json:"status,omitempty"`
}

// maxQuestion is more bytes than a job has.
const maxQuestion = 1 << 20

// listen has a service answer on loopback, and writes down where.
func listen(l net.Listener, dir string, do func(ctx context.Context, path string, body []byte) answer) (stop func(), err error) {
	address := Address{Addr: l.Addr().String(), Token: rand.Text(), PID: os.Getpid()}
	if err := address.write(dir); err != nil {
		return nil, err
	}
	h := &http.Server{ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+address.Token)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			json.NewEncoder(w).Encode(answer{Error: "the word in service.json is another one: another service has the folder now", Code: exitcode.Refused})
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuestion))
		if err != nil {
			json.NewEncoder(w).Encode(failed(err))
			return
		}
		json.NewEncoder(w).Encode(do(r.Context(), r.URL.Path, body))
	})}
	go h.Serve(l)
	return func() { h.Close() }, nil
}

// failed is the answer to a question that came to an error.
func failed(err error) answer { return answer{Error: err.Error(), Code: member.ExitCode(err)} }

// answer answers a question, between two things that the service does.
func (s *Service) answer(ctx context.Context, path string, body []byte) (a answer) {
	done := make(chan struct{})
	select {
	case s.asked <- func() {
		defer close(done)
		var err error
		if a, err = s.asks(path, body); err != nil {
			again := a.Again
			a = failed(err)
			a.Again = again
		}
	}:
		<-done
		return a
	case <-s.silent:
		a = failed(coded{errors.New("the service ends"), exitcode.Lost})
		a.Again = true
		return a
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// asks does what a question asks for.
func (s *Service) asks(path string, body []byte) (a answer, err error) {
	if !s.book.held() { // it may not know what others have decided by now
		s.lost = true
		return answer{Again: true}, errLost
	}
	switch path {
	case "/submit":
		var spec live.Spec
		if err := json.Unmarshal(body, &spec); err != nil {
			return a, coded{err, exitcode.Corrupt}
		}
		spec.Name = s.q.Again(spec.Name)
		a.Job = spec.Name
		e, err := s.q.Submission(spec, sched.NeedsRates(s.o.Policy), s.now())
		if err != nil {
			return a, coded{err, exitcode.Corrupt}
		}
		if err := s.commit(e); err != nil {
			return a, err
		}
		s.act()
	case "/cancel":
		e, err := s.q.Cancellation(string(body), s.now())
		if later := s.q.Later(string(body)); err != nil && later != nil {
			err = fmt.Errorf("%w; it was submitted again, and %s is %s: star sched cancel %s", err, later.Name, later.State, later.Name)
		}
		if errors.Is(err, live.ErrNoJob) {
			return a, coded{err, exitcode.Missing}
		} else if err != nil {
			return a, err
		}
		return a, s.commit(e)
	case "/token":
		a.Addr, a.Token, err = s.reached(string(body))
		return a, err
	case "/status":
	default:
		return a, coded{fmt.Errorf("%s: a question that this program does not know", path), exitcode.Disagree}
	}
	st := s.status()
	a.Status = &st
	return a, nil
}

// ask asks the service of a folder.
func ask(ctx context.Context, dir, path string, body []byte) (a answer, err error) {
	at, err := ReadAddress(dir)
	if err != nil {
		return a, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.Addr+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	r.Header.Set("Authorization", "Bearer "+at.Token)
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // through no proxy
	resp, err := direct.Do(r)
	if err != nil {
		return a, coded{fmt.Errorf("the service of %s does not answer at %s: %w; start it, star sched serve --dir %s (jobs go on without it)", dir, at.Addr, errors.Unwrap(err), dir), exitcode.Lost}
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&a); err != nil {
		return a, coded{fmt.Errorf("the service of %s at %s: %w", dir, at.Addr, err), exitcode.Lost}
	}
	if a.Error != "" {
		return a, coded{errors.New(a.Error), a.Code}
	}
	return a, nil
}

// Submit gives a job to the service of a folder, and returns what became of it at once. It may have another name (live.Queue.Again).
func Submit(ctx context.Context, dir string, spec live.Spec) (JobStatus, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return JobStatus{}, err
	}
	a, err := ask(ctx, dir, "/submit", body)
	if err != nil {
		return JobStatus{}, err
	}
	name := cmp.Or(a.Job, spec.Name)
	for _, j := range a.Status.Jobs {
		if j.Job == name {
			return j, nil
		}
	}
	return JobStatus{}, fmt.Errorf("job %s is not in the answer", name)
}

// Cancel ends a job.
func Cancel(ctx context.Context, dir, job string) error {
	_, err := ask(ctx, dir, "/cancel", []byte(job))
	return err
}

// Reach is where the coordinator of a job answers, and the token that it wants. The job is said by its name or by that address.
func Reach(ctx context.Context, dir, job string) (addr, token string, err error) {
	a, err := ask(ctx, dir, "/token", []byte(job))
	return a.Addr, a.Token, err
}

// Ask asks how things are.
func Ask(ctx context.Context, dir string) (Status, error) {
	a, err := ask(ctx, dir, "/status", nil)
	if err != nil {
		return Status{}, err
	}
	return *a.Status, nil
}
