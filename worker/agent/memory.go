package agent

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"star/allreduce"
)

// maxMemory bounds the memory of a group, in bytes: more is not an address.
const maxMemory = 1 << 46

// descriptorSpace is the space for the descriptors of one frame.
var descriptorSpace = unix.CmsgSpace(4 * 4)

// descriptors returns the descriptors that came with a frame.
func descriptors(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}

// mapMemory maps size bytes of fd, which stays open.
func mapMemory(fd int, size uint64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if size == 0 || size > maxMemory || st.Size < int64(size) {
		return nil, fmt.Errorf("the group's memory has %d bytes and its file %d", size, st.Size)
	}
	keepSize(fd)
	m, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes of the group's memory: %w; see ulimit -v", size, err)
	}
	return m, nil
}

// within returns bytes from offset on.
func within(memory []byte, offset, size uint64) ([]byte, error) {
	if offset > uint64(len(memory)) || size > uint64(len(memory))-offset {
		return nil, fmt.Errorf("%d bytes from byte %d on are outside the group's memory of %d bytes", size, offset, len(memory))
	}
	return memory[offset : offset+size], nil
}

// elements is a view of count elements at offset.
func elements[T allreduce.Element](memory []byte, offset, count uint64) ([]T, error) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	if count > maxMemory {
		return nil, fmt.Errorf("%d elements are outside the group's memory of %d bytes", count, len(memory))
	}
	b, err := within(memory, offset, count*size)
	switch {
	case err != nil:
		return nil, err
	case offset%size != 0:
		return nil, fmt.Errorf("elements of %d bytes from byte %d on: the offset must be a multiple of their size", size, offset)
	case count == 0:
		return nil, nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), count), nil
}
