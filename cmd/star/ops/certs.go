package ops

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
)

// Names of the authority's files.
const (
	authorityCert = "ca.pem"
	authorityKey  = "ca.key"
)

// clockDoubt is how far the clocks of hosts may differ.
const clockDoubt = time.Hour

func certsCommand() *cobra.Command {
	s := new(settings.Set)
	var days int
	settings.Var(s, &days, "days", 365, "how long the certificates are valid")
	cmd := &cobra.Command{
		Use:   "certs DIR HOST[,OTHER NAME …] …",
		Short: "Make certificates for the members of jobs",
		Long: `Makes a test authority (ca.pem, ca.key) in DIR and signs a certificate for each HOST, HOST.pem with HOST.key, for
--tls-cert and --tls-key; ca.pem is for --tls-ca. HOST is the name or the address by which others reach that host;
more of them follow behind commas. Each is good for both sides of a connection. An authority that is in DIR
already signs again, so hosts can be added; no file is written over.

  star certs certs node0,10.0.0.1 node1,10.0.0.2
  star certs certs digits                          the job digits: one for all its processes, under any address

Anyone with ca.key can make members: it stays on this machine. For more than tests, take your own authority.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return &settings.UsageError{Msg: "star certs: want a folder and at least one host: star certs DIR HOST …"}
			}
			if days < 1 || days > 100*365 {
				return s.Invalid("days", errors.New("must be 1 to 36500"))
			}
			made, err := certify(args[0], args[1:], time.Duration(days)*24*time.Hour)
			for _, name := range made {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return err
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// certify makes certificates in a folder, for hosts with their names, and lists the files that it has made.
func certify(dir string, hosts []string, valid time.Duration) (made []string, err error) {
	var names [][]string
	for _, host := range hosts {
		ns := strings.Split(host, ",")
		for _, n := range ns {
			if !hostLike(n) {
				return nil, &settings.UsageError{Msg: fmt.Sprintf("star certs: %q is no name or address of a host: write HOST or HOST,OTHER", n)}
			}
		}
		names = append(names, ns)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, ns := range names { // before any is made
		for _, end := range []string{".pem", ".key"} {
			if name := filepath.Join(dir, fileOf(ns[0])+end); exists(name) {
				return nil, &settings.UsageError{Msg: fmt.Sprintf("star certs: %s exists already: remove it, or name another folder", name)}
			}
		}
	}
	ca, key, fresh, err := authority(dir, valid)
	if err != nil {
		return nil, err
	}
	made = fresh
	for _, ns := range names {
		cert := &x509.Certificate{
			Subject:     pkix.Name{Organization: []string{"STAR"}, CommonName: ns[0]},
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		for _, n := range ns {
			if ip := net.ParseIP(n); ip != nil {
				cert.IPAddresses = append(cert.IPAddresses, ip)
			} else {
				cert.DNSNames = append(cert.DNSNames, n)
			}
		}
		files, err := sign(cert, ca, key, filepath.Join(dir, fileOf(ns[0])), valid)
		made = append(made, files...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// authority reads the authority of a folder, or creates one and returns the names of its new files.
func authority(dir string, valid time.Duration) (ca *x509.Certificate, key *ecdsa.PrivateKey, fresh []string, err error) {
	certName, keyName := filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey)
	if !exists(certName) && !exists(keyName) {
		fresh, err = sign(&x509.Certificate{
			Subject: pkix.Name{Organization: []string{"STAR"}, CommonName: "STAR test authority"},
			IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}, nil, nil, strings.TrimSuffix(certName, ".pem"), valid)
		if err != nil {
			return nil, nil, fresh, err
		}
	}
	certBlock, err := readPEM(certName)
	if err == nil {
		ca, err = x509.ParseCertificate(certBlock)
	}
	if err == nil {
		var keyBlock []byte
		if keyBlock, err = readPEM(keyName); err == nil {
			var any any
			if any, err = x509.ParsePKCS8PrivateKey(keyBlock); err == nil {
				var ok bool
				if key, ok = any.(*ecdsa.PrivateKey); !ok || !key.PublicKey.Equal(ca.PublicKey) {
					err = fmt.Errorf("%s is not the key of %s", keyName, certName)
				}
			}
		}
	}
	if err != nil {
		return nil, nil, fresh, job.FileError(fmt.Errorf("the authority in %s: %w", dir, err), err)
	}
	return ca, key, fresh, nil
}

// sign makes a key and a certificate for it, in BASE.key and BASE.pem. Without an authority it signs itself.
func sign(c, ca *x509.Certificate, by *ecdsa.PrivateKey, base string, valid time.Duration) (made []string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	c.NotBefore = time.Now().Add(-clockDoubt)
	c.NotAfter = c.NotBefore.Add(valid + clockDoubt)
	if ca == nil {
		ca, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, by)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name  string
		mode  fs.FileMode
		block pem.Block
	}{
		{base + ".key", 0o600, pem.Block{Type: "PRIVATE KEY", Bytes: secret}},
		{base + ".pem", 0o644, pem.Block{Type: "CERTIFICATE", Bytes: der}},
	} {
		w, err := os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return made, err
		}
		err = pem.Encode(w, &f.block)
		if e := w.Close(); err == nil {
			err = e
		}
		if err != nil {
			return made, fmt.Errorf("write %s: %w", f.name, err)
		}
		made = append(made, f.name)
	}
	return made, nil
}

func readPEM(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(text)
	if b == nil {
		return nil, fmt.Errorf("%s: no PEM in it", name)
	}
	return b.Bytes, nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// hostLike reports whether a text may be the name or the address of a host. It is the name of a file, too.
func hostLike(s string) bool {
	if net.ParseIP(s) != nil {
		return true
	}
	return s != "" && len(s) <= 253 && s[0] != '.' && s[0] != '-' && s != strings.TrimSuffix(authorityCert, ".pem") && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.')
	})
}

// fileOf is the name of a host as that of a file: addresses may have colons.
func fileOf(host string) string { return strings.ReplaceAll(host, ":", "_") }
