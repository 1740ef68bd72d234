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

// With the token of a job a member could say hello to a shard in the name of another one. So the coordinator draws a key, which it tells servers
// (Assign) and nobody else, and gives each worker a pass with its Welcome, which shards want to see in its Hello: two numbers and a MAC of them,
// made with the key. A later Welcome of the same rank has a higher number. So shards need not be told who was welcomed, and who once had a rank can be
// told from who has it now.

// NewKey draws the key of a job.
func NewKey() string { return rand.Text() }

// Life is one of those that have a rank one after the other.
type Life struct {
	Number int64 // higher than those of all before it
	Step   int64 // of its first gradient
}

// Pass makes the pass of a life of a member. Without a key there is none.
func Pass(key, role string, rank int, life Life) string {
	if key == "" {
		return ""
	}
	return fmt.Sprintf("%d.%d.%s", life.Number, life.Step, seal(key, role, rank, life))
}

// seal is the MAC of a pass: 128 bits of HMAC-SHA-256.
func seal(key, role string, rank int, life Life) string {
	m := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(m, "%s %d %d %d", role, rank, life.Number, life.Step)
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// CheckPass says whether a pass was made with that key for that member, and for which of its lives. The MACs are compared in constant time. Without a key, as
// from a coordinator of an earlier version, every pass is good.
func CheckPass(key, role string, rank int, pass string) (life Life, ok bool) {
	if key == "" {
		return Life{}, true
	}
	parts := strings.SplitN(pass, ".", 3)
	if len(parts) != 3 {
		return Life{}, false
	}
	var bad [2]error
	life.Number, bad[0] = strconv.ParseInt(parts[0], 10, 64)
	life.Step, bad[1] = strconv.ParseInt(parts[1], 10, 64)
	same := hmac.Equal([]byte(parts[2]), []byte(seal(key, role, rank, life)))
	return life, same && bad[0] == nil && bad[1] == nil
}
