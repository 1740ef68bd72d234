package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"star/internal/exitcode"
)

// mostAnswer is how much of an answer is read, in bytes.
const mostAnswer = 64 << 10

// post sends v as JSON and returns the answer. rows is how many a rejection loses.
func post(ctx context.Context, c *http.Client, to string, header http.Header, v any, rows int) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, &Rejected{rows, err.Error()}
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return nil, &Fatal{err, exitcode.Usage}
	}
	for k, vs := range header {
		q.Header[k] = vs
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := c.Do(q)
	var failed *url.Error
	if errors.As(err, &failed) { // its text has the whole address
		err = fmt.Errorf("cannot reach %s: %w", shown(to), failed.Err)
	}
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	said, err := io.ReadAll(io.LimitReader(a.Body, mostAnswer))
	if a.StatusCode/100 == 2 {
		return said, err
	}
	why := fmt.Sprintf("%s answers %s %s", shown(to), a.Status, brief(said))
	why = strings.TrimSpace(why)
	switch code := a.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return nil, &Fatal{fmt.Errorf("%s: check its key or token", why), exitcode.Refused}
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed || code == http.StatusGone || code/100 == 3:
		return nil, &Fatal{fmt.Errorf("%s: check its address", why), exitcode.Usage}
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code/100 == 5:
		return nil, fmt.Errorf("%s", why)
	}
	return nil, &Rejected{rows, why}
}

// brief is the beginning of an answer, on one line.
func brief(b []byte) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "?")), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}

// shown is an address without what may be secret: user and query; of a webhook's path, which often has its key,
// nothing is shown.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	return u.Scheme + "://" + u.Host
}

// address checks that of a server.
func address(what, given string) (string, error) {
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%s needs an address like https://host:port/path", what)
	}
	return given, nil
}
