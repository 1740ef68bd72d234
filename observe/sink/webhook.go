package sink

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// webhook posts events as JSON. Its field text is what Slack and Mattermost show.
type webhook struct {
	client http.Client
	to     string
}

func newWebhook(given string, env func(string) string) (Sink, error) {
	if given == "" {
		return nil, errors.New("webhook needs an address: webhook=https://…")
	}
	to, err := address("webhook", given)
	return &webhook{to: to}, err
}

type hooked struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Level  string    `json:"level"`
	Worker *int      `json:"worker,omitempty"`
	Says   string    `json:"says"`
}

// Takes implements Sink.
func (*webhook) Takes(r Row) bool { return r.Event != nil }

// Send implements Sink.
func (w *webhook) Send(ctx context.Context, b Batch) error {
	events := []hooked{}
	var lines []string
	for _, r := range b.Rows {
		h := hooked{Time: r.Time, Kind: r.Event.Kind, Level: string(r.Event.Level), Says: r.Event.Says}
		if rank := int(r.Event.Worker); rank >= 0 {
			h.Worker = &rank
		}
		events, lines = append(events, h), append(lines, b.Start.Job+": "+h.Says)
	}
	if len(events) == 0 {
		return nil
	}
	_, err := post(ctx, &w.client, w.to, nil, map[string]any{"text": strings.Join(lines, "\n"), "job": b.Start.Job, "run": b.Run, "events": events}, len(events))
	return err
}

// Close implements Sink.
func (w *webhook) Close() error {
	w.client.CloseIdleConnections()
	return nil
}
