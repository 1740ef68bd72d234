package schedsim

import (
	"bytes"
	"testing"
	"time"
)

// What takes less than 2 s is silent, then there are fewer and fewer lines.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	at := time.Unix(0, 0)
	say := Progress(&b, "fifo", func() time.Time { return at })
	for s := range 60 {
		at = time.Unix(int64(s), 0)
		say(s, 120)
	}
	want := "fifo: 2 of 120 jobs have ended (2 %) after 2 s\nfifo: 6 of 120 jobs have ended (5 %) after 6 s\nfifo: 14 of 120 jobs have ended (12 %) after 14 s\nfifo: 30 of 120 jobs have ended (25 %) after 30 s\n"
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
}
