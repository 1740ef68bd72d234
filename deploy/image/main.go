// Image builds the image of STAR: the programs star and star-bucket, certificates of authorities, and nothing else, for
// linux/amd64 and linux/arm64.
//
//	go -C deploy/image run . --output DIR [--push REGISTRY/NAME:TAG] [--arch amd64,arm64]
//	go -C deploy/image run . --sbom NAME.spdx.json PROGRAM…    only lists what programs are made of
//
// DIR gets an OCI layout, for each processor a list of what the programs are made of (SPDX), and how the image came to
// be (in-toto, SLSA). The digest is printed last. The same commit and the same Go make the same digest: files have no
// times, owners are 0, and certificates are those of a pinned module.
//
// It is a module of its own, because programs of jobs need none of what it imports.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	user     = 65532 // user of the programs: "nonroot", as in distroless images
	mostSize = 30_000_000
	source   = "deploy/image"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "image:", err)
		var usage usageError
		if errors.As(err, &usage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

type usageError string

func (e usageError) Error() string { return string(e) }

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	dir := flags.String("output", "", "folder for the image, which must not be there or be empty")
	push := flags.String("push", "", "also send it to a registry: REGISTRY/NAME:TAG, with the credentials of docker or podman")
	arch := flags.String("arch", "amd64,arm64", "processors")
	sbom := flags.String("sbom", "", "write only what the programs that follow are made of (SPDX) to this file, and no image")
	if err := flags.Parse(args); err != nil {
		return usageError(err.Error())
	}
	if *sbom != "" && flags.NArg() > 0 {
		list, _, err := contents(strings.TrimSuffix(filepath.Base(*sbom), ".spdx.json"), flags.Args())
		if err != nil {
			return err
		}
		return writeJSON(*sbom, list)
	}
	if *dir == "" || flags.NArg() > 0 {
		return usageError("want --output DIR, and no other arguments")
	}
	var tag name.Reference
	if *push != "" {
		var err error
		if tag, err = name.ParseReference(*push); err != nil {
			return usageError("--push: " + err.Error())
		}
	}
	if old, err := os.ReadDir(*dir); err == nil && len(old) > 0 {
		return usageError(fmt.Sprintf("--output: %s is not empty", *dir))
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "star-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var built []program
	for _, a := range strings.Split(*arch, ",") {
		p, err := compile(root, filepath.Join(tmp, a), a, "star", "star-bucket")
		if err != nil {
			return err
		}
		built = append(built, p)
	}
	index, err := assemble(built, commit(root), *dir, gzip.BestCompression)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if tag != nil {
		if err := remote.WriteIndex(tag, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("--push: %w", err)
		}
		fmt.Fprintf(out, "pushed %s\n", tag.Context().Digest(digest.String()))
	}
	_, err = fmt.Fprintln(out, digest)
	return err
}

// compile builds programs for a processor in dir, with the flags of python/tools/star_wheel.py.
func compile(root, dir, arch string, names ...string) (program, error) {
	p := program{arch: arch}
	linked := "-ldflags=-s -w -buildid="
	if c := commit(root); c != "" {
		linked += " -X star/internal/build.linkedCommit=" + c
		// Of the commit, in UTC.
		cmd := exec.Command("git", "-C", root, "show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
		cmd.Env = append(os.Environ(), "TZ=UTC")
		if at, err := cmd.Output(); err == nil {
			linked += " -X star/internal/build.linkedTime=" + strings.TrimSpace(string(at))
		}
	}
	for _, name := range names {
		module, pkg, path := root, "./cmd/star", filepath.Join(dir, name)
		if name == "star-bucket" {
			module, pkg = filepath.Join(root, "cmd/star-bucket"), "."
		}
		cmd := exec.Command("go", "-C", module, "build", "-trimpath", "-buildvcs=false", linked, "-o", path, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-mod=readonly")
		if said, err := cmd.CombinedOutput(); err != nil {
			return p, fmt.Errorf("go build %s for linux/%s: %w\n%s", name, arch, err, said)
		}
		p.files = append(p.files, path)
	}
	return p, nil
}

// commit is that of the sources, or empty. Changes that are not committed are marked.
func commit(root string) string {
	b, err := exec.Command("git", "-C", root, "describe", "--always", "--dirty=+changes", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// program is the files for one processor.
type program struct {
	arch  string
	files []string
}

// assemble writes the image of programs, packed by a level of gzip, with what says of what and how it is made, to dir.
func assemble(built []program, commit, dir string, level int) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var deps []resource
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, p := range built {
		files, err := rootfs(p.files)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(level), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		size, err := layer.Size()
		if err != nil {
			return nil, err
		}
		if size > mostSize && level != gzip.NoCompression {
			return nil, fmt.Errorf("the image for linux/%s has %d bytes, more than %d", p.arch, size, mostSize)
		}
		img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: source}})
		if err != nil {
			return nil, err
		}
		f, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		f = f.DeepCopy()
		f.OS, f.Architecture = "linux", p.arch
		f.Config = v1.Config{
			Entrypoint: []string{"/usr/local/bin/star"}, Cmd: []string{"--help"}, User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/tmp",
			Env: []string{"PATH=/usr/local/bin", "HOME=/tmp"}, StopSignal: "SIGTERM",
			Labels: map[string]string{"org.opencontainers.image.title": "star", "org.opencontainers.image.revision": commit, "org.opencontainers.image.licenses": "Apache-2.0"},
		}
		if img, err = mutate.ConfigFile(img, f); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}}})
		bill, modules, err := contents("star-linux-"+p.arch, p.files)
		if err != nil {
			return nil, err
		}
		deps = append(deps, modules...)
		if err := writeJSON(filepath.Join(dir, "sbom-"+p.arch+".spdx.json"), bill); err != nil {
			return nil, err
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(dir, "provenance.json"), provenance(digest, built, commit, deps)); err != nil {
		return nil, err
	}
	_, err = layout.Write(filepath.Join(dir, "oci"), index)
	return index, err
}

// rootfs is the only layer, a tar.
func rootfs(programs []string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range []struct {
		name string
		mode int64
	}{{"etc/", 0o755}, {"etc/ssl/", 0o755}, {"etc/ssl/certs/", 0o755}, {"tmp/", 0o1777}, {"usr/", 0o755}, {"usr/local/", 0o755}, {"usr/local/bin/", 0o755}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name, Mode: d.mode, Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
	}
	add := func(name string, mode int64, content []byte) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var roots bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil { // a bundle in PEM cannot express constraints
			if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	passwd := fmt.Sprintf("nonroot:x:%d:%d::/tmp:/sbin/nologin\n", user, user)
	if err := errors.Join(add("etc/passwd", 0o644, []byte(passwd)), add("etc/ssl/certs/ca-certificates.crt", 0o644, roots.Bytes())); err != nil {
		return nil, err
	}
	for _, path := range programs {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := add("usr/local/bin/"+filepath.Base(path), 0o755, content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// spdx is a document of SPDX 2.3, as much of it as we write.
type spdx struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo"`
	Download  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Checksums []checksum  `json:"checksums,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// resource is a dependency in a provenance.
type resource struct {
	URI    string            `json:"uri,omitempty"`
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// contents lists the modules that programs were built from, as the programs themselves say.
func contents(name string, programs []string) (*spdx, []resource, error) {
	doc := &spdx{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		// No time: the same image has the same list.
		Creation: creation{"1970-01-01T00:00:00Z", []string{"Tool: star-" + strings.ReplaceAll(source, "/", "-")}},
	}
	all := sha256.New()
	var deps []resource
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		sum := sha256.Sum256(content)
		all.Write(sum[:])
		base := filepath.Base(path)
		id := "SPDXRef-" + base
		doc.Packages = append(doc.Packages, spdxPackage{ID: id, Name: base, Version: info.Main.Version, Download: "NOASSERTION",
			Checksums: []checksum{{"SHA256", hex.EncodeToString(sum[:])}}})
		doc.Relationships = append(doc.Relationships, relationship{doc.ID, "DESCRIBES", id})
		modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
		for _, m := range modules {
			if m.Replace != nil {
				m = m.Replace
			}
			if m.Version == "" || strings.HasPrefix(m.Path, ".") { // of this repository
				continue
			}
			purl := "pkg:golang/" + m.Path + "@" + m.Version
			mid := "SPDXRef-" + strings.Map(func(r rune) rune {
				if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
					return r
				}
				return '-'
			}, m.Path+"-"+m.Version)
			if !slices.ContainsFunc(doc.Packages, func(q spdxPackage) bool { return q.ID == mid }) {
				doc.Packages = append(doc.Packages, spdxPackage{ID: mid, Name: m.Path, Version: m.Version, Download: "NOASSERTION",
					Refs: []reference{{"PACKAGE-MANAGER", "purl", purl}}})
				deps = append(deps, resource{URI: purl})
			}
			doc.Relationships = append(doc.Relationships, relationship{id, "DEPENDS_ON", mid})
		}
	}
	doc.Namespace = "https://spdx.org/spdxdocs/" + doc.Name + "-" + hex.EncodeToString(all.Sum(nil))
	return doc, deps, nil
}

// provenance says how the image came to be: an in-toto statement with SLSA's predicate, version 1.
func provenance(image v1.Hash, built []program, commit string, deps []resource) any {
	var archs []string
	for _, p := range built {
		archs = append(archs, p.arch)
	}
	if commit != "" {
		deps = append([]resource{{Name: "source", Digest: map[string]string{"gitCommit": commit}}}, deps...)
	}
	seen := map[string]bool{}
	deps = slices.DeleteFunc(deps, func(r resource) bool { old := seen[r.URI]; seen[r.URI] = true; return old })
	return map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
		"subject": []resource{{Name: "star", Digest: map[string]string{image.Algorithm: image.Hex}}},
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":            "urn:star:" + source,
				"externalParameters":   map[string]any{"arch": archs},
				"internalParameters":   map[string]any{"go": runtime.Version()},
				"resolvedDependencies": deps,
			},
			"runDetails": map[string]any{"builder": map[string]any{"id": "urn:star:" + source}},
		},
	}
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o666)
}
