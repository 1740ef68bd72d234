package election

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"star/internal/durable"
	"star/internal/exitcode"
)

// A member with a folder writes its votes and the entries that it receives to a file before it sends messages that
// depend on them. After a restart it is the same member, with its place, its log and its vote. The file is a list of
// records; each is on disk before the next one is written. When it has grown, it is rewritten, from the last snapshot
// on.

const (
	diskName   = "agreed"
	diskFormat = 1
	diskMagic  = "star agreed 1\n"
	recordHead = 8       // bytes: length and CRC-32C of what follows, big-endian
	maxRecord  = 1 << 30 // bytes; a longer record is an error
	rewriteAt  = 1 << 20 // bytes beyond twice the size after the last rewrite
)

// mark is the identity of the file's member.
type mark struct {
	Format  int                `json:"format"`
	Job     string             `json:"job"`
	Rank    int                `json:"rank"`
	Members []string           `json:"members"`
	Life    [processIDLen]byte `json:"life"`
	Turn    int                `json:"turn"`
	Lives   map[int]holder     `json:"lives,omitempty"` // of the other founders
}

// DiskError: a member cannot use what its folder contains, or cannot write to it.
type DiskError struct {
	Err  error
	Code int
}

func (e *DiskError) Error() string { return e.Err.Error() }
func (e *DiskError) Unwrap() error { return e.Err }

// ExitCode is that of a file that is damaged, of another member, or not writable.
func (e *DiskError) ExitCode() int { return e.Code }

// disk is the file of a member.
type disk struct {
	mu sync.Mutex // held while it is written: tests simulate a full disk with it
	durable.Log
	base int64 // bytes after the last rewrite
	mark mark
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openDisk opens the file of a member, or creates it, and returns its records. An incomplete record at the end is cut
// off: no message depended on it.
func openDisk(dir string, want mark) (d *disk, records []raftpb.Message, err error) {
	name := filepath.Join(dir, diskName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		d = &disk{Log: durable.Log{Path: name}, mark: want}
		return d, nil, d.rewrite(nil)
	} else if err != nil {
		return nil, nil, &DiskError{err, exitcode.Corrupt}
	}
	records, whole, err := parseDisk(name, text)
	if err != nil {
		return nil, nil, &DiskError{err, exitcode.Corrupt}
	}
	d = &disk{base: int64(whole)}
	for _, r := range records {
		if len(r.Context) > 0 {
			if err := json.Unmarshal(r.Context, &d.mark); err != nil {
				return nil, nil, &DiskError{fmt.Errorf("%s: the identity of the file: %w", name, err), exitcode.Corrupt}
			}
		}
	}
	switch m := d.mark; {
	case m.Format != diskFormat:
		err = &DiskError{fmt.Errorf("%s: format %d, but this program reads format %d", name, m.Format, diskFormat), exitcode.Corrupt}
	case m.Rank != want.Rank:
		err = &DiskError{fmt.Errorf("%s: the file is of rank %d, but this is rank %d: give each its own folder", name, m.Rank, want.Rank), exitcode.Disagree}
	case m.Job != want.Job || !slices.Equal(m.Members, want.Members):
		err = &DiskError{fmt.Errorf("%s: the file is of a member of %v, but this is one of %v: give the same list, in the same order, or another folder", name, m.Members, want.Members), exitcode.Disagree}
	}
	if err != nil {
		return nil, nil, err
	}
	log, err := durable.OpenLog(name, whole)
	if err != nil {
		return nil, nil, &DiskError{err, exitcode.Unwritable}
	}
	d.Log = *log
	return d, records, nil
}

// parseDisk reads a file of records, and the number of its bytes in complete ones. Damage before the last record is an
// error with its position.
func parseDisk(name string, text []byte) (records []raftpb.Message, whole int, err error) {
	if len(text) < len(diskMagic) || string(text[:len(diskMagic)]) != diskMagic {
		return nil, 0, fmt.Errorf("%s:byte 0: not the file of a member of a group (which begins with %q)", name, diskMagic)
	}
	for whole = len(diskMagic); len(text)-whole >= recordHead; {
		n, sum := int(binary.BigEndian.Uint32(text[whole:])), binary.BigEndian.Uint32(text[whole+4:])
		end := whole + recordHead + n
		if n <= maxRecord && end > len(text) { // incomplete
			return records, whole, nil
		}
		bad := func(why string) error {
			return fmt.Errorf("%s:byte %d: damaged: %s; remove the folder, and the member gets the state of the others", name, whole, why)
		}
		if n > maxRecord {
			return nil, 0, bad("a record with an invalid length")
		}
		body := text[whole+recordHead : end]
		if crc32.Checksum(body, castagnoli) != sum {
			if end == len(text) {
				return records, whole, nil
			}
			return nil, 0, bad("the checksum of a record is wrong")
		}
		var r raftpb.Message
		if err := r.Unmarshal(body); err != nil {
			return nil, 0, bad(err.Error())
		}
		records, whole = append(records, r), end
	}
	return records, whole, nil
}

func appendRecord(b []byte, r raftpb.Message) ([]byte, error) {
	body, err := r.Marshal()
	if err != nil {
		return nil, err
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	return append(b, body...), nil
}

// write appends a record and, with sync, returns when it is on disk. After an error the file is as before.
func (d *disk) write(r raftpb.Message, sync bool) error {
	b, err := appendRecord(nil, r)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Append(b, sync)
}

// rewrite replaces the file by one with the mark and the content of the store; nil: none yet.
func (d *disk) rewrite(store *raft.MemoryStorage) error {
	r := raftpb.Message{}
	if store != nil {
		r = whole(store)
	}
	var err error
	if r.Context, err = json.Marshal(d.mark); err != nil {
		return err
	}
	b, err := appendRecord([]byte(diskMagic), r)
	if err != nil {
		return err
	}
	if err := d.Replace(b); err != nil {
		return &DiskError{err, exitcode.Unwritable}
	}
	d.base = d.Size
	return nil
}

// record is what must be on disk before messages that depend on a Ready are sent.
func record(rd raft.Ready) (r raftpb.Message, any bool) {
	r = raftpb.Message{Entries: rd.Entries, Term: rd.HardState.Term, Vote: rd.HardState.Vote, Commit: rd.HardState.Commit}
	if !raft.IsEmptySnap(rd.Snapshot) {
		r.Snapshot = &rd.Snapshot
	}
	return r, len(rd.Entries) > 0 || !raft.IsEmptyHardState(rd.HardState) || r.Snapshot != nil
}

// whole is one record with the content of a store, from its snapshot on.
func whole(store *raft.MemoryStorage) (r raftpb.Message) {
	hard, _, _ := store.InitialState()
	r.Term, r.Vote, r.Commit = hard.Term, hard.Vote, hard.Commit
	if snap, _ := store.Snapshot(); !raft.IsEmptySnap(snap) {
		r.Snapshot = &snap
		first, _ := store.FirstIndex()
		last, _ := store.LastIndex()
		if first = max(first, snap.Metadata.Index+1); first <= last {
			r.Entries, _ = store.Entries(first, last+1, 1<<62)
		}
	}
	return r
}

// restore recreates a member's part from its records. Its promise counts from now.
func restore(id uint64, records []raftpb.Message, log *slog.Logger) (*core, error) {
	store, err := stored(records)
	if err != nil {
		return nil, err
	}
	snap, _ := store.Snapshot()
	c, err := coreOf(id, store, snap.Metadata.Index, log)
	if err != nil {
		return nil, err
	}
	if !raft.IsEmptySnap(snap) {
		if err := json.Unmarshal(snap.Data, &c.state); err != nil {
			return nil, fmt.Errorf("what was agreed on: %w", err)
		}
		c.conf, c.index, c.first = snap.Metadata.ConfState, snap.Metadata.Index, snap.Metadata.Index+1
	}
	c.bound = promise
	return c, nil
}

// stored is the store after all records.
func stored(records []raftpb.Message) (*raft.MemoryStorage, error) {
	store := raft.NewMemoryStorage()
	for i, r := range records {
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("%v", p)
				}
			}()
			if r.Snapshot != nil {
				if err := store.ApplySnapshot(*r.Snapshot); err != nil {
					return err
				}
			}
			if err := store.Append(r.Entries); err != nil {
				return err
			}
			if hard := (raftpb.HardState{Term: r.Term, Vote: r.Vote, Commit: r.Commit}); !raft.IsEmptyHardState(hard) {
				return store.SetHardState(hard)
			}
			return nil
		}()
		if err != nil {
			return nil, fmt.Errorf("record %d does not follow the ones before: %w", i, err)
		}
	}
	return store, nil
}

// ReadDir is the state that the member of a folder (Config.Dir) knows to be agreed on, whether or not it runs: the
// last note, nil if there was none, and the additions to it, in order. Other members may have agreed on more since.
// Errors are *DiskError.
func ReadDir(dir string) (note []byte, added [][]byte, err error) {
	name := filepath.Join(dir, diskName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &DiskError{err, exitcode.Missing}
	} else if err != nil {
		return nil, nil, &DiskError{err, exitcode.Corrupt}
	}
	records, _, err := parseDisk(name, text)
	if err != nil {
		return nil, nil, &DiskError{err, exitcode.Corrupt}
	}
	state := agreed{Rank: -1}
	err = func() error {
		store, err := stored(records)
		if err != nil {
			return err
		}
		hard, _, _ := store.InitialState()
		if snap, _ := store.Snapshot(); !raft.IsEmptySnap(snap) {
			if err := json.Unmarshal(snap.Data, &state); err != nil {
				return fmt.Errorf("what was agreed on: %w", err)
			}
		}
		first, _ := store.FirstIndex()
		last, _ := store.LastIndex()
		if last = min(last, hard.Commit); first > last {
			return nil
		}
		entries, err := store.Entries(first, last+1, 1<<62)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if len(e.Data) == 0 || e.Type != raftpb.EntryNormal {
				continue
			}
			var it entry
			if err := json.Unmarshal(e.Data, &it); err != nil {
				return fmt.Errorf("entry %d: %w", e.Index, err)
			}
			state.apply(it)
		}
		return nil
	}()
	if err != nil {
		return nil, nil, &DiskError{fmt.Errorf("%s: damaged: %w", name, err), exitcode.Corrupt}
	}
	return state.Note, state.Added, nil
}
