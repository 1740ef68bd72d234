package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"star/internal/flightrecorder"
	"star/internal/settings"
	"star/job/process"
	"star/observe/web"
	"star/transport"
)

// serveHTTP answers /healthz, /readyz and /metrics, and pprof to callers on this
// machine, until stop; at / there is the page of the run log that is written in dir, if that is not empty.
func serveHTTP(job *settings.Job, b *board, dir string, log *slog.Logger) (stop func(), err error) {
	if job.HTTP == settings.Off {
		return func() {}, nil
	}
	l, err := listen(job.HTTP)
	if err != nil && !job.Config.IsSet("http") { // a second star-ps on this host
		log.Warn("no /metrics: the default address is taken; --http chooses another one", "err", err)
		return func() {}, nil
	}
	if err != nil {
		return nil, job.Invalid("http", fmt.Errorf("%w; --http=off switches it off", err))
	}
	if web.Exposed(l) {
		log.Warn("every host that reaches the address of --http can read the page, the run log and the metrics; --http="+net.JoinHostPort(settings.Home(), "PORT")+" opens it to this host only", "at", l.Addr().String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), b, buildInfo())
	if dir != "" {
		b.log = follow(ctx, dir)
		mux.Handle("/", b.log)
		registry.MustRegister(b.log)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", b.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/star", local(serveWaits))
	mux.HandleFunc("/debug/pprof/", local(pprof.Index))
	mux.HandleFunc("/debug/pprof/profile", local(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", local(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", local(pprof.Trace))
	srv := &http.Server{
		Handler: http.MaxBytesHandler(within(web.Guard(job.HTTP, mux)), maxBody), MaxHeaderBytes: maxBody,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: answerTime, IdleTimeout: time.Minute,
	}
	go func() {
		if err := srv.Serve(transport.Limit(l, transport.Portion(16, maxCallers))); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("the HTTP server ended", "err", err)
		}
	}()
	return func() {
		cancel() // pages get the end, and send no more requests
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Shutdown(ctx)
	}, nil
}

// Bounds of what callers can take from the job: descriptors, memory and time.
const (
	maxCallers = 64               // connections, or a sixteenth of the descriptors, if that is less
	maxBody    = 64 << 10         // bytes of a request's header, and of its body
	answerTime = 10 * time.Second // to receive a request, and to send its answer
)

// within gives each answer a deadline, so that a caller that does not read holds nothing for long. A profile takes as
// long as requested.
func within(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := answerTime
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
			if !(err == nil && seconds > 0) {
				seconds = 30
			}
			limit += time.Duration(min(seconds, 3600) * float64(time.Second))
		}
		deadline := http.NewResponseController(w)
		deadline.SetWriteDeadline(time.Now().Add(limit))
		if limit > answerTime { // reading detects callers that are gone
			deadline.SetReadDeadline(time.Now().Add(limit))
		}
		h.ServeHTTP(w, r)
	})
}

// listen opens the address of --http. A socket that a process has left behind that was killed is taken over.
func listen(addr string) (net.Listener, error) {
	path, ok := strings.CutPrefix(addr, settings.UnixSocket)
	if !ok {
		return net.Listen(transport.ListenNetwork(addr), addr)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("%s: another process answers there", path)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // other users may not read profiles
		l.Close()
		return nil, err
	}
	return l, nil
}

// serveWaits answers /debug/star: what waits in this process, as text or, with ?json, as a list.
func serveWaits(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("json") {
		w.Header().Set("Content-Type", "application/json")
		list := flightrecorder.List()
		if list == nil {
			list = []flightrecorder.Wait{}
		}
		json.NewEncoder(w).Encode(list)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	process.Page(w)
}

// local refuses callers from other machines. A caller on a Unix socket has no address.
func local(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if at != nil && at.Network() == "unix" {
			h(w, r)
			return
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			http.Error(w, "only from this machine", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}
