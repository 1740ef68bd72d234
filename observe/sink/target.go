package sink

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"star/internal/exitcode"
)

// kinds are the sinks.
var kinds = []struct {
	name    string
	what    string
	make    func(value string, env func(string) string) (Sink, error)
	timeout time.Duration // of one batch
}{
	{"otlp", "otlp[=URL of a collector]", newOTLP, 10 * time.Second},
	{"wandb", "wandb[=PROJECT]", newHelper("wandb"), 2 * time.Minute},
	{"mlflow", "mlflow[=EXPERIMENT]", newHelper("mlflow"), 2 * time.Minute},
	{"trainjob", "trainjob", newTrainJob, 10 * time.Second},
	{"webhook", "webhook=URL", newWebhook, 10 * time.Second},
}

// Target is a sink by its name, and the value that it was given.
type Target struct{ Name, Value string }

// ParseTarget reads NAME or NAME=VALUE.
func ParseTarget(s string) (Target, error) {
	name, value, _ := strings.Cut(s, "=")
	var all []string
	for _, k := range kinds {
		if k.name == name {
			return Target{name, value}, nil
		}
		all = append(all, k.what)
	}
	return Target{}, fmt.Errorf("unknown sink %q: want %s", name, strings.Join(all, ", "))
}

// New makes the sink. An error is one of the value, or of the variables that the sink needs.
func (t Target) New() (Sink, error) {
	for _, k := range kinds {
		if k.name == t.Name {
			s, err := k.make(t.Value, os.Getenv)
			if err != nil {
				return nil, &Fatal{fmt.Errorf("--to: %w", err), exitcode.Usage}
			}
			return s, nil
		}
	}
	return nil, &Fatal{fmt.Errorf("--to: unknown sink %q", t.Name), exitcode.Usage}
}

func (t Target) timeout() time.Duration {
	for _, k := range kinds {
		if k.name == t.Name {
			return k.timeout
		}
	}
	return time.Minute
}

// id names files; a value may have a key, and is not in it.
func (t Target) id() string {
	sum := sha256.Sum256([]byte(t.Value))
	return cmp.Or(strings.TrimSuffix(t.Name+"-"+hex.EncodeToString(sum[:3])[:6*min(len(t.Value), 1)], "-"), t.Name)
}
