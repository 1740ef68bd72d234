package coord

import "testing"

func TestOtherTensor(t *testing.T) {
	a, b, c := Tensor{"a", []int{2, 3}, 0}, Tensor{"b", []int{4}, 6}, Tensor{"b", []int{5}, 6}
	job := &Enrolment{Layout: []Tensor{a, b}, Buffers: []Tensor{{Name: "mean", Shape: []int{4}}}}
	for _, x := range []struct {
		e    Enrolment
		want string
	}{
		{*job, ""},
		{Enrolment{Layout: []Tensor{a, c}, Buffers: job.Buffers}, "; the first difference is b [5], in the job's b [4]"},
		{Enrolment{Layout: []Tensor{a}, Buffers: job.Buffers}, "; the job's has b [4], this one has not"},
		{Enrolment{Layout: []Tensor{a, b, c}, Buffers: job.Buffers}, "; this one has b [5], the job's has not"},
		{Enrolment{Layout: job.Layout}, "; the job's has mean [4], this one has not"},
	} {
		if got := x.e.otherTensor(job); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
}
