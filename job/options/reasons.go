package options

import (
	"strings"
	"sync"
	"time"
)

// Reasons leaves out of lines the long reasons that lines before them had: several things end for the reason of the
// first one. Its zero value is ready, and several goroutines may use it.
type Reasons struct {
	Length int // two reasons are the same if this many bytes are; 0: 300, which is within what transport.Brief leaves

	mu   sync.Mutex
	seen map[string]time.Time // when each was printed
}

const (
	reasonLeast = 80          // Shorter ones are printed each time.
	reasonsKept = 1000        // Programs may print any number. Later ones are printed each time.
	reasonFor   = time.Minute // For longer, the line with the reason may be far away, or in a file that was rotated.
)

// Once is text, in which "… (as above)" takes the place of a reason, which begins behind a colon, that was printed
// before.
func (r *Reasons) Once(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, length := time.Now(), r.Length
	if length == 0 {
		length = 300
	}
	var keys []string
	for i := 0; ; {
		n := strings.Index(text[i:], ": ")
		if n < 0 {
			break
		}
		i += n + len(": ")
		if len(text)-i < reasonLeast {
			break
		}
		key := text[i:min(len(text), i+length)]
		if at, ok := r.seen[key]; ok && now.Sub(at) < reasonFor {
			return text[:i] + "… (as above)"
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return text
	}
	if r.seen == nil {
		r.seen = make(map[string]time.Time)
	}
	for key, at := range r.seen {
		if now.Sub(at) >= reasonFor {
			delete(r.seen, key)
		}
	}
	for _, key := range keys {
		if len(r.seen) < reasonsKept {
			r.seen[key] = now
		}
	}
	return text
}
