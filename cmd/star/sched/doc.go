// Package sched has the commands of star for scheduling many jobs on one cluster: star sched, submit.
package sched
