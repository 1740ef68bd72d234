package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"star/internal/settings"
	"star/observe/web"
	"star/transport"
)

// Exposed is the warning about a page that other hosts can read.
var Exposed = "every host that reaches the address of the page can read it; " + net.JoinHostPort(settings.Home(), "PORT") + " opens it to this host only"

// ServePage serves a page at l, which was opened at address, until ctx is over.
func ServePage(ctx context.Context, l net.Listener, address string, page http.Handler) error {
	srv := &http.Server{
		Handler: web.Guard(address, page), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(transport.Limit(l, transport.Portion(16, 64))); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
