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
	h := &http.Server{ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, Handler: web.Guard(address.Addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	}))}
	go h.Serve(l)
	return func() { h.Close() }, nil
}

// failed is the answer to a question that came to an error.
func failed(err error) answer { return answer{Error: err.Error(), Code: job.ExitCode(err)} }

// asking is a question, or something else that the service is to do.
type asking struct {
	do   func() // nil: it is a question
	path string
	body []byte
	says chan answer // has room for one
}

// answer answers a question, between two things that the service does.
func (s *Service) answer(ctx context.Context, path string, body []byte) (a answer) {
	q := asking{path: path, body: body, says: make(chan answer, 1)}
	select {
	case s.asked <- q:
		return <-q.says
	case <-s.silent:
		a = failed(coded{errors.New("the service ends"), exitcode.Lost})
		a.Again = true
		return a
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// Of what comes together.
const (
	mostTogether = 256                   // questions
	dear         = 20 * time.Millisecond // planning that takes longer is not done for each of them
	rest         = 4                     // times as long as planning took, until it is done again
)

// together does what a question asks for, and what others ask for that wait by now: their events are written down at once, and planned for
// once. Where that takes long the answer does not wait for a plan.
func (s *Service) together(first asking) {
	var said []func() // after the plan
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
			if slices.ContainsFunc(events, func(o live.Event) bool { return o.Job == e.Job || o.Kind != e.Kind || err != nil }) { // what is asked for depends on what came before
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
	if s.cost < dear || time.Since(s.planned) > rest*s.cost {
		s.act()
	}
	for _, say := range said {
		say()
	}
}

// failedBy is the answer to a question that came to an error here. Of a service that does not decide any more another one is to be asked.
func failedBy(err error) answer {
	a := failed(err)
	a.Again = errors.Is(err, errAskAgain)
	return a
}

// taken is the answer to a submission.
func (s *Service) taken(job string) answer {
	st := Status{Dir: s.o.Dir, Policy: s.o.Policy, Since: s.began, Hosts: []HostStatus{}, Jobs: []JobStatus{}}
	if j := s.q.Job(job); j != nil {
		st.Jobs = append(st.Jobs, s.jobStatus(j, s.now()))
	}
	return answer{Job: job, Status: &st}
}

// wants is the event that a question asks for.
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

// errAskAgain marks that nothing was done of a question, because this service does not know what others have decided by now.
var errAskAgain = fmt.Errorf("%w", errLost)

// decides is an error unless this service decides still.
func (s *Service) decides() error {
	if s.book.held() {
		return nil
	}
	s.lost = true
	return errAskAgain
}

// asks does what another question asks for.
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
