// Package vector makes the memory of long vectors, as parameters and gradients are.
//
// A loop over a long vector goes through a page of 4 KiB every thousand elements, and so does a kernel that hands its
// memory to a socket or to another process: for each page it looks up where that is and counts its users. Where Linux
// gives huge pages on request (transparent_hugepage is madvise or always), Make asks: there are 512 times fewer.
package vector

// Make is make([]T, n), in huge pages where n elements fill one and the system has them. They are allocated as they are
// touched. So that the vector can begin with one, the heap counts one more than the elements need; it is not used.
func Make[T any](n int) []T { return makeHuge[T](n) }

// Huge reports whether b is in huge pages, as far as one can know: Make has asked for them, or the system gives them to
// all.
func Huge(b []byte) bool { return isHuge(b) }
