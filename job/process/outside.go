package process

import "star/job"

// Unconnected is the error of the first setting that needs a client of the gossip or of the resource service, for a
// process that has neither; nil if there is no such setting. seeks: the process looks up the coordinator in the gossip,
// unless its address is set.
func Unconnected(j *job.Job, seeks bool, missing error) error {
	switch {
	case j.Cluster != "":
		return j.Invalid("cluster", missing)
	case j.Gossip != "" && j.Gossip != job.Off:
		return j.Invalid("gossip", missing)
	case seeks && len(j.GossipJoin) > 0 && !j.IsSet("coordinator"):
		return j.Invalid("gossip-join", missing)
	}
	return nil
}
