package cli

import (
	"crypto/tls"

	"star/internal/settings"
	"star/transport"
)

// Credentials are the TLS flags of a tool.
type Credentials struct{ cert, key, ca string }

// Declare adds the flags to s.
func (c *Credentials) Declare(s *settings.Set) {
	settings.Var(s, &c.cert, "tls-cert", "", "certificate of this process, PEM")
	settings.Var(s, &c.key, "tls-key", "", "key of the certificate, PEM")
	settings.Var(s, &c.ca, "tls-ca", "", "certificates that sign the members' certificates, PEM")
}

// Config is nil if no flag is given.
func (c *Credentials) Config(s *settings.Set) (*tls.Config, error) {
	if *c == (Credentials{}) {
		return nil, nil
	}
	t, err := transport.TLSConfig(c.cert, c.key, c.ca)
	if err != nil {
		return nil, s.Invalid("tls-cert", err)
	}
	return t, nil
}
