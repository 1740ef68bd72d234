package replica_test

import (
	"reflect"
	"testing"

	"star/ps/replica"
)

func table() *replica.Table {
	return replica.NewTable(2, []replica.View{{Term: 1, Primary: 0, Followers: []int{1}}, {Term: 1, Primary: 1, Followers: []int{2}}})
}

func TestGradientsThatLackedOnlyTheLostServer(t *testing.T) {
	tab, g := table(), replica.Gradient{Worker: 3, Step: 7}
	if tab.Stored(0, 1, g, 2.5) != nil || tab.Stored(0, 2, g, 2.5) != nil {
		t.Error("whole without the primary")
	}
	cs := tab.Lost(0)
	want := []replica.Change{{
		Shard: 0, View: replica.View{Term: 2, Primary: 1, Followers: []int{}}, Promoted: true,
		Whole: []replica.Whole{{Gradient: g, Sums: []replica.Sum{{Server: 1, Sum2: 2.5}}}},
	}}
	if !reflect.DeepEqual(cs, want) {
		t.Errorf("got %+v, want %+v", cs, want)
	}
	if got := tab.Short(); !reflect.DeepEqual(got, []int{0}) {
		t.Errorf("short of copies: %v", got)
	}
	if cs = tab.Lost(1); !cs[0].Gone || cs[1].View.Primary != 2 || cs[1].View.Term != 2 {
		t.Errorf("got %+v", cs)
	}
}

func TestACopyThatIsComing(t *testing.T) {
	tab, g := table(), replica.Gradient{Worker: 1}
	tab.Offer(5)
	if term, err := tab.Join(0, 3); term != 2 || err != nil {
		t.Fatal(term, err)
	}
	if _, err := tab.Join(0, 2); err == nil {
		t.Error("two at once")
	}
	tab.Stored(0, 0, g, 0)
	if tab.Stored(0, 1, g, 0) != nil {
		t.Error("whole without the one that is coming")
	}
	want := []replica.Sum{{Server: 0}, {Server: 1}, {Server: 3, Sum2: 2}}
	if got := tab.Stored(0, 3, g, 2); !reflect.DeepEqual(got, want) {
		t.Errorf("when all have it: %v, want %v", got, want)
	}
	v, err := tab.Joined(0, 4)
	if err != nil || v.Term != 2 || !reflect.DeepEqual(v.Followers, []int{1, 3}) {
		t.Fatalf("%+v, %v", v, err)
	}
	tab.Held(0, 1, 1, 5)
	tab.Held(1, 2, 1, 5)
	tab.Held(0, 3, 1, 5) // of an earlier life of server 3
	if got := tab.Ready(); got != 4 {
		t.Errorf("ready %d, of which server 3 holds 4", got)
	}
	tab.Held(0, 3, 2, 9) // more than there is
	if got := tab.Ready(); got != 5 {
		t.Errorf("ready %d, of 5", got)
	}
	tab.Held(0, 0, 1, 5)
	if got := tab.Acked(); got != 0 {
		t.Errorf("acknowledged %d, of which server 1 holds nothing of shard 1", got)
	}
	if _, err := tab.Joined(1, 0); err == nil {
		t.Error("nobody was getting a copy")
	}
	if cs := tab.Lost(3); len(cs) != 1 || cs[0].View.Term != 3 || cs[0].Promoted {
		t.Errorf("got %+v", cs)
	}
	tab.Join(0, 2)
	tab.Stored(0, 0, g, 1)
	tab.Stored(0, 1, g, 1)
	if cs := tab.Lost(2); !cs[0].Gave || cs[0].View.Term != 3 || len(cs[0].Whole) != 1 {
		t.Errorf("got %+v", cs)
	}
}

func TestWhoAnswers(t *testing.T) {
	v := replica.View{Term: 2, Primary: 0, Followers: []int{1}}
	p, f := replica.NewCopy(0, v, 3), replica.NewCopy(1, v, 3)
	for _, c := range []struct {
		name string
		got  any
		want any
	}{
		{"the primary is asked", p.Read(2), replica.Yes},
		{"by a worker that is behind", p.Read(1), replica.Yes},
		{"a follower is asked", f.Read(2), replica.Later},
		{"a follower gets a gradient", f.Write(2), replica.Yes},
		{"a follower hears what is for primaries", f.Fire(0, 4, replica.ToPrimaries), replica.Others},
		{"a primary hears what is for followers", p.Fire(0, 4, replica.ToFollowers), replica.Others},
		{"a follower hears", f.Fire(0, 4, replica.ToFollowers), replica.New},
		{"again", f.Fire(0, 4, replica.ToFollowers), replica.Known},
		{"too much", f.Fire(0, 6, replica.ToFollowers), replica.NotYet},
		{"of a higher term", p.Hear(3), replica.Later},
		{"the old primary is asked", p.Read(2), replica.Later},
		{"the old primary gets a gradient", p.Write(2), replica.Later},
		{"the follower hears of it", f.Hear(3), replica.Later},
		{"and is promoted", f.Take(replica.View{Term: 3, Primary: 1}), true},
		{"then it answers", f.Read(3), replica.Yes},
		{"an old view", f.Take(v), false},
		{"hears what is for primaries, too", f.Fire(0, 5, replica.ToPrimaries), replica.New},
		{"claims", f.Claim(1, 7), replica.Claim{Server: 1, Shard: 7, View: replica.View{Term: 3, Primary: 1}, Seq: 5}},
		{"and hears nobody before", f.Fire(0, 6, replica.ToPrimaries), replica.Stale},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

func TestRecover(t *testing.T) {
	old := replica.View{Term: 4, Primary: 0, Followers: []int{1, 2}}
	now := replica.View{Term: 5, Primary: 1, Followers: []int{2}}
	tab, from, to, err := replica.Recover(3, 2, 1, []replica.Claim{{0, 0, old, 9}, {2, 0, old, 7}, {1, 0, now, 8}})
	if err != nil || from != 7 || to != 8 {
		t.Fatal(from, to, err)
	}
	if v := tab.View(0); v.Primary != 1 || !reflect.DeepEqual(v.Followers, []int{2}) || v.Term != 3<<32+1 {
		t.Errorf("%+v: server 0 was left behind", v)
	}
	if _, _, _, err := replica.Recover(3, 2, 2, []replica.Claim{{0, 0, old, 9}}); err == nil {
		t.Error("nobody claims shard 1")
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name      string
		want      int
		servers   []replica.Server
		primaries []int
		followers [][]int
	}{
		{"two", 2, []replica.Server{{Host: "a"}, {Host: "a"}}, []int{0, 1}, [][]int{{1}, {0}}},
		{"another host first", 2, []replica.Server{{Host: "a"}, {Host: "a"}, {Host: "b"}, {Host: "b"}}, []int{0, 1, 2, 3}, [][]int{{2}, {3}, {0}, {1}}},
		{"a spare one last", 2, []replica.Server{{Host: "a"}, {Host: "a"}, {Host: "a", Spare: true}}, []int{0, 1}, [][]int{{1}, {0}}},
		{"but for its host", 2, []replica.Server{{Host: "a"}, {Host: "a"}, {Host: "b", Spare: true}}, []int{0, 1}, [][]int{{2}, {2}}},
		{"three", 3, []replica.Server{{Host: "a"}, {Host: "b"}, {Host: "c"}, {Host: "d"}}, []int{0, 1}, [][]int{{2, 1}, {3, 2}}},
	} {
		vs, err := replica.Place(c.want, c.servers, c.primaries)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for i, v := range vs {
			if v.Primary != c.primaries[i] || !reflect.DeepEqual(v.Followers, c.followers[i]) {
				t.Errorf("%s: shard %d: %+v, want %v", c.name, i, v, c.followers[i])
			}
		}
	}
	if _, err := replica.Place(3, make([]replica.Server, 2), []int{0}); err == nil {
		t.Error("three copies on two servers")
	}
}
