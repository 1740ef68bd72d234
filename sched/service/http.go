package service

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
	"slices"
	"time"

	"star/internal/exitcode"
	"star/job"
	"star/observe/web"
	"star/sched"
	"star/sched/live"
)

// answer is a service's response.
type answer struct {
	Error  string  `json:"error,omitempty"`
	Code   int     `json:"code,omitempty"`  // exit code for the command
	Again  bool    `json:"again,omitempty"` // nothing was done: ask another service
	Job    string  `json:"job,omitempty"`   // name of the accepted job
	Addr   string  `json:"addr,omitempty"`  // of a job's coordinator
	Token  string  `json:"token,omitempty"` // for a job's coordinator
	Status *Status `json:"status,omitempty"`
}

// maxQuestion limits a request's size: more bytes than a job has.
const maxQuestion = 1 << 20

// listen serves requests on loopback and writes the address down.
func listen(l net.Listener, dir string, do func(ctx context.Context, path string, body []byte) answer) (stop func(), err error) {
	address := Address{Addr: l.Addr().String(), Token: rand.Text(), PID: os.Getpid()}
	if err := address.write(dir); err != nil {
		return nil, err
	}
	h := &http.Server{ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, Handler: web.Guard(address.Addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+address.Token)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			json.NewEncoder(w).Encode(answer{Error: "cannot answer: the token is not that of service.json; another service uses the folder now", Code: exitcode.Refused})
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuestion))
		if err != nil {
			json.NewEncoder(w).Encode(failed(err))
			return
		}
		json.NewEncoder(w).Encode(do(r.Context(), r.URL.Path, body))
	}))}
	go h.Serve(l)
	return func() { h.Close() }, nil
}

// failed returns the response to a request that failed.
func failed(err error) answer { return answer{Error: err.Error(), Code: job.ExitCode(err)} }

// asking is a request, or another task for the service's goroutine.
type asking struct {
	do   func() // nil: it is a request
	path string
	body []byte
	says chan answer // buffered, capacity 1
}

// answer responds to a request, between two steps of the service.
func (s *Service) answer(ctx context.Context, path string, body []byte) (a answer) {
	q := asking{path: path, body: body, says: make(chan answer, 1)}
	select {
	case s.asked <- q:
		return <-q.says
	case <-s.silent:
		a = failed(coded{errors.New("the service is stopping"), exitcode.Lost})
		a.Again = true
		return a
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// Limits on batching requests.
const (
	mostTogether = 256                   // requests in a batch
	costly       = 20 * time.Millisecond // planning that takes longer is not repeated for each batch
	rest         = 4                     // pause until the next planning, as a multiple of its duration
)

// together handles a request together with the others that wait: it writes their events down at once, and plans once.
// If planning is slow, the responses do not wait for it.
func (s *Service) together(first asking) {
	var said []func() // called after planning
	events, waiting := []live.Event(nil), []asking(nil)
	flush := func() {
		if len(events) == 0 {
			return
		}
		err := s.commit(events...)
		for i, q := range waiting {
			job := events[i].Job
			switch {
			case err != nil:
				q.says <- failed(err)
			case events[i].Kind == live.KindSubmit:
				said = append(said, func() { q.says <- s.taken(job) })
			default:
				q.says <- answer{}
			}
		}
		events, waiting = nil, nil
	}
	for q, n := first, 1; ; n++ {
		if q.do == nil && (q.path == "/submit" || q.path == "/cancel") {
			e, err := s.wants(q.path, q.body)
			// the request depends on an earlier one
			if slices.ContainsFunc(events, func(o live.Event) bool { return o.Job == e.Job || o.Kind != e.Kind || err != nil }) {
				flush()
				e, err = s.wants(q.path, q.body)
			}
			if err != nil {
				q.says <- failedBy(err)
			} else {
				events, waiting = append(events, e), append(waiting, q)
			}
		} else {
			flush()
			if q.do != nil {
				q.do()
			} else if a, err := s.asks(q.path, q.body); err != nil {
				q.says <- failedBy(err)
			} else {
				q.says <- a
			}
		}
		if n == mostTogether {
			break
		}
		select {
		case q = <-s.asked:
			continue
		default:
		}
		break
	}
	flush()
	if s.cost < costly || time.Since(s.planned) > rest*s.cost {
		s.act()
	}
	for _, say := range said {
		say()
	}
}

// failedBy returns the response to a request that failed here. If this service no longer decides, another one should be
// asked.
func failedBy(err error) answer {
	a := failed(err)
	a.Again = errors.Is(err, errAskAgain)
	return a
}

// taken returns the response to a submission.
func (s *Service) taken(job string) answer {
	st := Status{Dir: s.o.Dir, Policy: s.o.Policy, Since: s.began, Hosts: []HostStatus{}, Jobs: []JobStatus{}}
	if j := s.q.Job(job); j != nil {
		st.Jobs = append(st.Jobs, s.jobStatus(j, s.now()))
	}
	return answer{Job: job, Status: &st}
}

// wants returns the event that a request asks for.
func (s *Service) wants(path string, body []byte) (e live.Event, err error) {
	if err := s.decides(); err != nil {
		return e, err
	}
	if path == "/cancel" {
		if e, err = s.q.Cancellation(string(body), s.now()); err == nil {
			return e, nil
		}
		if later := s.q.Later(string(body)); later != nil {
			err = fmt.Errorf("%w; it was submitted again, and %s is %s: star sched cancel %s", err, later.Name, later.State, later.Name)
		}
		if errors.Is(err, live.ErrNoJob) {
			err = coded{err, exitcode.Missing}
		}
		return e, err
	}
	var spec live.Spec
	if err := json.Unmarshal(body, &spec); err != nil {
		return e, coded{err, exitcode.Corrupt}
	}
	spec.Name = s.q.Again(spec.Name)
	if e, err = s.q.Submission(spec, sched.NeedsRates(s.o.Policy), s.now()); err != nil {
		return e, coded{err, exitcode.Corrupt}
	}
	return e, nil
}

// errAskAgain marks that a request had no effect, because this service does not know what others have decided since.
var errAskAgain = fmt.Errorf("%w", errLost)

// decides returns an error unless this service still decides.
func (s *Service) decides() error {
	if s.book.held() {
		return nil
	}
	s.lost = true
	return errAskAgain
}

// asks handles the other requests.
func (s *Service) asks(path string, body []byte) (a answer, err error) {
	if err := s.decides(); err != nil {
		return a, err
	}
	switch path {
	case "/token":
		a.Addr, a.Token, err = s.reached(string(body))
		return a, err
	case "/status":
	default:
		return a, coded{fmt.Errorf("%s: unknown request", path), exitcode.Disagree}
	}
	st := s.status()
	a.Status = &st
	return a, nil
}

// ask sends a request to the service of a folder.
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
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy
	resp, err := direct.Do(r)
	if err != nil {
		return a, coded{fmt.Errorf("the service of %s does not answer at %s: %w; start it: star sched serve --dir %s (running jobs continue without it)", dir, at.Addr, errors.Unwrap(err), dir), exitcode.Lost}
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

// Submit submits a job to the service of a folder and returns its initial status. The job may get another name
// (live.Queue.Again).
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
	return JobStatus{}, fmt.Errorf("job %s is not in the service's answer", name)
}

// Cancel cancels a job.
func Cancel(ctx context.Context, dir, job string) error {
	_, err := ask(ctx, dir, "/cancel", []byte(job))
	return err
}

// Reach returns the address of a job's coordinator, and the token that it requires. The job is given by its name or by
// that address.
func Reach(ctx context.Context, dir, job string) (addr, token string, err error) {
	a, err := ask(ctx, dir, "/token", []byte(job))
	return a.Addr, a.Token, err
}

// Ask returns the service's status.
func Ask(ctx context.Context, dir string) (Status, error) {
	a, err := ask(ctx, dir, "/status", nil)
	if err != nil {
		return Status{}, err
	}
	return *a.Status, nil
}
