//go:build race

package compress

// raced says that the race detector is on: it allocates, and drops what
// sync.Pool keeps.
const raced = true
