package settings

import (
	"net"
	"strconv"

	"star/internal/defaults"
)

// MostCoordinators is how many processes may coordinate a job at most. Fewer than three survive the end of none of
// them.
const MostCoordinators = 9

// Electors is the number of processes of star run that may coordinate; 0: only star-ps 0 may.
func (j *Job) Electors() int {
	if len(j.Coordinators) != 1 {
		return 0
	}
	n, _ := strconv.Atoi(j.Coordinators[0])
	return n
}

func (j *Job) validateCoordinators(bad func(name, format string, a ...any) error) error {
	n := len(j.Coordinators)
	switch {
	case n == 0:
		return nil
	case j.role == ForRun && n == 1:
		if k := j.Electors(); k < 3 || k > MostCoordinators {
			return bad("coordinators", "want how many processes may coordinate, 3 to %d", MostCoordinators)
		}
		return nil
	case j.role == ForRun:
		return bad("coordinators", "star run starts them itself: want how many, 3 to %d", MostCoordinators)
	case n < 3 || n > MostCoordinators:
		return bad("coordinators", "%d addresses: want 3 to %d, so that a majority is left when one is lost", n, MostCoordinators)
	}
	seen := map[string]bool{}
	for _, a := range j.Coordinators {
		host, port, err := net.SplitHostPort(a)
		k, e := strconv.Atoi(port)
		ip := net.ParseIP(host)
		if err != nil || e != nil || k < 1 || k > 65535 || host == "" || ip != nil && ip.IsUnspecified() {
			return bad("coordinators", "%q is not an address that others can reach; write host:port, such as 10.0.0.1:%s", a, defaults.Port)
		}
		if seen[a] {
			return bad("coordinators", "%s is listed twice", a)
		}
		seen[a] = true
	}
	if j.role != ForServer {
		return nil
	}
	switch {
	case j.Arch == AllReduce && j.Servers != n:
		return bad("servers", "an all-reduce has no star-ps but those that may coordinate: --coordinators names %d, so --servers %d", n, n)
	case j.Arch == AllReduce:
	case j.Servers <= n:
		return bad("coordinators", "those %d have no shards, and --servers is %d (from %s): no server would hold the parameters", n, j.Servers, j.Origin("servers"))
	case j.Rank < n && j.Shards > 0:
		return bad("shards", "star-ps %d may coordinate (--coordinators): its shards would be lost with it, so give it --shards 0", j.Rank)
	}
	return nil
}
