#!/bin/bash
# A prolog of slurmd: measures the nodes of a job before it starts (star doctor --sweep), at most some 25 s. A node that is worse
# than the others, or than it was the last time, fails: Slurm drains it, and puts the job back in the queue. Whatever else goes wrong
# (no star, no token, another node that does not come) lets the job start.
#
# In slurm.conf; with Alloc the nodes of a job run it at the same time, else each waits in vain for the others:
#
#   Prolog=/etc/slurm/prolog.sh
#   PrologFlags=Alloc
#   BatchStartTimeout=60
#
# /etc/slurm/star.token has the secret of the sweep, readable for root only, on all nodes; without it nodes are not compared with each
# other. /etc/slurm/star.env may set (Slurm gives prologs neither a PATH nor the job's variables):
#
#   STAR=/usr/local/bin/star        the program
#   SWEEP_DIR=/scratch              a folder of the disk to measure: the one with the jobs' data
#   SWEEP_WAIT=20s                  how long to wait for the other nodes
#   SWEEP_STATE=/var/lib/star       where the numbers of the last time are
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=${HOME:-/root}
etc=${SLURM_CONF:+$(dirname "$SLURM_CONF")} etc=${etc:-/etc/slurm}
STAR=star SWEEP_DIR=/tmp SWEEP_WAIT=20s SWEEP_STATE=/var/lib/star
[ -r "$etc/star.env" ] && . "$etc/star.env"
command -v "$STAR" >/dev/null || exit 0

sweep=(--sweep --dir "$SWEEP_DIR" --state "$SWEEP_STATE" --timeout "$SWEEP_WAIT")
# Slurm 22.05 has the list of nodes in the second one only.
nodes=($(scontrol show hostnames "${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-$SLURMD_NODENAME}}" 2>/dev/null))
if [ "${#nodes[@]}" -gt 1 ] && [ -r "$etc/star.token" ]; then
	STAR_TOKEN=$(cat "$etc/star.token") port=$((30000 + SLURM_JOB_ID % 10000))
	export STAR_TOKEN
	if [ "$SLURMD_NODENAME" = "${nodes[0]}" ]; then
		sweep+=(--listen ":$port" --members "${#nodes[@]}")
	else
		sweep+=(--to "${nodes[0]}:$port")
	fi
fi
unset "${!SLURM_@}" # flags say what this node does, not the variables of a launcher
said=$("$STAR" doctor "${sweep[@]}" 2>&1)
code=$?
[ "$code" = 0 ] || logger -t star-sweep -- "exit $code: $said" 2>/dev/null
[ "$code" != 1 ] # 1: this node is an outlier
