// Package doctor checks the usual causes for which a distributed job does not
// begin, and suggests a fix.
//
// Most jobs that hang at the start do so for a few simple reasons: a port is in
// use, the host name resolves to 127.0.1.1 (Debian's installer writes that
// into /etc/hosts), a firewall drops packets, two hosts run different releases,
// a container has half a core. Each is one check here, with its fix.
//
// Checks of this host need nothing. Checks between hosts need a peer that
// answers pings: a running star-ps, or [Serve].
//
// Every check has a pure half, which judges, and a half that measures.
//
// The offset between two clocks is the one of the exchange with the shortest
// round trip, because its error is at most half of that trip (D. L. Mills:
// Internet Time Synchronization: the Network Time Protocol. IEEE Transactions on
// Communications, 1991, section IV).
//
// An address that this host reaches need not be one that others reach: run the doctor on both ends.
// Bandwidth is that of one connection with checksums, as in training; on a busy link it is the remaining
// bandwidth.
package doctor
