# make         what a change must pass before it is pushed, in short: without the tests of whole jobs
# make ci      all of it, as the robot does
.PHONY: lint all test race fuzz attack soak replicas wan bench golden freeze ci clean star-bucket wheel release modpath python torch2 peers jax image manifests e2e-slurm e2e-k8s
all:
	go vet ./...
	go run honnef.co/go/tools/cmd/staticcheck@v0.7.0 ./...
	go test -short -p 2 $$(go list ./... | grep -v /cmd/tests/)
test:
	go test ./...
race:
	go test -race -short ./...
# Every parser for FUZZTIME, a time or a number of executions, and a table of them; hours. FUZZTIME=1m for each takes an hour. .ci/run has
# those of the wire, for 3 s each. PACKAGES, TARGETS: only some.
fuzz:
	@bench/fuzz.sh
# A job of real processes under attack: prints what it costs.
attack:
	go test ./cmd/tests/faults -run 'TestAttacks$$' -v -count 1 -args -attack-frames 10000 -attack-idle 1000
# Real jobs that are broken while they train: minutes, or, with SEEDS="$(seq 1 100)", hours.
soak:
	bench/soak.sh
# Kills servers of jobs whose shards have copies, 50 times for each optimiser: some minutes.
replicas:
	go build -trimpath -o bin/star ./cmd/star
	bench/replicas.py --star bin/star
# Slow links in real processes, as root: the Transformer of star bench tta --tasks lm, and one of 10.7 million parameters in PyTorch. TEXT is what they learn,
# PYTHON has torch; MODES are what they run (bench/wan.sh). An hour.
TEXT = bench/RESULTS.md
PYTHON = python3
MODES = auto 'ssgd local=32 outer=nesterov(0.5,0.7)' 'ssgd local=32 steps=speed outer=nesterov(0.5,0.7) fragments=8'
wan:
	go build -trimpath -o bin/star ./cmd/star
	STAR=bin/star STEP=100 PYTHONPATH=python COMMAND='$(PYTHON) examples/pytorch/chars.py --text $(TEXT) --epochs 1 --width 384 --layers 6 --batch-size 4' bench/wan.sh $(MODES)
	STAR=bin/star SEEDS=3 MODEL=transformer:layers=4,heads=4,width=160,ff=640 DATA=chars:$(TEXT),window=32 BATCH=4 OPTIMIZER='adam --lr 0.004' SAMPLES=16000 STEP=100 bench/wan.sh $(MODES)
bench:
	go test -run '^$$' -bench . -count 5 ./modes ./internal/exactsum ./transport ./ps ./internal/kernel ./train/...
golden:
	go test ./modes ./ps -rewrite
# What moves of packages must not change: prints "no difference", or what differs. bench/freeze.sh --record records it anew.
freeze:
	@bench/freeze.sh
# The helper for checkpoints in object stores, a module of its own: bin/star-bucket belongs beside the other programs, or in PATH.
star-bucket:
	cd cmd/star-bucket && go vet . && go test . && go build -trimpath -o ../../bin/star-bucket .
# ruff and mypy on everything in Python.
lint:
	python/tools/lint.sh

# The wheels of star-train: the Python package with the program star, for processors of two kinds, in dist; ARCH=amd64 or arm64: for one.
wheel:
	python3 python/tools/star_wheel.py $(if $(ARCH),--machine $(ARCH))
# All that a release consists of, in dist, which is emptied first: archives of the programs, the wheels, the image, lists of what they are made of (SPDX), licences and
# SHA256SUMS. Two builds of a commit are equal. It needs a checkout without changes.
release:
	python3 python/tools/star_release.py $(ARGS)
# Gives the Go module another path in all files: make modpath MODULE=example.org/star. (A variable PATH would replace the search path of the shells that make starts.)
modpath:
	go run ./.ci/modpath $(MODULE)
# Installs the wheel of this machine into a new virtual environment, without a network, and runs the Python tests there. PyTorch and pytest are those of the system
# (Debian: python3-torch python3-pytest python3-venv). ARGS: more for pytest.
python:
	python/tools/tested.sh system
# The same with a current PyTorch from PyPI, the one for processors where TORCH_INDEX names an index that has it: some gigabytes otherwise.
torch2:
	python/tools/tested.sh torch2
# PyTorch's own tests of torch.distributed over Gloo and over backend="star", with counts, and trainings that were written for Gloo. PyTorch is PyPI's,
# without the libraries of CUDA: 0.6 GB.
peers:
	SUITE= python/tools/tested.sh backend
# JAX of PyPI.
jax:
	python/tools/tested.sh jax
# The image of STAR for linux/amd64 and linux/arm64, in dist/image; the digest is printed last. IMAGE: more arguments, such as --push REGISTRY/NAME:TAG.
image:
	rm -rf dist/image
	go -C deploy/image run . --output $(CURDIR)/dist/image $(IMAGE)
# Builds deploy/k8s, and compares it with the types of the APIs.
manifests:
	go -C deploy/k8s/check test . -count 1
# deploy/slurm with a Slurm of its own on this machine (Debian: slurmctld slurmd slurm-client munge): a minute.
# A target that is called by its name is wanted: what it needs is looked for first, and a test that cannot run fails.
e2e-slurm:
	@for p in slurmctld slurmd munged; do command -v $$p >/dev/null || PATH=$$PATH:/usr/sbin command -v $$p >/dev/null || { echo "e2e-slurm: there is no $$p, and nothing was run (Debian: slurmctld slurmd slurm-client munge)"; exit 1; }; done
	TEST_MUST_RUN=1 go test ./cmd/tests/slurm -count 1 -v
# deploy/k8s with a Kubernetes of its own on this machine, as root (Debian: containerd containernetworking-plugins): some minutes. It is built first, without
# optimisation, which takes half an hour of a processor, once.
K8S = $(CURDIR)/bin/kubernetes
K8S_FLAGS = -trimpath -gcflags='all=-N -l -dwarf=false'
K8S_VERSION = k8s.io/component-base/version
e2e-k8s:
	@[ "$$(id -u)" = 0 ] || { echo "e2e-k8s: nodes need root, and nothing was run"; exit 1; }
	@for p in containerd runc ip unshare /usr/lib/cni/bridge; do command -v $$p >/dev/null || { echo "e2e-k8s: there is no $$p, and nothing was built or run (Debian: containerd containernetworking-plugins iproute2)"; exit 1; }; done
	GOGC=800 go -C deploy/k8s/e2e build $(K8S_FLAGS) -ldflags '-s -w -X $(K8S_VERSION).gitVersion=v1.33.4 -X $(K8S_VERSION).gitMajor=1 -X $(K8S_VERSION).gitMinor=33' -o $(K8S)/ ./...
	GOGC=800 GOBIN=$(K8S) go -C deploy/k8s/e2e/tools install $(K8S_FLAGS) -ldflags '-s -w' ./... tool
	rm -rf $(K8S)/jobset-config $(K8S)/trainer-manifests $(K8S)/image
	go -C deploy/image run . --output $(K8S)/image --arch $$(go env GOARCH)
	cp -r $$(go env GOMODCACHE)/sigs.k8s.io/jobset@v0.12.0/config $(K8S)/jobset-config
	cp -r $$(go env GOMODCACHE)/github.com/kubeflow/trainer/v2@v2.3.0/manifests/base $(K8S)/trainer-manifests
	chmod -R u+w $(K8S)/jobset-config $(K8S)/trainer-manifests
	TEST_MUST_RUN=1 TEST_KUBERNETES=$(K8S) go test ./cmd/tests/kubernetes -count 1 -v -timeout 30m
ci:
	.ci/run
clean:
	rm -rf bin dist star-out
