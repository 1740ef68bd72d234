package transport_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/transport"
	"star/transport/wire"
)

// authority is a directory with ca.pem, and NAME.pem with NAME.key for each
// certificate it has signed.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func certify(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.sign(t, "ca", nil, nil)
	a.sign(t, "one", a.cert, a.key)
	return a
}

// sign writes a certificate for loopback: an authority's if parent is nil.
func (a *authority) sign(t *testing.T, name string, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a.signKey(t, name, key, parent, by), key
}

// signKey does so for an existing key, and for host names instead of loopback, if any are given.
func (a *authority) signKey(t *testing.T, name string, key *ecdsa.PrivateKey, parent *x509.Certificate, by *ecdsa.PrivateKey, hosts ...string) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if len(hosts) > 0 {
		c.IPAddresses, c.DNSNames = nil, hosts
	}
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: pkcs},
	} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) config(t *testing.T, name string) *tls.Config {
	t.Helper()
	c, err := transport.TLSConfig(a.file(name+".pem"), a.file(name+".key"), a.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTLSRefusesStrangers(t *testing.T) {
	ours, theirs := certify(t), certify(t)
	l, err := transport.NewTCP(transport.Config{TLS: ours.config(t, "one")}).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- transport.Serve(ctx, l, transport.Config{Log: slog.New(slog.DiscardHandler)}, func(c transport.Conn, _ wire.Hello, _ []byte) {
			t.Error("a stranger was let in")
			c.Close()
		})
	}()
	halves := theirs.config(t, "one")
	halves.RootCAs = ours.config(t, "one").RootCAs // trusts us, but is not trusted
	for name, config := range map[string]*tls.Config{"another authority": theirs.config(t, "one"), "only the client's": halves} {
		_, _, _, err := transport.Open(ctx, transport.NewTCP(transport.Config{TLS: config}), l.Addr(), wire.Hello{}, nil)
		var e interface{ ExitCode() int }
		if !errors.As(err, &e) || e.ExitCode() != 77 || !strings.Contains(err.Error(), "--tls-ca") {
			t.Errorf("%s: %v, want exit code 77 and the flags to check", name, err)
		}
	}
	// No TLS at all, towards a listener that demands it.
	if _, _, _, err := transport.Open(ctx, transport.NewTCP(transport.Config{}), l.Addr(), wire.Hello{}, nil); err == nil {
		t.Error("a peer without TLS was welcomed")
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestTLSConfigNamesTheFile(t *testing.T) {
	a := certify(t)
	empty := a.file("empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cert, key, ca, want string }{
		{"", a.file("one.key"), a.file("ca.pem"), "--tls-cert"},
		{a.file("one.pem"), "", a.file("ca.pem"), "--tls-key"},
		{a.file("one.pem"), a.file("one.key"), "", "--tls-ca"},
		{a.file("none.pem"), a.file("one.key"), a.file("ca.pem"), "none.pem"},
		{a.file("one.pem"), a.file("ca.key"), a.file("ca.pem"), "ca.key"},
		{a.file("one.pem"), a.file("one.key"), empty, "empty.pem: no PEM certificate"},
	} {
		if _, err := transport.TLSConfig(c.cert, c.key, c.ca); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("TLSConfig(%q, %q, %q): %v, want %q in it", c.cert, c.key, c.ca, err, c.want)
		}
	}
}

// A peer that speaks TLS to one that does not, or the other way round, gets an error that says so at once. A process
// reaches itself with any certificate, and no other process does.
func TestTLSAndPlain(t *testing.T) {
	a := certify(t)
	a.sign(t, "two", a.cert, a.key)
	secure, other, plain := transport.Config{TLS: a.config(t, "one")}, transport.Config{TLS: a.config(t, "two")}, transport.Config{}
	secure.Log, other.Log, plain.Log = slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		server transport.Config
		client *transport.TCP
		exit   int
		words  string
	}{
		"plain to TLS":        {secure, transport.NewTCP(plain), 77, "the server wants TLS"},
		"TLS to plain":        {plain, transport.NewTCP(secure), 77, "the server does not speak it"},
		"itself":              {secure, transport.NewTCP(secure).Itself(), 0, ""},
		"another one":         {secure, transport.NewTCP(other).Itself(), 77, "its certificate is not ours"},
		"itself without":      {plain, transport.NewTCP(plain).Itself(), 0, ""},
		"plain to plain":      {plain, transport.NewTCP(plain), 0, ""},
		"TLS to TLS, by name": {secure, transport.NewTCP(other), 0, ""},
	} {
		l, err := transport.NewTCP(c.server).Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go transport.Serve(ctx, l, c.server, func(conn transport.Conn, _ wire.Hello, _ []byte) {
			transport.Send(conn, wire.Welcome{}, nil)
			conn.Close()
		})
		conn, _, _, err := transport.Open(ctx, c.client, l.Addr(), wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1}, nil)
		if err == nil {
			conn.Close()
		}
		var coded interface{ ExitCode() int }
		switch {
		case c.exit == 0 && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.exit != 0 && (!errors.As(err, &coded) || coded.ExitCode() != c.exit || !strings.Contains(err.Error(), c.words)):
			t.Errorf("%s: %v, want exit code %d and %q", name, err, c.exit, c.words)
		}
	}
}

// The certificate of a job is valid under any address for a peer that has its key, and for no other: not with another
// key for the same name, and not where another authority has signed the same key.
func TestKeyOfTheJob(t *testing.T) {
	a, b := certify(t), certify(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.signKey(t, "digits", key, a.cert, a.key, "digits")
	a.signKey(t, "again", key, a.cert, a.key, "other-name") // the same key, another certificate
	a.signKey(t, "namesake", other, a.cert, a.key, "digits")
	b.signKey(t, "digits", key, b.cert, b.key, "digits")
	stranger := b.config(t, "digits")
	stranger.ClientCAs = a.config(t, "one").ClientCAs // only the dialler has something against it
	named := a.config(t, "namesake")
	named.ServerName = "digits"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		server, client *tls.Config
		words          string
	}{
		"the same certificate":             {a.config(t, "digits"), a.config(t, "digits"), ""},
		"the same key":                     {a.config(t, "digits"), a.config(t, "again"), ""},
		"another key":                      {a.config(t, "namesake"), a.config(t, "digits"), "127.0.0.1"},
		"another key, by name":             {a.config(t, "digits"), named, ""},
		"an address that the other one is": {a.config(t, "one"), a.config(t, "digits"), ""},
		"the same key, another authority":  {stranger, a.config(t, "digits"), "unknown authority"},
	} {
		server := transport.Config{TLS: c.server, Log: slog.New(slog.DiscardHandler)}
		l, err := transport.NewTCP(server).Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go transport.Serve(ctx, l, server, func(conn transport.Conn, _ wire.Hello, _ []byte) {
			transport.Send(conn, wire.Welcome{}, nil)
			conn.Close()
		})
		conn, _, _, err := transport.Open(ctx, transport.NewTCP(transport.Config{TLS: c.client}), l.Addr(), wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1}, nil)
		if err == nil {
			conn.Close()
		}
		var coded interface{ ExitCode() int }
		if c.words == "" && err != nil || c.words != "" && (!errors.As(err, &coded) || coded.ExitCode() != 77 || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
}
