// Package run has the commands of star for jobs on this machine and on the hosts of a file: star run.
package run
