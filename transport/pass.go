package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// With only the token of a job, a member could send a shard a hello in the name of another one. So
// the coordinator draws a key, which it sends to servers only (Assign), and gives each worker a
// pass with its Welcome, which shards require in its Hello: two numbers and their MAC under the
// key. A later Welcome of the same rank has a higher number. So shards can distinguish the current
// process of a rank from earlier ones without asking the coordinator.

// NewKey draws the key of a job.
func NewKey() string { return rand.Text() }

// Attempt is one of the processes that have had a rank, in order.
type Attempt struct {
	Number int64 // higher than those of all before it
	Step   int64 // of its first gradient
}

// Pass makes the pass of an attempt of a member. Without a key it is empty.
func Pass(key, role string, rank int, attempt Attempt) string {
	if key == "" {
		return ""
	}
	return fmt.Sprintf("%d.%d.%s", attempt.Number, attempt.Step, seal(key, role, rank, attempt))
}

// seal is the MAC of a pass: 128 bits of HMAC-SHA-256.
func seal(key, role string, rank int, attempt Attempt) string {
	m := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(m, "%s %d %d %d", role, rank, attempt.Number, attempt.Step)
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// CheckPass reports whether a pass was made with that key for that member, and for which of its
// attempts. The MACs are compared in constant time. Without a key, as from a coordinator of an
// earlier version, every pass is valid.
func CheckPass(key, role string, rank int, pass string) (attempt Attempt, ok bool) {
	if key == "" {
		return Attempt{}, true
	}
	parts := strings.SplitN(pass, ".", 3)
	if len(parts) != 3 {
		return Attempt{}, false
	}
	var bad [2]error
	attempt.Number, bad[0] = strconv.ParseInt(parts[0], 10, 64)
	attempt.Step, bad[1] = strconv.ParseInt(parts[1], 10, 64)
	same := hmac.Equal([]byte(parts[2]), []byte(seal(key, role, rank, attempt)))
	return attempt, same && bad[0] == nil && bad[1] == nil
}
