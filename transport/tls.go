package transport

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
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
