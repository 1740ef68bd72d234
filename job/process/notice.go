package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"star/job"
)

// noticeEvery is how often a notice is looked for: clouds give 30 s (Google, Azure) to 2 minutes (Amazon) from the
// notice to the end.
const noticeEvery = time.Second

// Noticed returns a context that ends as with SIGTERM when a notice appears that this machine will
// be taken away: a file, or the answer of an HTTP address (--notice). Empty: ctx itself. It polls
// until the context ends.
func Noticed(ctx context.Context, place string, log *slog.Logger) context.Context {
	if place == "" {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go watchNotice(ctx, place, log, time.NewTicker(noticeEvery).C, cancel)
	return ctx
}

func watchNotice(ctx context.Context, place string, log *slog.Logger, tick <-chan time.Time, cancel context.CancelCauseFunc) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		there, err := noticed(ctx, place)
		switch {
		case there:
			log.Warn("this machine will be taken away: leaving the job", "notice", place)
			cancel(&job.SignalError{Signal: syscall.SIGTERM})
			return
		case err != nil && !failed && ctx.Err() == nil:
			log.Warn("cannot look for the notice that this machine will be taken away; trying on", "notice", place, "err", err)
		}
		failed = err != nil
	}
}

// noticed asks once.
func noticed(ctx context.Context, place string) (bool, error) {
	u, err := url.Parse(place)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		_, err := os.Stat(place)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	status, body, err := askMetadata(ctx, http.MethodGet, u.String(), "Metadata-Flavor", "Google")
	if err == nil && status == http.StatusUnauthorized { // Amazon's service since version 2 wants a token first
		var token string
		at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/latest/api/token"}
		if status, token, err = askMetadata(ctx, http.MethodPut, at.String(), "X-aws-ec2-metadata-token-ttl-seconds", "60"); err == nil && status == http.StatusOK {
			status, body, err = askMetadata(ctx, http.MethodGet, u.String(), "X-aws-ec2-metadata-token", token)
		}
	}
	switch {
	case err != nil:
		return false, err
	case status == http.StatusNotFound:
		return false, nil
	case status != http.StatusOK:
		return false, fmt.Errorf("%s answers %s", place, http.StatusText(status))
	}
	// Google's instance/preempted is TRUE or FALSE.
	return !slices.Contains([]string{"", "false", "none"}, strings.ToLower(strings.TrimSpace(body))), nil
}

// nearby asks without a proxy: a metadata address is that of the host itself.
var nearby = &http.Client{Transport: &http.Transport{}}

// askMetadata makes a request with one header: the status, and the first bytes of the answer.
func askMetadata(ctx context.Context, method, at, header, value string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set(header, value)
	answer, err := nearby.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	return answer.StatusCode, string(b), err
}
