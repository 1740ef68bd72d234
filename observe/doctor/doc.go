// Package doctor looks for what usually stops a distributed job before it
// begins, and says what to do about it.
//
// Most jobs that hang at the start do so for a dozen dull reasons: a port is
// taken, the host name resolves to 127.0.1.1 (Debian's installer writes that
// into /etc/hosts), a firewall drops packets, two hosts run different releases,
// a container has half a core. Each is one check here, with its fix.
//
// Checks of this host need nothing. Checks between hosts need a peer that
// answers pings: a running star-ps, or [Serve].
//
// Every check has a pure half, which judges, and a half that looks.
//
// The offset between two clocks is the one of the exchange with the shortest
// round trip, because its error is at most half of that trip (D. L. Mills:
// Internet Time Synchronization: the Network Time Protocol. IEEE Transactions on
// Communications, 1991, section IV).
//
// An address that this host reaches need not be one that others reach: run the doctor on both ends.
// Bandwidth is that of one connection with checksums, as in training; on a busy link it is what is
// left.
package doctor
