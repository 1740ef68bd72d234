package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		name string
		env  string
		want string // launcher rank/size coordinator, with ! where the value is unusable
		note string // part of the only note; empty: none
	}{
		{"nothing", "PATH=/bin HOME=/", " / ", ""},
		{"torchrun with its own store", "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 GROUP_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True",
			"torchrun 3/8 node0:7070", ""},
		{"PyTorchJob", "RANK=3 WORLD_SIZE=8 MASTER_ADDR=job-master-0 MASTER_PORT=23456", "torchrun 3/8 job-master-0:23456", ""},
		{"torchrun on IPv6", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=fd00::1", "torchrun 0/1 [fd00::1]:7070", ""},
		{"torchrun without an address", "RANK=0 WORLD_SIZE=1", "torchrun 0/1 ", ""},
		{"only RANK", "RANK=3", " / ", "RANK is set without WORLD_SIZE"},
		{"only WORLD_SIZE", "WORLD_SIZE=3", " / ", "WORLD_SIZE is set without RANK"},
		{"bad rank", "RANK=x WORLD_SIZE=8", "torchrun x!/8 ", ""},
		{"negative rank", "RANK=-1 WORLD_SIZE=8", "torchrun -1!/8 ", ""},
		{"bad port", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=70000", "torchrun 0/1 a:70000!", ""},
		{"PET", "PET_NODE_RANK=1 PET_NNODES=4 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=m PET_MASTER_PORT=29400", "PET 1/4 m:29400", ""},
		{"PET, fixed range", "PET_NODE_RANK=1 PET_NNODES=4:4", "PET 1/4 ", ""},
		{"PET, elastic", "PET_NODE_RANK=1 PET_NNODES=1:4", "PET 1/1:4! ", ""},
		{"PET, many processes", "PET_NODE_RANK=1 PET_NNODES=4 PET_NPROC_PER_NODE=8", "PET 1!/4! ", ""},
		{"Open MPI", "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=2", "Open MPI 2/4 ", ""},
		{"MPICH", "PMI_RANK=2 PMI_SIZE=4", "PMI 2/4 ", ""},
		{"PMIx by Slurm", "PMIX_RANK=2 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NODELIST=n[3-6]", "PMI 2/4 n3:7070", ""},
		{"Slurm", "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_NODELIST=gpu[07-09] SLURM_JOB_NODELIST=gpu[01-09]",
			"Slurm 5/6 gpu07:7070", ""},
		{"Slurm, job list", "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a,b", "Slurm 5/8 a:7070", ""},
		{"Slurm, bad list", "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a[", "Slurm 5/8 !", ""},
		{"Slurm allocation without a task", "SLURM_NTASKS=8 SLURM_JOB_NODELIST=a,b", " / ", ""},
		{"indexed job", "JOB_COMPLETION_INDEX=3 KUBERNETES_SERVICE_HOST=10.0.0.1", "Kubernetes 3/ star-ps-0.star-ps:7070", ""},
		{"indexed job with a service", "JOB_COMPLETION_INDEX=3 KUBERNETES_SERVICE_HOST=10.0.0.1 STAR_PS_SERVICE_HOST=10.0.0.9 STAR_PS_SERVICE_PORT=7000",
			"Kubernetes 3/ 10.0.0.9:7000", ""},
		{"pods with a service and no index", "KUBERNETES_SERVICE_HOST=10.0.0.1 STAR_PS_SERVICE_HOST=10.0.0.9", " / 10.0.0.9:7070", ""},
		{"torchrun in Slurm", "RANK=3 WORLD_SIZE=8 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a,b", "torchrun 3/8 a:7070",
			"torchrun (RANK) says rank 3, Slurm (SLURM_PROCID) says rank 0"},
		{"torchrun in Slurm, equal ranks", "RANK=1 WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2", "torchrun 1/2 ", ""},
		{"mpirun in a Slurm batch script", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=x7",
			"Open MPI 3/4 x7:7070", "says rank 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Detect(strings.Fields(c.env))
			show := func(f Found) string {
				if f.Err != nil {
					return f.Value + "!"
				}
				return f.Value
			}
			got := l.Name + " " + show(l.Rank) + "/" + show(l.Size) + " " + show(l.Coordinator)
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			notes := strings.Join(l.Notes, "\n")
			if (c.note == "") != (notes == "") || !strings.Contains(notes, c.note) {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
		})
	}
}

// The first entry is from the manual page of scontrol; the others are forms seen on clusters.
func TestNodelist(t *testing.T) {
	for list, want := range map[string]string{
		"tux[1-3]":             "tux1 tux2 tux3",
		"node[01-04,07]":       "node01 node02 node03 node04 node07",
		"a":                    "a",
		"a,b.c-d":              "a b.c-d",
		"gpu[09-11],login,x7":  "gpu09 gpu10 gpu11 login x7",
		"r[1-2]n[0-1]":         "r1n0 r1n1 r2n0 r2n1",
		"n[1-2]-ib":            "n1-ib n2-ib",
		"n[008-010]":           "n008 n009 n010",
		"n[99-101]":            "n99 n100 n101",
		"":                     "!", // the rest are errors
		",a":                   "!",
		"a,":                   "!",
		"a[":                   "!",
		"a]":                   "!",
		"a[[1]]":               "!",
		"a[]":                  "!",
		"a[1-]":                "!",
		"a[-1]":                "!",
		"a[3-1]":               "!",
		"a[x]":                 "!",
		"a[+1]":                "!",
		"a b":                  "!",
		"a[0-4000000000]":      "!",
		"a[0-999][0-999]":      "!",
		"a[99999999999999999]": "!",
		"a/b":                  "!",
	} {
		hosts, err := Nodelist(list)
		got := strings.Join(hosts, " ")
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("Nodelist(%q) = %q, %v; want %q", list, got, err, want)
		}
	}
}

func FuzzNodelist(f *testing.F) {
	for _, s := range []string{"node[01-04,07]", "a,b", "r[1-2]n[0-9]x", "a[[", "[0-131071],[0-131071]", "[1][2][3]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		hosts, err := Nodelist(list)
		if (err == nil) != (len(hosts) > 0) || len(hosts) > maxHosts {
			t.Fatalf("%d hosts, %v", len(hosts), err)
		}
		for _, h := range hosts {
			if h == "" || strings.ContainsAny(h, "[], \n") {
				t.Fatalf("host %q", h)
			}
		}
		if err == nil && !strings.ContainsAny(list, "[") && !cmp.Equal(hosts, strings.Split(list, ",")) {
			t.Fatalf("%q became %q", list, hosts)
		}
	})
}
