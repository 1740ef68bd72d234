package transport

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLSConfig makes the configuration of both sides of mutual TLS 1.3. Both ends present the
// certificate of file cert (with the key of file key) and require one that an authority of file ca
// has signed. All three are PEM. The error names the missing setting, or the file and what is wrong
// with it.
func TLSConfig(cert, key, ca string) (*tls.Config, error) {
	for _, f := range []struct{ what, name, flag string }{
		{"certificate", cert, "--tls-cert"}, {"key", key, "--tls-key"}, {"authority", ca, "--tls-ca"},
	} {
		if f.name == "" {
			return nil, fmt.Errorf("transport: TLS needs a %s; set %s FILE (--tls-cert, --tls-key and --tls-ca are needed together)", f.what, f.flag)
		}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("transport: TLS certificate %s with key %s: %w", cert, key, err)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("transport: TLS authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("transport: TLS authority %s: no PEM certificate in it", ca)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}, nil
}

// DialTLS returns t, the configuration of a member, for a connection to addr, host:port. The peer
// must present a certificate that an authority of t.RootCAs has signed, for the dialled host or
// t.ServerName, or else one with the key of t's own certificate, for any name. The latter is for
// jobs in which all processes have one certificate, as pods that mount one secret: their addresses
// are unknown when it is made, and a process with its key is one of them. InsecureSkipVerify in t
// is kept.
func DialTLS(t *tls.Config, addr string) *tls.Config {
	c := t.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	if c.InsecureSkipVerify {
		return c
	}
	c.InsecureSkipVerify = true // crypto/tls allows no exception from names: see below
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := verifyPeer(c, s.PeerCertificates); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
		}
		if t.VerifyConnection != nil {
			return t.VerifyConnection(s)
		}
		return nil
	}
	return c
}

// verifyPeer does for the dialled peer's certificates what crypto/tls does, except for the name of
// one with our key.
func verifyPeer(c *tls.Config, certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("no certificate")
	}
	o := x509.VerifyOptions{Roots: c.RootCAs, Intermediates: x509.NewCertPool()}
	if c.Time != nil {
		o.CurrentTime = c.Time()
	}
	if !ownKey(c, certs[0]) {
		o.DNSName = c.ServerName
	}
	for _, more := range certs[1:] {
		o.Intermediates.AddCert(more)
	}
	_, err := certs[0].Verify(o)
	return err
}

// ownKey reports whether a certificate is for the key of c's own. The peer has proved before that
// it has that key.
func ownKey(c *tls.Config, peer *x509.Certificate) bool {
	if len(c.Certificates) == 0 || len(c.Certificates[0].Certificate) == 0 {
		return false
	}
	own := c.Certificates[0].Leaf
	if own == nil {
		var err error
		if own, err = x509.ParseCertificate(c.Certificates[0].Certificate[0]); err != nil {
			return false
		}
	}
	key, ok := own.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(peer.PublicKey)
}
