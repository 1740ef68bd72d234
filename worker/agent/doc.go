// Package agent runs collectives between hosts for the processes of one host that use the "star" backend of
// torch.distributed (python/star_train/_agent.py).
//
// One agent serves all processes of a job on its host. A process group that spans hosts has one connection to the
// agent of each host, from the group's first process there. Over it comes the memory that the group's processes on the
// host share (a memfd), and then requests: each names ranges of that memory, which package allreduce sends, receives
// and sums in place. So there is no copy between a process and the agent, and a host's ranks use the network once.
//
//	process ──hello──► member ──open, memory──► opened ──form──► formed ──operation──► formed
//	                     │ end of connection       └─error─► failed └─abort, error─► failed
//	                     ▼
//	                    gone: the last one ends the agent
//
// A process is a member from its hello until its connection ends. The agent ends with its last member, and leaves no
// file. What a process sends is checked before it is used: a range outside the memory, an unknown type or kind is an
// error for that process only.
//
// Requests of a group are carried out in order by one goroutine, those of different groups at once. Each has a
// deadline. A connection that ends cancels what it waits for, and the agents of the other hosts report it.
//
// Frame is the format of requests and replies. docs/decisions/0028-one-agent-per-host.md has the reasons.
package agent
