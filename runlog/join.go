package runlog

import "strings"

// Host is the worker's host: its address without the port, or of a watched rank what is before the process.
func (j Join) Host() string {
	host, _, _ := strings.Cut(j.Peer, ",")
	if i := strings.LastIndexByte(host, ':'); i > 0 {
		host = strings.Trim(host[:i], "[]")
	}
	return host
}
