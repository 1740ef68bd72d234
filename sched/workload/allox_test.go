package workload

import (
	"errors"
	"strings"
	"testing"
)

func TestAlloXErrors(t *testing.T) {
	const good = "# 0\n1 0 1 5 queue1\nstage -1 32 13 185 1 2 19 1 -0.02 -0.03\n0\n"
	for _, c := range []struct{ text, want string }{
		{good + good, `line 5: job "0" occurs twice, first in line 1`},
		{strings.Replace(good, "# 0", "0", 1), `line 1: is "0": want # and a name`},
		{strings.Replace(good, "1 0 1 5", "1 7 1 5", 1), `line 2: the job is "7" here and "0" in the line before`},
		{strings.Replace(good, "5 queue1", "-5 queue1", 1), `line 2: "-5": want a number of at least 0`},
		{strings.Replace(good, "185", "NaN", 1), `line 3: "NaN": want a number`},
		{strings.Replace(good, " 19 ", " ", 1), `line 3: has 10 words: want 11`},
		{strings.Replace(good, "185 1 2", "185 4 2", 1), `line 3: wants 4 GPUs: want 1`},
		{strings.Replace(good, "stage -1", "stag -1", 1), `line 3: begins with "stag -1": want "stage -1"`},
		{strings.Replace(good, "stage -1", "stage 0", 1), `line 3: begins with "stage 0": want "stage -1"`},
		{strings.Replace(good, "stage -1", "stage one", 1), `line 3: begins with "stage one": want "stage -1"`},
		{strings.Replace(good, "\n1 0 1", "\n2 0 1", 1), `line 2: is "2 0 1 5 queue1": want 1 first, and 1 before SUBMIT`},
		{strings.Replace(good, "\n1 0 1", "\n1 0 3", 1), `line 2: is "1 0 3 5 queue1": want 1 first, and 1 before SUBMIT`},
		{strings.TrimSuffix(good, "0\n") + "1\n", `line 4: is "1": want 0: a job has one stage`},
		{strings.TrimSuffix(good, "0\n"), `line 4: is missing: want 0`},
		{"# 0\n", `line 2: is missing: want 1 ID 1 SUBMIT QUEUE`},
	} {
		if _, err := AlloXTrace(strings.NewReader(c.text)); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"# 0\na 0.0\n1.0\n-1.0\n# 1\na 0.0\n1.0\n", `line 6: queue "a" occurs twice`},
		{"# 0\na 0.0\n2.0\n", "line 3: the weight is 2.0: want 1"},
		{"# 0\na 0.0\n", "line 3: is missing: want WEIGHT"},
		{"# 0\na 0.0\n1.0\nx\n", `line 4: "x": want a number`},
	} {
		if _, err := AlloXQueues(strings.NewReader(c.text)); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
}
