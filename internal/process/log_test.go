package process

import (
	"bytes"
	"errors"
	"log/slog"
	"sync"
	"testing"
)

func TestLines(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(&lines{w: &b, mu: new(sync.Mutex), level: slog.LevelInfo}).With("role", "ps", "rank", 1)
	log.Debug("unseen")
	log.Info("evaluated", "loss", 0.123456789, "of", "two words", slog.Group("at", "version", 3))
	log.Warn("odd", "err", errors.New(`a "quoted" reason`))
	want := `evaluated role=ps loss=0.12346 of="two words" at.version=3
WARN odd role=ps err="a \"quoted\" reason"
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
