// Package ops has the commands of star for operating jobs and hosts: star ctl, doctor, certs, cluster, checkpoint,
// eval, install.
package ops
