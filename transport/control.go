package transport

import "syscall"

// Control sets the options of t on a socket that is not t's own. It fits the Control fields of
// [net.Dialer] and [net.ListenConfig], so that a bare connection can be measured under the same
// conditions. The error names an option that the system rejects.
func (t *TCP) Control(network, address string, rc syscall.RawConn) error {
	return t.control(network, address, rc)
}
