// Package transport is the wire protocol: frames, messages and connections.
//
// A frame is a fixed binary prefix with two checksums, a small msgpack header
// (package transport/wire) and a raw payload. Payloads are gradients and parameters, little-
// endian float32, written from and read into the caller's own memory: nothing
// is copied or allocated on the way. docs/protocol.md describes every message;
// testdata/vectors.txt has their bytes.
//
// The layers, from below:
//
//   - wire: messages and their headers. Pure.
//   - frame.go: the prefix, limits and checksums. Pure.
//   - stream.go: a Conn over any stream.
//   - tcp.go, tls.go, pipe.go: streams: TCP, TLS 1.3, and memory for tests.
//   - handshake.go: Open, on the side that dials; Serve, on the side that listens.
//
// Rules for callers: a Conn has one writer at a time, and one reader beside it.
// Of its methods only Close, Traffic and Peer may be called concurrently. A Frame's
// header is borrowed until the next Recv. The payload of every frame must be read or
// discarded. A token is sent in clear text unless TLS is on.
//
// References:
//   - CRC-32C: G. Castagnoli et al., Optimization of Cyclic Redundancy-Check
//     Codes with 24 and 32 Parity Bits. IEEE Transactions on Communications, 1993.
package transport
