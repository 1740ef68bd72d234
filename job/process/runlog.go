package process

import (
	"fmt"
	"os"
	"strings"

	"star/runlog/parts"
)

// CreateRunLog creates a run log. An existing one is renamed with its parts; its new name is
// returned.
func CreateRunLog(path string) (f *os.File, kept string, err error) {
	for i := 1; ; i++ {
		old := strings.TrimSuffix(path, ".jsonl") + fmt.Sprintf(".%d.jsonl", i)
		if _, err := os.Lstat(old); err == nil {
			continue
		}
		rotated, err := parts.RenameParts(path, old) // first: if this process ends here, the next one does the rest
		if err != nil {
			return nil, "", err
		}
		err = os.Rename(path, old)
		if err != nil && rotated > 0 { // its process ended in the middle of a rotation
			err = os.WriteFile(old, nil, 0o666)
		}
		if err == nil {
			kept = old
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return f, kept, err
	}
}
