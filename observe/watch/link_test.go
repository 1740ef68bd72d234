package watch

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// head listens as one does.
func head(t *testing.T, token string) (addr string, rows *atomic.Int64, refused func() string) {
	return headWith(t, token, nil)
}

func headWith(t *testing.T, token string, certificates *tls.Config) (addr string, rows *atomic.Int64, refused func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	rows = new(atomic.Int64)
	var mu sync.Mutex
	var why []string
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if certificates != nil {
				c = tls.Server(c, certificates)
			}
			go func() {
				if err := Accept(c, token, func() {}, func(Row) { rows.Add(1) }); err != nil {
					mu.Lock()
					why = append(why, err.Error())
					mu.Unlock()
				}
			}()
		}
	}()
	return l.Addr().String(), rows, func() string { mu.Lock(); defer mu.Unlock(); return strings.Join(why, "; ") }
}

func stepRow(n int) Row {
	return Row{Kind: "step", V: Version, Step: int64(n), Took: 1, Telemetry: map[string]float64{"steal": 0.5}}
}

func TestLink(t *testing.T) {
	addr, rows, _ := head(t, "secret")
	l := Dial(t.Context(), addr, "secret", nil, func(s string) { t.Error(s) })
	for n := range 100 {
		l.Take(stepRow(n))
	}
	if dropped, err := l.Close(time.Minute); dropped != 0 || err != nil {
		t.Errorf("%d dropped, %v", dropped, err)
	}
	for end := time.Now().Add(time.Minute); rows.Load() < 100 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if rows.Load() != 100 {
		t.Errorf("%d rows came", rows.Load())
	}
}

func TestWrongToken(t *testing.T) {
	addr, rows, refused := head(t, "secret")
	said := make(chan string, 10)
	l := Dial(t.Context(), addr, "wrong", nil, func(s string) { said <- s })
	if s := <-said; !strings.Contains(s, "token") || !strings.Contains(s, "the program goes on") {
		t.Error(s)
	}
	l.Take(stepRow(1))
	if dropped, err := l.Close(time.Minute); dropped != 1 || err == nil || rows.Load() != 0 {
		t.Errorf("%d dropped, %v", dropped, err)
	}
	// it speaks first, and notes it then
	for end := time.Now().Add(time.Minute); refused() == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if !strings.Contains(refused(), "token") {
		t.Errorf("the head says %q", refused())
	}
}

// Where one side has certificates and the other has none, both say so, and what to do.
func TestLinkOfTLSAndNone(t *testing.T) {
	t.Parallel() // a side that waits for TLS waits for greetTime
	authority := httptest.NewTLSServer(nil)
	authority.Close()
	for _, x := range []struct {
		name            string
		head, collector *tls.Config
		says, headSays  string
	}{
		{"the head has TLS", &tls.Config{Certificates: authority.TLS.Certificates}, nil, "it says nothing: perhaps it waits for TLS; give --tls-cert", "it does not speak TLS, and this star watch does: give --tls-cert"},
		{"the other has TLS", nil, &tls.Config{InsecureSkipVerify: true}, "it does not speak TLS, and this star watch does: give --tls-cert", "it speaks TLS, and this star watch does not: give --tls-cert"},
	} {
		addr, _, refused := headWith(t, "secret", x.head)
		said := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		l := Dial(ctx, addr, "secret", x.collector, func(s string) { said <- s })
		if s := <-said; !strings.Contains(s, x.says) || !strings.Contains(s, "does not wait") {
			t.Errorf("%s: the other says %q, want %q", x.name, s, x.says)
		}
		for end := time.Now().Add(time.Minute); refused() == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if !strings.Contains(refused(), x.headSays) {
			t.Errorf("%s: the head says %q, want %q", x.name, refused(), x.headSays)
		}
		cancel()
		<-l.ended
	}
}

// One certificate does for all hosts of a job: a peer that has its key is one of them, whatever name it has.
func TestLinkWithKeyOfTheJob(t *testing.T) {
	pair := func(names ...string) (tls.Certificate, *x509.Certificate) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: names}
		text, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(text)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{text}, PrivateKey: key}, c
	}
	job, jobs := pair("digits")
	other, others := pair("digits")
	known := x509.NewCertPool()
	known.AddCert(jobs)
	known.AddCert(others)
	mine := &tls.Config{Certificates: []tls.Certificate{job}, RootCAs: known}

	addr, rows, _ := headWith(t, "secret", &tls.Config{Certificates: []tls.Certificate{job}})
	l := Dial(t.Context(), addr, "secret", mine, func(s string) { t.Error(s) })
	l.Take(stepRow(1))
	if dropped, err := l.Close(time.Minute); dropped != 0 || err != nil {
		t.Errorf("%d dropped, %v", dropped, err)
	}
	for end := time.Now().Add(time.Minute); rows.Load() < 1 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if rows.Load() != 1 {
		t.Errorf("%d rows came", rows.Load())
	}

	addr, _, _ = headWith(t, "secret", &tls.Config{Certificates: []tls.Certificate{other}})
	said := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	l = Dial(ctx, addr, "secret", mine, func(s string) { said <- s })
	if s := <-said; !strings.Contains(s, "127.0.0.1") || !strings.Contains(s, "certificate") {
		t.Errorf("another key is said to be %q", s)
	}
	cancel()
	<-l.ended
}

// A head that is gone, or never was, makes no worker wait; rows that do not fit are counted.
func TestHeadIsGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := make(chan string, 10)
	k := Dial(ctx, addr, "", nil, func(s string) { said <- s })
	for n := range queued + 50 {
		k.Take(stepRow(n))
	}
	if s := <-said; !strings.Contains(s, addr) || !strings.Contains(s, "does not wait") {
		t.Error(s)
	}
	if dropped, err := k.Close(10 * time.Millisecond); dropped < 50 || err == nil {
		t.Errorf("%d dropped, %v", dropped, err)
	}
}

// The head disconnects a peer that sends invalid rows, and keeps the rows before.
func TestBytesThatAreNoRows(t *testing.T) {
	for _, bytes := range []string{"GET / HTTP/1.1\r\n\r\n", "{}\n", strings.Repeat("x", 1<<16)} {
		addr, _, refused := head(t, "")
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, bytes)
		for end := time.Now().Add(time.Minute); refused() == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if refused() == "" {
			t.Errorf("%.20q is taken", bytes)
		}
		c.Close()
	}
}
