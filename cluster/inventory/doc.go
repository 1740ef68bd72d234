// Package inventory reads the files of star place, star run --hosts and star cluster serve --hosts: the hosts and the
// demands of jobs.
//
// Both are strict YAML: an unknown key, a duplicate key and an invalid value are errors that name file and line. Only a
// list of hosts may occur several times, as star inventory >> FILE makes it. docs/placement.md lists the keys. Amounts
// have units:
//
//	cpu      8, "8 cores", "50%" (of a core)
//	net      "10Gbit/s", "1.25GB/s", "100MiB/s", or bytes per second
//	memory   "64GiB", "64GB", or bytes
//	gpus     2, or a list of sizes: 1, 3/7, "3g.20gb" (a MIG slice of three of seven parts), {size: 1, memory: 80GiB}; or auto
package inventory
