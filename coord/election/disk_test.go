package election

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"star/job"
	"star/transport"
)

// kept is members with folders on a network in memory.
type kept struct {
	*bench
	dirs []string
}

func newKept(t *testing.T, k int) *kept {
	b := &kept{bench: &bench{t: t, net: new(transport.Pipe), members: make([]*Member, k), stops: make([]context.CancelFunc, k)}}
	for range k {
		l, err := b.net.Listen(":0")
		if err != nil {
			t.Fatal(err)
		}
		b.addrs, b.ends, b.dirs = append(b.addrs, l.Addr()), append(b.ends, make(chan error, 1)), append(b.dirs, t.TempDir())
		l.Close()
	}
	for r := range k {
		b.begin(r)
	}
	return b
}

// begin starts a member, or starts it again.
func (b *kept) begin(rank int) {
	b.t.Helper()
	b.setup = func(c *Config) { c.Dir = b.dirs[c.Rank] }
	l, err := b.net.Listen(b.addrs[rank])
	if err != nil {
		b.t.Fatal(err)
	}
	b.bench.start(rank, l)
}

// All members end, and those that are started again know what was agreed on: a majority is enough, and a member that
// lost its folder gets it from the others.
func TestDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newKept(t, 3)
		defer b.close()
		first := b.await(5 * time.Second)
		if err := first.SetNote([]byte("note")); err != nil {
			t.Fatal(err)
		}
		for _, more := range []string{"a", "b"} {
			if err := first.Add([]byte(more)); err != nil {
				t.Fatal(err)
			}
		}
		for r := range 3 {
			b.end(r)
		}
		if note, added, err := ReadDir(b.dirs[first.Rank]); err != nil || string(note) != "note" || string(bytes.Join(added, []byte(","))) != "a,b" {
			t.Errorf("the folder of who led has %q, %q, %v", note, added, err)
		}
		b.begin(1)
		b.begin(2)
		second := b.await(10 * time.Second)
		if got := string(second.Note) + "," + string(bytes.Join(second.Added, []byte(","))); got != "note,a,b" || second.Term <= first.Term {
			t.Errorf("%q in term %d after %d", got, second.Term, first.Term)
		}
		b.dirs[0] = t.TempDir()
		b.begin(0)
		time.Sleep(10 * time.Second) // it is given the place, and what there is
		if err := second.Add([]byte("c")); err != nil {
			t.Fatal(err)
		}
		b.end(second.Rank) // the other one and the new one are a majority now
		third := b.await(10 * time.Second)
		if got := string(bytes.Join(third.Added, []byte(","))); got != "a,b,c" {
			t.Errorf("%q", got)
		}
		for r := range 3 { // and again, from the disk that it had later
			if r != second.Rank {
				b.end(r)
			}
		}
		for r := range 3 {
			if r != second.Rank {
				b.begin(r)
			}
		}
		if r := b.await(20 * time.Second); string(bytes.Join(r.Added, []byte(","))) != "a,b,c" {
			t.Errorf("%q", r.Added)
		}
	})
}

// A leader that cannot write stops leading; another member leads, with all that was agreed on. When there is room again
// the first one takes part.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	synctest.Test(t, func(t *testing.T) {
		b := newKept(t, 3)
		defer b.close()
		first := b.await(5 * time.Second)
		if err := first.Add([]byte("a")); err != nil {
			t.Fatal(err)
		}
		d := b.members[first.Rank].disk
		d.mu.Lock()
		was, size := d.File, d.Size
		d.File = full
		d.mu.Unlock()
		if err := first.Add([]byte("b")); err == nil {
			t.Error("agreed on what could not be written")
		}
		if err := b.members[first.Rank].Full(); err == nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
			t.Errorf("%v", err)
		}
		second := b.await(10 * time.Second)
		if second.Rank == first.Rank || len(second.Added) == 0 || string(second.Added[0]) != "a" {
			t.Errorf("member %d has %q", second.Rank, second.Added)
		}
		d.mu.Lock()
		if d.Size != size {
			t.Errorf("%d bytes after %d", d.Size, size)
		}
		d.File = was
		d.mu.Unlock()
		b.end(3 - first.Rank - second.Rank) // now it is needed
		if err := second.Add([]byte("c")); err != nil {
			t.Error(err)
		}
		if err := b.members[first.Rank].Full(); err != nil {
			t.Error(err)
		}
	})
}

// What is wrong with a file is named with its place. Half a record at the end is nothing.
func TestBadDisk(t *testing.T) {
	own := mark{Format: diskFormat, Job: "job", Rank: 1, Members: []string{"a:1", "b:1", "c:1"}}
	make := func() (dir string, text []byte) {
		dir = t.TempDir()
		d, _, err := openDisk(dir, own)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			if err := d.write(raftpb.Message{Term: i + 1, Vote: 2, Entries: []raftpb.Entry{{Index: i + 1, Term: 1, Data: []byte("what was agreed on")}}}, true); err != nil {
				t.Fatal(err)
			}
		}
		d.Close()
		text, err = os.ReadFile(filepath.Join(dir, diskName))
		if err != nil {
			t.Fatal(err)
		}
		return dir, text
	}
	dir, text := make()
	for _, cut := range []int{1, 7, recordHead + 3} {
		os.WriteFile(filepath.Join(dir, diskName), text[:len(text)-cut], 0o600)
		d, records, err := openDisk(dir, own)
		if err != nil || len(records) != 3 || records[2].Term != 2 {
			t.Fatalf("%d bytes less: %d records, %v", cut, len(records), err)
		}
		if err := d.write(raftpb.Message{Term: 9}, true); err != nil {
			t.Fatal(err)
		}
		d.Close()
		if _, records, err := openDisk(dir, own); err != nil || len(records) != 4 || records[3].Term != 9 {
			t.Errorf("%d bytes less, and written on: %d records, %v", cut, len(records), err)
		}
	}
	other := func(f func(*mark)) mark {
		m := own
		f(&m)
		return m
	}
	for name, x := range map[string]struct {
		spoil func([]byte) []byte
		want  mark
		code  int
		says  string
	}{
		"no such file":    {func([]byte) []byte { return []byte("nonsense of some length") }, own, 65, "agreed:byte 0: "},
		"a bit":           {func(b []byte) []byte { b[len(diskMagic)+recordHead+2] ^= 1; return b }, own, 65, "agreed:byte 14: damaged"},
		"a length":        {func(b []byte) []byte { b[len(diskMagic)] = 0xff; return b }, own, 65, "a record with an invalid length"},
		"of another rank": {bytes.Clone, other(func(m *mark) { m.Rank = 2 }), 78, "is of rank 1, but this is rank 2"},
		"another list":    {bytes.Clone, other(func(m *mark) { m.Members = []string{"b:1", "a:1", "c:1"} }), 78, "give the same list"},
	} {
		dir, text := make()
		os.WriteFile(filepath.Join(dir, diskName), x.spoil(text), 0o600)
		if _, _, err := ReadDir(dir); x.code == 65 && (job.ExitCode(err) != 65 || !strings.Contains(err.Error(), x.says)) || x.code != 65 && err != nil {
			t.Errorf("%s: read from outside: %v", name, err)
		}
		if _, _, err := openDisk(dir, x.want); job.ExitCode(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: exit code %d, %v", name, job.ExitCode(err), err)
		}
	}
}

// A member that is started again gives no other candidate the vote that it gave before.
func TestTheVoteIsKept(t *testing.T) {
	c, err := newCore(1, 3, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := &player{core: c}
	p.keeps()
	asks := func(c *core, candidate int, now time.Duration) (voted bool) {
		err := c.step(founderID(candidate), raftpb.Message{Type: raftpb.MsgVote, From: founderID(candidate), To: 2, Term: 5, Index: 1, LogTerm: 1}, now)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.ready()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out {
			voted = voted || m.Type == raftpb.MsgVoteResp && !m.Reject
		}
		return voted
	}
	if !asks(c, 0, promise) {
		t.Fatal("it votes for nobody")
	}
	again, err := restore(c.self, p.disk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if asks(again, 0, lease) {
		t.Error("it votes while a leader whom it answered before may rely on it")
	}
	if asks(again, 2, promise) {
		t.Error("it has voted twice in a term")
	}
	if !asks(again, 0, promise) {
		t.Error("it does not say again whom it has voted for")
	}
}
