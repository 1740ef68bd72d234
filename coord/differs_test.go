package coord

import "testing"

func TestOtherTensor(t *testing.T) {
	a, b, c := Tensor{Name: "a", Shape: []int{2, 3}}, Tensor{Name: "b", Shape: []int{4}, Offset: 6}, Tensor{Name: "b", Shape: []int{5}, Offset: 6}
	job := &Enrolment{Layout: []Tensor{a, b}, Buffers: []Tensor{{Name: "mean", Shape: []int{4}}}}
	for _, x := range []struct {
		e    Enrolment
		want string
	}{
		{*job, ""},
		{Enrolment{Layout: []Tensor{a, c}, Buffers: job.Buffers}, "; the first difference is b [5], in the job's b [4]"},
		{Enrolment{Layout: job.Layout, Buffers: []Tensor{{Name: "mean", Shape: []int{4}, DType: "I32"}}}, "; mean is I32, in the job F32"},
		{Enrolment{Layout: job.Layout, Buffers: []Tensor{{Name: "mean", Shape: []int{4}, DType: "F32"}}}, ""},
		{Enrolment{Layout: []Tensor{a}, Buffers: job.Buffers}, "; the job's has b [4], this one has not"},
		{Enrolment{Layout: []Tensor{a, b, c}, Buffers: job.Buffers}, "; this one has b [5], the job's has not"},
		{Enrolment{Layout: job.Layout}, "; the job's has mean [4], this one has not"},
	} {
		if got := x.e.otherTensor(job); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
}
