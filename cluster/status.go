package cluster

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"star/cluster/resource"
)

// Status is the answer to star cluster status: its JSON is documented in docs/cluster.md. Times are seconds; amounts
// are cores and bytes per second.
type Status struct {
	Cluster string       `json:"cluster"`
	Addr    string       `json:"addr"`
	ID      string       `json:"id"`
	Version string       `json:"version"`
	Since   time.Time    `json:"since"`
	Lease   float64      `json:"lease_s"`
	Hosts   []HostStatus `json:"hosts"`
	Jobs    []JobStatus  `json:"jobs"`
}

// Amount is a resource.Usage as JSON; null means no limit.
type Amount struct {
	CPU    *float64 `json:"cpu"`
	NetIn  *float64 `json:"net_in"`
	NetOut *float64 `json:"net_out"`
}

// HostStatus is a host of Status.
type HostStatus struct {
	Host     string `json:"host"`
	Capacity Amount `json:"capacity"`
	Use      Amount `json:"use"`    // the usage that counts
	Others   Amount `json:"others"` // the part of Use that is not of the cluster's jobs

	// Leases are the limits that processes have set or left behind there, as reported by the jobs' processes on the
	// host.
	Leases []LeaseStatus `json:"leases,omitempty"`
}

// LeaseStatus is a lease of HostStatus; star limits ls, run on the host, shows more.
type LeaseStatus struct {
	Lease string `json:"lease"`
	State string `json:"state"` // alive, stale, void, foreign, corrupt
	What  string `json:"what,omitempty"`
	Who   string `json:"who,omitempty"`
	Why   string `json:"why,omitempty"`
}

// JobStatus is a job of Status.
type JobStatus struct {
	Job string `json:"job"`
	// State is gathering, ssgd, granted, delayed, withdrawn, or fixed (the owner has chosen the mode).
	State   string            `json:"state"`
	Mode    string            `json:"mode"` // in force, as the job reports
	Granted string            `json:"granted,omitempty"`
	Why     string            `json:"why,omitempty"` // reason of the last answer
	Step    int64             `json:"step"`
	Lease   float64           `json:"lease_left_s"`
	Use     map[string]Amount `json:"use,omitempty"`   // by host
	Extra   map[string]Amount `json:"extra,omitempty"` // granted, by host
	Delay   float64           `json:"delay_s"`         // ordered, per iteration
	Early   bool              `json:"early"`           // early workers are ordered to wait
	For     []string          `json:"for,omitempty"`   // jobs for which it is delayed
	Learned *GivingStatus     `json:"learned,omitempty"`
	Members []MemberStatus    `json:"members"`
}

// GivingStatus is what was learned from the delays of a job.
type GivingStatus struct {
	Delays      int     `json:"delays"` // number of delays learned from
	Freed       Amount  `json:"freed"`  // per worker on its host, per second of delay, per second
	Sensitivity float64 `json:"sensitivity_cpu"`
	ToNetwork   float64 `json:"sensitivity_net"`
}

// MemberStatus is a process of JobStatus.
type MemberStatus struct {
	Role     string  `json:"role"`
	Rank     int     `json:"rank"`
	Host     string  `json:"host"`
	Peer     string  `json:"peer"`
	Actuator string  `json:"actuator"`
	Ordered  float64 `json:"ordered_s"` // ordered delay per iteration
	Delay    float64 `json:"delay_s"`   // in force, as the process reports
	Err      string  `json:"error,omitempty"`
}

func amount(u resource.Usage) Amount {
	of := func(v float64) *float64 {
		if math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return Amount{of(u.CPU), of(u.NetIn), of(u.NetOut)}
}

func amountsOf(us map[string]resource.Usage) map[string]Amount {
	if len(us) == 0 {
		return nil
	}
	m := map[string]Amount{}
	for h, u := range us {
		m[h] = amount(u)
	}
	return m
}

// leases returns a host's leases, as its members report them. Several members see the same lease; one in another
// container than the owner cannot tell whether the owner lives, so the reports of others take precedence.
func (s *Service) leases(host string) (ls []LeaseStatus) {
	seen := map[string]LeaseStatus{}
	for _, j := range s.jobs {
		for _, m := range j.members {
			if m.enlist.Host != host {
				continue
			}
			for _, l := range m.usage.Leases {
				if old, ok := seen[l.Name]; !ok || old.State == foreign {
					seen[l.Name] = LeaseStatus{l.Name, l.State, l.What, l.Owner, l.Why}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		ls = append(ls, seen[name])
	}
	return ls
}

// foreign is the state of a lease that only other processes can judge.
const foreign = "foreign"

// status returns the service's current state.
func (s *Service) status() Status {
	st := Status{Cluster: s.cfg.Cluster, Addr: s.cfg.Addr, ID: s.id, Version: s.cfg.Program, Since: s.since, Lease: s.cfg.Lease.Seconds(),
		Hosts: []HostStatus{}, Jobs: []JobStatus{}}
	for _, h := range s.ledger.Hosts() {
		st.Hosts = append(st.Hosts, HostStatus{h.Name, amount(h.Capacity), amount(h.Use), amount(h.Strangers), s.leases(h.Name)})
	}
	accounts := map[string]resource.JobStatus{}
	for _, a := range s.ledger.Jobs() {
		accounts[a.Name] = a
	}
	for _, name := range slices.Sorted(maps.Keys(s.jobs)) {
		j := s.jobs[name]
		a, entered := accounts[name]
		js := JobStatus{Job: name, State: "gathering", Mode: j.mode, Step: j.step, Members: []MemberStatus{}}
		if entered && j.entered {
			js.Granted, js.Why, js.For = a.Mode, a.Last.Why, a.For
			js.Lease = max(a.Expires-s.now(), 0).Seconds()
			js.Use, js.Extra = amountsOf(a.Use), amountsOf(a.Extra)
			js.Delay, js.Early = a.Order.Delay.Seconds(), a.Order.Early
			switch {
			case a.Order.Back:
				js.State = "withdrawn"
			case a.Mode != "":
				js.State = "granted"
			case a.Order.Delay > 0 || a.Order.Early:
				js.State = "delayed"
			case j.head != nil && j.head.enlist.Fixed:
				js.State = "fixed"
			default:
				js.State = "ssgd"
			}
		}
		if g := j.giving.learned; g != nil {
			c := g.Costs()
			js.Learned = &GivingStatus{j.giving.seen, amount(c.Freed), c.Sensitivity.CPU, c.Sensitivity.Net}
		}
		for _, m := range j.members {
			js.Members = append(js.Members, MemberStatus{
				Role: m.role, Rank: m.enlist.Rank, Host: m.enlist.Host, Peer: m.conn.RemoteAddr(), Actuator: m.enlist.Actuator,
				Ordered: (m.sent.Delay + m.sent.Early).Seconds(), Delay: m.usage.Delay.Seconds(), Err: m.obeyed.Err,
			})
		}
		slices.SortFunc(js.Members, func(a, b MemberStatus) int {
			return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Rank, b.Rank))
		})
		st.Jobs = append(st.Jobs, js)
	}
	return st
}
