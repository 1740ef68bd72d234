package process

import (
	"fmt"
	"os"
	"strings"
)

// CreateRunLog makes a run log. One that is there already is kept under another name, which is returned.
func CreateRunLog(path string) (f *os.File, kept string, err error) {
	for i := 1; ; i++ {
		old := strings.TrimSuffix(path, ".jsonl") + fmt.Sprintf(".%d.jsonl", i)
		if _, err := os.Lstat(old); err == nil {
			continue
		}
		if err := os.Rename(path, old); err == nil {
			kept = old
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return f, kept, err
	}
}
