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

// With the token of a job a member could say hello to a shard in the name of another one. So the
// coordinator draws a key, which it tells servers (Assign) and nobody else, and gives each worker a
// pass with its Welcome, which shards want to see in its Hello: two numbers and a MAC of them, made
// with the key. A later Welcome of the same rank has a higher number. So shards need not be told
// who was welcomed, and who once had a rank can be told from who has it now.

// NewKey draws the key of a job.
func NewKey() string { return rand.Text() }

// Attempt is one of those that have a rank one after the other.
type Attempt struct {
	Number int64 // higher than those of all before it
	Step   int64 // of its first gradient
}

// Pass makes the pass of an attempt of a member. Without a key there is none.
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

// CheckPass says whether a pass was made with that key for that member, and for which of its
// attempts. The MACs are compared in constant time. Without a key, as from a coordinator of an
// earlier version, every pass is good.
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
