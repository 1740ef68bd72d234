// Package launch starts the processes of a job, as star run does: parameter servers and workers on this machine or on several hosts.
// It starts a process again that has failed, starts the whole job again from its last checkpoint ([Launch.Attempts]), and ends
// everything when the job is over. star run and star-chaos share it; star-chaos leads what the processes send through proxies
// ([Detour]), and stops and kills them ([Launch.Process]).
//
// The processes are this program again, with their role as its first argument: a program that launches jobs needs the commands ps,
// worker and, for jobs on several hosts, member.
package launch
