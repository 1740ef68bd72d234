package resource

import (
	"strings"
	"time"
)

// Published are measurements of a model by the artefact of STAR: 8 workers with batches of 128, one server process, in
// Python. Recomputed from its logs, they agree with its tables to the printed precision; docs/resources.md describes
// how. Processor shares are in percent of the server's host; its number of cores was not published.
type Published struct {
	Name string

	// ExtraCPU in percent and ExtraNet in MiB/s, in and out each, are the extra use of the server's host in ASGD over
	// SSGD: means of 10 s before and after the change.
	ExtraCPU, ExtraNet float64

	// FreedCPU in percent and FreedNet in MiB/s are what each worker frees per second of delay of every update.
	FreedCPU, FreedNet float64

	// Sensitivity is the product of two slowdowns until the same accuracy, under two levels of throttling of the
	// processor and of the network.
	Sensitivity Sensitivity

	Params     int64         // float32
	SSGD, ASGD time.Duration // mean time between updates
	CPU        float64       // percent of the server's host in SSGD
	In, Out    float64       // MiB/s of the server's host in SSGD
}

// mib is the unit of the published rates.
const mib = 1 << 20

const publishedWorkers = 8

// PublishedCores is the assumed number of cores for the published shares. It is a guess: neither paper nor artefact
// has it.
const PublishedCores = 8

// slowdowns is the product of two slowdowns: seconds with throttling over seconds without.
func slowdowns(a, b, base float64) float64 { return a * b / base / base }

const ms = time.Millisecond

// published are the ten models, by name.
var published = []Published{
	{"alexnet", 3.41, 22.614, 1.156, 25.87, Sensitivity{slowdowns(2400, 1240, 680), slowdowns(2400, 1360, 680)}, 2472266, 259 * ms, 31 * ms, 94.4, 291, 292},
	{"densenet121", 4.64, 12, 0.838, 0.91, Sensitivity{slowdowns(1400, 860, 560), slowdowns(1320, 920, 560)}, 6956298, 3010 * ms, 336 * ms, 10.3, 65, 65},
	{"googlenet", 3.84, 6.491, 0.644, 0.027, Sensitivity{slowdowns(1200, 720, 480), slowdowns(1040, 560, 480)}, 6166250, 2814 * ms, 313 * ms, 8.8, 70, 57},
	{"lstm", 36.74, 270.048, 1.244, 62.277, Sensitivity{slowdowns(720, 380, 260), slowdowns(2160, 1060, 260)}, 12184782, 518 * ms, 45 * ms, 53.2, 710, 712},
	{"mobilenet", 4.71, 3.402, 1.048, 3.16, Sensitivity{slowdowns(1560, 920, 480), slowdowns(1080, 560, 480)}, 2296922, 1092 * ms, 116 * ms, 25.5, 65, 65},
	{"resnet20", 18.86, 3.675, 0.91, 1.285, Sensitivity{slowdowns(1760, 1000, 600), slowdowns(600, 560, 600)}, 269722, 477 * ms, 51 * ms, 54, 18.5, 18.1},
	{"resnet56", 11.8, 0.839, 0.856, 1.542, Sensitivity{slowdowns(2400, 1320, 920), slowdowns(1040, 800, 920)}, 853018, 994 * ms, 112 * ms, 27, 30.4, 28.2},
	{"transformer", 38.92, 258.758, 1.48, 62.226, Sensitivity{slowdowns(800, 530, 310), slowdowns(2620, 1210, 310)}, 12025582, 505 * ms, 46 * ms, 56.9, 710, 730},
	{"vgg13", 40, 178.768, 1.206, 34.355, Sensitivity{slowdowns(480, 280, 160), slowdowns(1280, 560, 160)}, 9416010, 562 * ms, 52 * ms, 53.2, 495, 492},
	{"vgg16", 41.26, 218.587, 1.288, 42.515, Sensitivity{slowdowns(1120, 640, 560), slowdowns(4320, 760, 560)}, 14728266, 755 * ms, 65 * ms, 46.6, 622, 589},
}

// PublishedModel finds a model by its name.
func PublishedModel(name string) (Published, bool) {
	for _, p := range published {
		if p.Name == name {
			return p, true
		}
	}
	return Published{}, false
}

// PublishedNames are the names of all models, separated by commas.
func PublishedNames() string {
	var names []string
	for _, p := range published {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// Costs is what a delay of such a job frees and costs, if the measured host had that number of cores.
func (p Published) Costs(cores float64) Costs {
	return Costs{Freed: Usage{Percent(p.FreedCPU, cores), p.FreedNet * mib, p.FreedNet * mib}, Sensitivity: p.Sensitivity}
}

// Extra is the cost of ASGD beyond SSGD, if the measured host had that number of cores.
func (p Published) Extra(cores float64) Usage {
	return Usage{Percent(p.ExtraCPU, cores), p.ExtraNet * mib, p.ExtraNet * mib}
}

// Loads are the loads of the measured job in SSGD and in ASGD.
func (p Published) Loads() (ssgd, asgd Load) {
	u, v := 1/p.SSGD.Seconds(), 1/p.ASGD.Seconds()
	return Load{u, publishedWorkers * u}, Load{v, v}
}

// Demand is the demand of such a job on its server's host: as measured in SSGD and ASGD, if that host had that number
// of cores, and interpolated by the rate of updates.
func (p Published) Demand(cores float64) Demand {
	ssgd, asgd := p.Loads()
	slope := p.Extra(cores).Times(1 / (asgd.Updates - ssgd.Updates))
	use := Usage{Percent(p.CPU, cores), p.In * mib, p.Out * mib}
	return Demand{Base: use.Minus(slope.Times(ssgd.Updates)), PerUpdate: slope}
}
