package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// known is a fault that the kernel's log tells.
type known struct {
	fault  string
	line   *regexp.Regexp
	status Status
	fix    string
}

// fresh is how old a line may be: hardware that failed is not repaired by waiting, but a link or a process that
// lacked memory may be well again.
var fresh = map[Status]time.Duration{Fail: 24 * time.Hour, Warn: time.Hour}

const replace = "take the host out of use, and have it repaired"

// knowns are in the order in which they are looked for; the first one that fits a line counts.
var knowns = []known{
	{"GPU fault", regexp.MustCompile(`NVRM: Xid \([^)]*\): (\d+)`), Fail, "reset the GPU (nvidia-smi -r) or the host; if it comes again, have the GPU replaced (NVIDIA, XID Errors)"},
	{"memory error", regexp.MustCompile(`(?i)uncorrected hardware memory error|EDAC .*\bUE\b|mce: \[Hardware Error\]|Machine check events logged`), Fail, replace},
	{"corrected memory error", regexp.MustCompile(`EDAC .*\bCE\b`), Warn, "have the memory module replaced if there are more"},
	{"disk error", regexp.MustCompile(`(I/O|critical (medium|target|space allocation)) error, dev \S+|nvme\S* .*(I/O .*timeout|controller is down)|EXT4-fs error|XFS .*([Cc]orruption|metadata I/O error)|BTRFS error|Remounting filesystem read-only`), Fail, "look at the disk (smartctl -a), and " + replace},
	{"PCIe error", regexp.MustCompile(`PCIe Bus Error: severity=Uncorrect|AER: .*(Uncorrect|Fatal)`), Fail, replace},
	{"corrected PCIe error", regexp.MustCompile(`PCIe Bus Error: severity=Correct|AER: .*Correct`), Warn, "reseat the card if there are more"},
	{"lockup", regexp.MustCompile(`BUG: soft lockup|[Hh]ard LOCKUP|kernel BUG at|rcu.* stall`), Fail, "reboot the host, and update its kernel"},
	{"network card", regexp.MustCompile(`mlx5_core .*(health compromised|device's health|internal error|reset)|NETDEV WATCHDOG|transmit queue \d+ timed out`), Fail, "reset the card, update its firmware, or have it replaced"},
	{"link down", regexp.MustCompile(`(?i)(eth|en|ib|bond)\S*:? .*link (is )?down|NIC Link is Down|Link Down`), Warn, "look at the cable and the switch port (ip -s link, ethtool)"},
	{"too hot", regexp.MustCompile(`temperature above threshold|cpu clock throttled|thermal throttl`), Warn, "look at fans and air (ipmitool sdr)"},
	{"blocked task", regexp.MustCompile(`INFO: task .* blocked for more than`), Warn, "look at the file system that it waits for (cat /proc/PID/stack)"},
	{"killed for memory", regexp.MustCompile(`Out of memory: Killed|oom-kill:`), Warn, "look at which process took it (dmesg -T), and at the job's size"},
}

// sickXids are the Xids that mean hardware or driver (NVIDIA, XID Errors, table of Xids): uncorrectable errors of
// memory, a failed repair of it, NVLink, a GPU off the bus, errors of the GPU's own processor. Others are mostly
// those of programs, such as 13, 31 and 43.
var sickXids = []int{48, 62, 64, 74, 79, 92, 95, 109, 110, 119, 120, 136, 140, 142, 143, 145}

// kernelFaults reads records of /dev/kmsg, "priority,sequence,microseconds,flags;text", and reports each known
// fault once, with how often it came and its last line. now is the time since boot.
func kernelFaults(records []string, now time.Duration) (found []Finding) {
	count := map[string]int{}
	at := map[string]int{}
	for _, r := range records {
		head, text, ok := strings.Cut(r, ";")
		f := strings.Split(head, ",")
		if !ok || len(f) < 3 {
			continue
		}
		us, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			continue
		}
		text, _, _ = strings.Cut(text, "\n") // what follows are keys of the device
		i := slices.IndexFunc(knowns, func(k known) bool { return k.line.MatchString(text) })
		if i < 0 {
			continue
		}
		k := knowns[i]
		age := now - time.Duration(us)*time.Microsecond
		if k.fault == "GPU fault" {
			code, _ := strconv.Atoi(k.line.FindStringSubmatch(text)[1])
			if k.fault = fmt.Sprintf("GPU fault, Xid %d", code); !slices.Contains(sickXids, code) {
				k.status = Warn
			}
		}
		if age > fresh[k.status] {
			continue
		}
		n, known := at[k.fault]
		if !known {
			n = len(found)
			at[k.fault] = n
			found = append(found, Finding{Check: "kernel log", Status: k.status, Unit: "lines", Fix: k.fix})
		}
		count[k.fault]++
		found[n].Value = float64(count[k.fault])
		found[n].Detail = fmt.Sprintf("%s, %s in the kernel's log, the last one %s ago: %.160s", k.fault, Plural(count[k.fault], "line"), age.Round(time.Second), text)
	}
	return found
}
