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

// TLSConfig makes the configuration of both sides of mutual TLS 1.3: whoever
// dials and whoever listens shows the certificate of file cert (with the key of
// file key) and demands one that an authority of file ca has signed. All three
// are PEM. The error names the setting that is missing, or the file and what is wrong with it.
func TLSConfig(cert, key, ca string) (*tls.Config, error) {
	for _, f := range []struct{ what, name, flag string }{
		{"certificate", cert, "--tls-cert"}, {"key", key, "--tls-key"}, {"authority", ca, "--tls-ca"},
	} {
		if f.name == "" {
			return nil, fmt.Errorf("transport: TLS needs a %s: give %s FILE (--tls-cert, --tls-key and --tls-ca go together)", f.what, f.flag)
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

// DialTLS is t, the configuration of a member, for a connection to addr, host:port. Whoever answers must show a certificate that an authority of t.RootCAs has
// signed, for the host that is dialled or t.ServerName, or else one with the key of t's own certificate, for whatever name: where all processes of a job have one
// certificate, as pods that mount one secret, their addresses are known to nobody when it is made, and who has its key is one of them. What verification there
// is in t already (InsecureSkipVerify) stays as it is.
func DialTLS(t *tls.Config, addr string) *tls.Config {
	c := t.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	if c.InsecureSkipVerify {
		return c
	}
	c.InsecureSkipVerify = true // crypto/tls knows no exception from names: see below
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

// verifyPeer does for the certificates of who was dialled what crypto/tls does, but for the name of one that has our key.
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

// ownKey says whether a certificate is for the key of c's own. That the peer has the key it has proved before anybody asks.
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
