package settings

import "testing"

// A default on loopback is one that the host has.
func TestAtHome(t *testing.T) {
	for _, c := range []struct{ def, home, want string }{
		{"127.0.0.1:7070", "127.0.0.1", "127.0.0.1:7070"},
		{"127.0.0.1:7070", "::1", "[::1]:7070"},
		{"127.0.0.1", "::1", "::1"},
		{":7070", "::1", ":7070"},
		{"off", "::1", "off"},
	} {
		if got := atHome(c.def, c.home); got != c.want {
			t.Errorf("%s at %s is %s, want %s", c.def, c.home, got, c.want)
		}
	}
	if got := atHome(7, "::1"); got != 7 {
		t.Errorf("7 is %d", got)
	}
}
