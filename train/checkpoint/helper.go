package checkpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"star/internal/exitcode"
)

// HelperName is the program that reaches object stores: it is looked for beside the running program, then in PATH.
// It is a program of its own so that the libraries of the stores are no part of every other one
// (docs/decisions/0011-buckets-are-reached-by-a-helper.md).
const HelperName = "star-bucket"

// helperPatience is how long the helper may take without reading or writing a byte.
var helperPatience = 2 * time.Minute

// maxSaid bounds what is quoted of the helper's last line, in bytes.
const maxSaid = 600

// maxChunk bounds what is sent to the helper at once, in bytes.
const maxChunk = 1 << 20

// helper is an object store. Each of its operations is one run of HelperName:
//
//	put ADDRESS                 standard input, as chunks (below), becomes an object
//	get ADDRESS OFFSET LENGTH   a part of an object, to standard output; LENGTH -1: to its end
//	size ADDRESS                of an object in bytes, to standard output, in decimal
//	list ADDRESS                what lies two levels below, to standard output: lines of JSON {"folder", "name"}
//	remove ADDRESS              the manifest, then everything below
//
// A chunk is its length in four bytes, big-endian, and that many bytes. A chunk of length 0 ends the
// data: data that end without it must not become an object, because the writer was killed. Exit code
// 66: no such object. 77: the store rejects the credentials. 69: the store does not answer, or
// fails. The error is the last line of standard error.
type helper struct{}

// call is one run of the helper.
type call struct {
	cmd    *exec.Cmd
	what   string
	said   bytes.Buffer
	ctx    context.Context // ends with errHalted when its patience does
	cancel context.CancelCauseFunc
	patience
}

var errHalted = errors.New("halted")

// patience ends a call that has come to a halt.
type patience struct{ timer *time.Timer }

func (p patience) moved() { p.timer.Reset(helperPatience) }

func (helper) begin(args ...string) (*call, error) {
	path, err := helperPath()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &call{cmd: exec.CommandContext(ctx, path, args...), what: args[0], ctx: ctx, cancel: cancel}
	c.cmd.Stderr = &c.said
	c.cmd.WaitDelay = 5 * time.Second
	c.timer = time.AfterFunc(helperPatience, func() { cancel(errHalted) })
	return c, nil
}

// helperPath finds the program.
func helperPath() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), HelperName); runs(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(HelperName)
	if err != nil {
		return "", fmt.Errorf("%s is needed for addresses like s3://bucket/prefix, and is neither beside this program nor in PATH: build it with make star-bucket: %w", HelperName, err)
	}
	return path, nil
}

// Check reports whether a place is valid; for an address, the program that reaches it must exist.
func Check(place string) error {
	if !isAddress(place) {
		return nil
	}
	_, err := helperPath()
	return err
}

func runs(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// end waits for the helper and makes an error of how it ended.
func (c *call) end() error {
	err := c.cmd.Wait()
	c.timer.Stop()
	halted := context.Cause(c.ctx) == errHalted
	c.cancel(nil)
	if err == nil {
		return nil
	}
	var x *exec.ExitError
	if errors.As(err, &x) && x.ExitCode() == exitcode.Missing {
		return fs.ErrNotExist
	}
	if halted {
		return &storeError{ErrUnreachable, fmt.Sprintf("%s %s has not moved a byte for %v, and was ended: look at the way to the object store", HelperName, c.what, helperPatience)}
	}
	why := err.Error()
	if lines := strings.Split(strings.TrimSpace(c.said.String()), "\n"); lines[len(lines)-1] != "" {
		why = lines[len(lines)-1]
		why = why[:min(len(why), maxSaid)]
	}
	why = fmt.Sprintf("%s %s: %s", HelperName, c.what, why)
	if x != nil {
		switch x.ExitCode() {
		case exitcode.Refused:
			return &storeError{ErrRefused, why}
		case exitcode.Lost:
			return &storeError{ErrUnreachable, why}
		}
	}
	return errors.New(why)
}

// storeError is what the helper says of an object store.
type storeError struct {
	kind error
	said string
}

func (e *storeError) Error() string { return e.said }
func (e *storeError) Unwrap() error { return e.kind }

func (h helper) put(dir, name string, write func(io.Writer) error) error {
	c, err := h.begin("put", Join(dir, name))
	if err != nil {
		return err
	}
	in, err := c.cmd.StdinPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		c.cancel(nil)
		c.timer.Stop()
		return err
	}
	wrote := write(chunks{in, c.patience})
	if wrote == nil {
		_, wrote = in.Write(make([]byte, 4))
	}
	in.Close()
	c.moved()
	if err := c.end(); err != nil {
		return err // says more than that its end of the pipe is closed
	}
	return wrote
}

// chunks cuts what is written into chunks.
type chunks struct {
	w io.Writer
	patience
}

func (c chunks) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		k := min(len(b), maxChunk)
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(k))
		if _, err := c.w.Write(length[:]); err != nil {
			return n, err
		}
		m, err := c.w.Write(b[:k])
		n += m
		if err != nil {
			return n, err
		}
		c.moved()
		b = b[k:]
	}
	return n, nil
}

// Chunks reads what [HelperName] is sent by put: the bytes of the object, io.EOF after the chunk that says that
// these were all, and io.ErrUnexpectedEOF if that never comes.
func Chunks(r io.Reader) io.Reader { return &unchunk{r: bufio.NewReader(r)} }

type unchunk struct {
	r    *bufio.Reader
	left int
	err  error
}

func (u *unchunk) Read(b []byte) (int, error) {
	for u.left == 0 && u.err == nil {
		var length [4]byte
		if _, err := io.ReadFull(u.r, length[:]); err != nil {
			u.err = io.ErrUnexpectedEOF
			break
		}
		n := binary.BigEndian.Uint32(length[:])
		switch {
		case n == 0:
			u.err = io.EOF
		case n > maxChunk:
			u.err = fmt.Errorf("checkpoint: a chunk of %d bytes: at most %d are sent at once", n, maxChunk)
		}
		u.left = int(n)
	}
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.r.Read(b[:min(len(b), u.left)])
	u.left -= n
	if err != nil {
		u.err = io.ErrUnexpectedEOF
		return n, u.err
	}
	return n, nil
}

func (h helper) get(dir, name string, offset, length int64) (io.ReadCloser, error) {
	c, err := h.begin("get", Join(dir, name), strconv.FormatInt(offset, 10), strconv.FormatInt(length, 10))
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		c.cancel(nil)
		c.timer.Stop()
		return nil, err
	}
	return &download{c: c, r: out}, nil
}

// download is the output of a get. Its end is that of the helper, so that what was cut short is an error.
type download struct {
	c     *call
	r     io.Reader
	ended bool
	err   error
}

func (d *download) Read(b []byte) (int, error) {
	if d.ended {
		return 0, d.err
	}
	n, err := d.r.Read(b)
	d.c.moved()
	if err != nil {
		d.ended, d.err = true, err
		if e := d.c.end(); e != nil {
			d.err = e
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, d.err
}

func (d *download) Close() error {
	if !d.ended {
		d.ended, d.err = true, os.ErrClosed
		d.c.cancel(nil)
		d.c.end() // it was cut short on purpose
	}
	return nil
}

// output is what a short run of the helper says.
func (h helper) output(args ...string) ([]byte, error) {
	c, err := h.begin(args...)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	c.cmd.Stdout = &out
	if err := c.cmd.Start(); err != nil {
		c.cancel(nil)
		c.timer.Stop()
		return nil, err
	}
	err = c.end()
	return out.Bytes(), err
}

func (h helper) size(dir, name string) (int64, error) {
	text, err := h.output("size", Join(dir, name))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s size says %q", HelperName, clip(string(text)))
	}
	return n, nil
}

func (h helper) list(dir string) ([]folder, error) {
	text, err := h.output("list", dir)
	if err != nil {
		return nil, err
	}
	return parseListing(text)
}

// Entry is a line of what [HelperName] says of a list: an object called Folder/Name below the address.
type Entry struct {
	Folder string `json:"folder"`
	Name   string `json:"name"`
}

func parseListing(text []byte) ([]folder, error) {
	var found []folder
	where := map[string]int{}
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var e Entry
		if err := d.Decode(&e); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s list: %w", HelperName, err)
		}
		i, ok := where[e.Folder]
		if !ok {
			i = len(found)
			where[e.Folder] = i
			found = append(found, folder{name: e.Folder})
		}
		found[i].files = append(found[i].files, e.Name)
	}
}

func (h helper) remove(dir string) error {
	_, err := h.output("remove", dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
