# make         what a change must pass before it is pushed, in short
# make ci      all of it, as the robot does
.PHONY: all test race fuzz bench golden ci clean star-bucket
all:
	go vet ./... && go test -short ./...
test:
	go test ./...
race:
	go test -race -short ./...
# Each parser for FUZZTIME; the findings land in testdata/fuzz of its package.
FUZZTIME ?= 1m
fuzz:
	@for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done
bench:
	go test -run '^$$' -bench . -count 5 ./modes ./exact ./transport ./ps ./train/...
golden:
	go test ./modes ./ps -rewrite
# The helper for checkpoints in object stores, a module of its own: bin/star-bucket belongs beside the other programs, or in PATH.
star-bucket:
	cd cmd/star-bucket && go vet . && go test . && go build -trimpath -o ../../bin/star-bucket .
ci:
	.ci/run
clean:
	rm -rf bin star-out
