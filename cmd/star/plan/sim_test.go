package plan

import (
	"slices"
	"strings"
	"testing"

	"star/cmd/internal/cli"
)

// Lists that pflag has cut at their commas are put together again, where a comma is inside a name.
func TestSimBaselines(t *testing.T) {
	for _, want := range [][]string{
		{"ssgd", "ssgd tree=0(1,2),3(4,5)", "groups=0,1/2,3", "x=3", "auto"},
		{"zeno++:rho=0.01,every=2", "lgc"},
	} {
		if got := cli.SimBaselines(strings.Split(strings.Join(want, ","), ",")); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
