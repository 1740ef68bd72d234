package membership

import (
	"testing"

	"star/coord/session"
)

func TestOtherTensor(t *testing.T) {
	a, b, c := session.Tensor{Name: "a", Shape: []int{2, 3}}, session.Tensor{Name: "b", Shape: []int{4}, Offset: 6}, session.Tensor{Name: "b", Shape: []int{5}, Offset: 6}
	job := &session.Enrolment{Layout: []session.Tensor{a, b}, Buffers: []session.Tensor{{Name: "mean", Shape: []int{4}}}}
	for _, x := range []struct {
		e    session.Enrolment
		want string
	}{
		{*job, ""},
		{session.Enrolment{Layout: []session.Tensor{a, c}, Buffers: job.Buffers}, "; the first difference is b [5], in the job's b [4]"},
		{session.Enrolment{Layout: job.Layout, Buffers: []session.Tensor{{Name: "mean", Shape: []int{4}, DType: "I32"}}}, "; mean is I32, in the job F32"},
		{session.Enrolment{Layout: job.Layout, Buffers: []session.Tensor{{Name: "mean", Shape: []int{4}, DType: "F32"}}}, ""},
		{session.Enrolment{Layout: []session.Tensor{a}, Buffers: job.Buffers}, "; the job has b [4], this worker does not"},
		{session.Enrolment{Layout: []session.Tensor{a, b, c}, Buffers: job.Buffers}, "; this worker has b [5], the job does not"},
		{session.Enrolment{Layout: job.Layout}, "; the job has mean [4], this worker does not"},
	} {
		if got := otherTensor(&x.e, job); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
}
