// Star-bucket reaches object stores for the programs of star, which run it once for each operation on a checkpoint with
// an address as its place: put, get, size, list and remove (package checkpoint documents the arguments and answers).
//
//	s3://bucket/prefix?region=eu-west-1
//	s3://bucket/prefix?region=us-east-1&endpoint=http://minio:9000&use_path_style=true
//	file:///folder/prefix
//
// What follows ? is for gocloud.dev/blob. Credentials are those of the AWS SDK: environment, shared files, the
// machine's role.
//
// It is a module of its own, because these libraries are larger than all the rest of star.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"

	"star/internal/build"
	"star/internal/exitcode"
	"star/train/checkpoint"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("star-bucket version", build.Built())
		return
	}
	// The process that started this one ends it, or ends itself, which closes the input. A signal to the whole group or
	// host must not: that process may still write a checkpoint.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout)
	switch {
	case err == nil:
	case gcerrors.Code(err) == gcerrors.NotFound:
		os.Exit(exitcode.Missing)
	default:
		err, code := judge(err, os.Args[2:])
		fmt.Fprintln(os.Stderr, strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(code)
	}
}

// judge returns the exit code for an error. If a store rejects a key, the error says which store that is.
func judge(err error, args []string) (error, int) {
	var usage usageError
	if errors.As(err, &usage) {
		return err, exitcode.Usage
	}
	var coded interface{ ErrorCode() string }
	var answered interface{ HTTPStatusCode() int }
	var network net.Error
	code, status := "", 0
	if errors.As(err, &coded) {
		code = coded.ErrorCode()
	}
	if errors.As(err, &answered) {
		status = answered.HTTPStatusCode()
	}
	store, _, _ := strings.Cut(args[0], "?")
	switch {
	case strings.Contains(err.Error(), noKey):
		return fmt.Errorf("there is no key for %s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role: %w", store, err), exitcode.Refused
	case status == http.StatusUnauthorized, status == http.StatusForbidden, gcerrors.Code(err) == gcerrors.PermissionDenied, slices.Contains(refusals, code):
		return fmt.Errorf("%s refuses the key of AWS_ACCESS_KEY_ID (%s): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to one that may read, list and write there, or give the machine such a role",
			store, cmp.Or(code, strconv.Itoa(status))), exitcode.Refused
	case errors.Is(err, fs.ErrPermission):
		return err, exitcode.Refused
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, errors.As(err, &network):
		return err, exitcode.Lost
	}
	return err, exitcode.Failure
}

// refusals are those that stores do not say with 401 or 403: S3 of a key that is good for a time, versitygw of one that
// it does not know.
var refusals = []string{"ExpiredToken", "InvalidToken", "XAdminUserNotFound"}

// noKey is in the errors of the AWS SDK (aws/credential_cache.go), which have no type for it.
const noKey = "failed to refresh cached credentials"

type usageError string

func (e usageError) Error() string { return string(e) }

const usage = usageError("usage: star-bucket put ADDRESS | get ADDRESS OFFSET LENGTH | size ADDRESS | list ADDRESS | remove ADDRESS")

// operations are those that there are, with the number of their arguments, and how deep below a place of checkpoints
// their address is.
var operations = map[string]struct{ args, depth int }{
	"put": {1, 2}, "get": {3, 2}, "size": {1, 2}, "list": {1, 0}, "remove": {1, 1},
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 || operations[args[0]].args == 0 || operations[args[0]].args != len(args)-1 {
		return usage
	}
	at, key, err := parse(args[1], operations[args[0]].depth)
	if err != nil {
		return err
	}
	b, err := blob.OpenBucket(ctx, at)
	if err != nil {
		return fmt.Errorf("open %s: %w", at, err)
	}
	defer b.Close()
	switch args[0] {
	case "put":
		return put(ctx, b, key, in)
	case "get":
		offset, err1 := strconv.ParseInt(args[2], 10, 64)
		length, err2 := strconv.ParseInt(args[3], 10, 64)
		if err1 != nil || err2 != nil || offset < 0 {
			return usage
		}
		return get(ctx, b, key, offset, length, out)
	case "size":
		a, err := b.Attributes(ctx, key)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, a.Size)
		return err
	case "list":
		return list(ctx, b, key, out)
	default:
		return remove(ctx, b, key)
	}
}

// parse cuts an address into that of a bucket and a key in it. Of files, the key is the last depth parts.
func parse(address string, depth int) (bucket, key string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", "", usageError(err.Error())
	}
	if u.Scheme == "" {
		return "", "", usageError(fmt.Sprintf("%q is no address: want one like s3://bucket/prefix", address))
	}
	key = strings.Trim(u.Path, "/")
	if u.Scheme != "file" {
		u.Path = ""
		return u.String(), key, nil
	}
	parts := strings.Split(key, "/")
	cut := max(0, len(parts)-depth)
	u.Path, key = "/"+path.Join(parts[:cut]...), path.Join(parts[cut:]...)
	q := u.Query()
	q.Set("create_dir", "true")
	q.Set("no_tmp_dir", "true") // files are renamed within a folder: a rename between file systems is not atomic
	q.Set("metadata", "skip")
	u.RawQuery = q.Encode()
	return u.String(), key, nil
}

// put makes the object only when everything has come: cancelling a writer leaves nothing.
func put(ctx context.Context, b *blob.Bucket, key string, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, checkpoint.Chunks(in)); err != nil {
		cancel()
		w.Close()
		return fmt.Errorf("put %s: %w", key, err)
	}
	return w.Close()
}

func get(ctx context.Context, b *blob.Bucket, key string, offset, length int64, out io.Writer) error {
	r, err := b.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(out, r); err != nil {
		return fmt.Errorf("get %s: %w", key, err)
	}
	return nil
}

// below is the prefix of what lies in a folder.
func below(key string) string {
	if key == "" {
		return ""
	}
	return key + "/"
}

// list prints folder and name of what lies two levels below.
func list(ctx context.Context, b *blob.Bucket, key string, out io.Writer) error {
	enc := json.NewEncoder(out)
	it := b.List(&blob.ListOptions{Prefix: below(key)})
	for {
		o, err := it.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		folder, name, ok := strings.Cut(strings.TrimPrefix(o.Key, below(key)), "/")
		if !ok || strings.Contains(name, "/") {
			continue
		}
		if err := enc.Encode(checkpoint.Entry{Folder: folder, Name: name}); err != nil {
			return err
		}
	}
}

// remove removes the manifest first, because without it the rest does not count as a checkpoint, and then the rest.
func remove(ctx context.Context, b *blob.Bucket, key string) error {
	if key == "" {
		return usageError("remove wants the address of a checkpoint, not of a bucket")
	}
	if err := b.Delete(ctx, below(key)+checkpoint.ManifestName); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return err
	}
	it := b.List(&blob.ListOptions{Prefix: below(key)})
	for {
		o, err := it.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := b.Delete(ctx, o.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return err
		}
	}
}
