package coord

import "time"

// ago is how long ago something was that another process has noted. Its clock may be ahead of ours: then it is now.
func ago(t time.Time) time.Duration { return max(0, time.Since(t)) }
