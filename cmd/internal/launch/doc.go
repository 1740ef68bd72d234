// Package launch starts the processes of a job, as star run does: parameter servers and workers on this machine or on
// several hosts. It restarts a process that has failed, restarts the whole job from its last checkpoint
// ([Launch.Attempts]), and ends everything when the job is over. star run and star-chaos share it; star-chaos routes
// the processes' connections through proxies ([Detour]), and stops and kills processes ([Launch.Process]).
//
// The processes run this program with their role as the first argument: a program that launches jobs needs the commands
// ps, worker and, for jobs on several hosts, member.
package launch
