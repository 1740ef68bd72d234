package chaos

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Go program reads the time with a function that the kernel maps into its memory (vdso(7)). To shift the wall clock
// of one process, Jump replaces that function, as TimeChaos of Chaos Mesh does. The replacement makes the system call
// and adds seconds to CLOCK_REALTIME. It overwrites a function that Go does not use, and the first five bytes of
// clock_gettime jump to it.
var offClock = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, 228 (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, 0x75, 0x0b, // test edi, edi; jne the end (not CLOCK_REALTIME)
	0x85, 0xc0, 0x75, 0x07, // test eax, eax; jne the end (an error)
	0x48, 0x81, 0x06, 0, 0, 0, 0, // add qword [rsi], the seconds
	0xc3, // ret
}

const (
	offsetAt  = 18   // of the seconds in offClock
	jump      = 0xe9 // followed by a 32-bit offset from the next instruction
	jumpBytes = 5
)

// stops is the longest time that a process may take to stop.
const stops = time.Second

// Jump sets the wall clock of a child of this process off by a number of whole seconds, until the next call; its other
// clocks are unchanged. The child is stopped for a moment: no other process may stop or continue it during the call.
func Jump(pid int, off time.Duration) error {
	seconds := off / time.Second
	if seconds < math.MinInt32 || seconds > math.MaxInt32 {
		return fmt.Errorf("a jump of %v: want at most 68 years", off)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	entry, room, err := clockOf(pid, mem)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	if !stopped(pid) {
		defer syscall.Kill(pid, syscall.SIGCONT)
	}
	for end := time.Now().Add(stops); ; time.Sleep(time.Millisecond) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		if stopped(pid) && !within(pid, entry+1, entry+jumpBytes) {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d did not stand still within %v", pid, stops)
		}
		if stopped(pid) { // inside the bytes to be replaced
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	code := bytes.Clone(offClock)
	binary.LittleEndian.PutUint32(code[offsetAt:], uint32(int32(seconds)))
	to := binary.LittleEndian.AppendUint32([]byte{jump}, uint32(int32(room-entry-jumpBytes)))
	for _, w := range []struct {
		at   int64
		text []byte
	}{{room, code}, {entry, to}} {
		if _, err := mem.WriteAt(w.text, w.at); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return nil
}

// CanJump returns the reason why Jump does not work here.
func CanJump() error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, room, err := clockOf(os.Getpid(), mem)
	if err != nil {
		return err
	}
	same := make([]byte, 1)
	if _, err := mem.ReadAt(same, room); err != nil {
		return err
	}
	_, err = mem.WriteAt(same, room)
	return err
}

// clockOf is the address of clock_gettime in a process, and that of gettimeofday, which offClock overwrites.
func clockOf(pid int, mem *os.File) (entry, room int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	var from, to int64
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "[vdso]") {
			if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
				return 0, 0, fmt.Errorf("its map of memory: %q: %w", lines.Text(), err)
			}
		}
	}
	if to <= from || to-from > 1<<20 {
		return 0, 0, errors.New("the kernel has put no functions into its memory")
	}
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		return 0, 0, err
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, 0, fmt.Errorf("what the kernel has put into its memory: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, fmt.Errorf("what the kernel has put into its memory: %w", err)
	}
	for _, s := range symbols {
		switch at := from + int64(s.Value); {
		case s.Value > uint64(len(image)-len(offClock)):
		case s.Name == "__vdso_clock_gettime" && s.Size >= jumpBytes:
			entry = at
		case s.Name == "__vdso_gettimeofday" && s.Size >= uint64(len(offClock)):
			room = at
		}
	}
	if entry == 0 || room == 0 {
		return 0, 0, errors.New("the kernel has put no clock_gettime into its memory, or no gettimeofday")
	}
	return entry, room, nil
}

// tasks reads a file of each thread of a process.
func tasks(pid int, name string) (texts []string) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", pid, name))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		texts = append(texts, string(b))
	}
	return texts
}

// stopped reports whether all threads of a process are stopped.
func stopped(pid int) bool {
	texts := tasks(pid, "stat")
	for _, t := range texts {
		if _, rest, _ := strings.Cut(t, ") "); !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return len(texts) > 0
}

// within reports whether a thread of a stopped process is at an address in [from, to), or whether that is unknown.
func within(pid int, from, to int64) bool {
	for _, t := range tasks(pid, "syscall") {
		fields := strings.Fields(t)
		if len(fields) < 2 {
			return true
		}
		at, err := strconv.ParseUint(fields[len(fields)-1], 0, 64)
		if err != nil || int64(at) >= from && int64(at) < to {
			return true
		}
	}
	return false
}
