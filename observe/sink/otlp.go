package sink

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"star/observe/export"
	"star/observe/web"
)

// otlp is OpenTelemetry's protocol over HTTP with JSON (opentelemetry.io/docs/specs/otlp): scalars are gauges,
// events are log records.
type otlp struct {
	client   http.Client
	base     string
	header   http.Header
	resource []attribute
}

type attribute struct {
	Key   string         `json:"key"`
	Value map[string]any `json:"value"`
}

func text(key, value string) attribute {
	return attribute{key, map[string]any{"stringValue": value}}
}

func number(key string, value int64) attribute {
	return attribute{key, map[string]any{"intValue": strconv.FormatInt(value, 10)}} // 64 bits are text in JSON of protobuf
}

// newOTLP sends to the address of a collector; "": OTEL_EXPORTER_OTLP_ENDPOINT, else the port of a collector on this
// host. Headers, name and attributes are those of OpenTelemetry's variables.
func newOTLP(given string, env func(string) string) (Sink, error) {
	base, err := address("otlp", cmp.Or(given, env("OTEL_EXPORTER_OTLP_ENDPOINT"), "http://localhost:4318"))
	if err != nil {
		return nil, err
	}
	o := &otlp{base: strings.TrimRight(base, "/"), header: http.Header{}}
	headers, err := pairs("OTEL_EXPORTER_OTLP_HEADERS", env)
	if err != nil {
		return nil, err
	}
	for _, h := range headers {
		o.header.Set(h[0], h[1])
	}
	given = env("OTEL_SERVICE_NAME")
	attributes, err := pairs("OTEL_RESOURCE_ATTRIBUTES", env)
	if err != nil {
		return nil, err
	}
	for _, a := range attributes {
		if a[0] == "service.name" {
			given = cmp.Or(given, a[1])
			continue
		}
		o.resource = append(o.resource, text(a[0], a[1]))
	}
	o.resource = append(o.resource, text("service.name", cmp.Or(given, "star")))
	return o, nil
}

// pairs are those of a variable like key1=value1,key2=value2, with values as in an address.
func pairs(variable string, env func(string) string) (all [][2]string, err error) {
	for _, p := range strings.Split(env(variable), ",") {
		if strings.TrimSpace(p) == "" {
			continue
		}
		k, v, ok := strings.Cut(p, "=")
		value, err := url.PathUnescape(strings.TrimSpace(v))
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: want key=value,key=value with values as in an address", variable)
		}
		all = append(all, [2]string{strings.TrimSpace(k), value})
	}
	return all, nil
}

// point is a NumberDataPoint.
type point struct {
	Attributes []attribute `json:"attributes,omitempty"`
	Time       string      `json:"timeUnixNano"`
	Value      float64     `json:"asDouble"`
}

// gauge is a Metric.
type gauge struct {
	Name  string `json:"name"`
	Unit  string `json:"unit,omitempty"`
	Gauge struct {
		Points []point `json:"dataPoints"`
	} `json:"gauge"`
}

// severities are numbers of OpenTelemetry's data model of logs.
var severities = map[web.Level]int{web.Info: 9, web.Warn: 13, web.Error: 17}

// metric is the name of a scalar in OpenTelemetry's style.
func metric(s *export.Scalar) (name, unit string) {
	name = s.Name
	unit = s.Unit
	if before, ok := strings.CutSuffix(name, " (samples)"); ok {
		name, unit = before, "{sample}"
	}
	return "star." + s.Group + "." + strings.ReplaceAll(name, " ", "_"), unit
}

// Send implements Sink.
func (o *otlp) Send(ctx context.Context, b Batch) error {
	resource := map[string]any{"attributes": append(o.resource[:len(o.resource):len(o.resource)], text("star.job", b.Start.Job), text("star.run", b.Run))}
	scope := map[string]any{"name": "star", "version": strings.TrimPrefix(b.Start.Program, "star ")}
	var gauges []*gauge
	byName := map[string]*gauge{}
	add := func(name, unit string, p point) {
		g := byName[name]
		if g == nil {
			g = &gauge{Name: name, Unit: unit}
			byName[name], gauges = g, append(gauges, g)
		}
		g.Gauge.Points = append(g.Gauge.Points, p)
	}
	var logs []any
	scalars := 0
	for _, r := range b.Rows {
		at := strconv.FormatInt(r.Time.UnixNano(), 10)
		if s := r.Scalar; s != nil {
			p := point{Time: at, Value: s.Value}
			if s.Worker >= 0 {
				p.Attributes = []attribute{number("worker", int64(s.Worker))}
			}
			name, unit := metric(s)
			add(name, unit, p)
			scalars++
			continue
		}
		e := r.Event
		about := []attribute{text("event.name", "star."+e.Kind)}
		if e.Worker >= 0 {
			about = append(about, number("worker", int64(e.Worker)))
		}
		logs = append(logs, map[string]any{"timeUnixNano": at, "severityNumber": severities[e.Level], "severityText": strings.ToUpper(string(e.Level)), "body": map[string]any{"stringValue": e.Says}, "attributes": about})
	}
	if scalars > 0 {
		now := strconv.FormatInt(b.Rows[len(b.Rows)-1].Time.UnixNano(), 10)
		add("star.sink.rows_lost", "{row}", point{Time: now, Value: float64(b.Lost)})
		add("star.job.updates", "{update}", point{Time: now, Value: float64(b.View.Updates)})
		return o.post(ctx, "/v1/metrics", scalars, map[string]any{"resourceMetrics": []any{map[string]any{"resource": resource, "scopeMetrics": []any{map[string]any{"scope": scope, "metrics": gauges}}}}})
	}
	if len(logs) > 0 {
		return o.post(ctx, "/v1/logs", len(logs), map[string]any{"resourceLogs": []any{map[string]any{"resource": resource, "scopeLogs": []any{map[string]any{"scope": scope, "logRecords": logs}}}}})
	}
	return nil
}

// Takes implements Sink.
func (*otlp) Takes(Row) bool { return true }

// post sends rows. A collector may reject some of them in an answer that is otherwise good.
func (o *otlp) post(ctx context.Context, path string, rows int, v any) error {
	said, err := post(ctx, &o.client, o.base+path, o.header, v, rows)
	if err != nil {
		return err
	}
	var answer struct {
		Partial struct {
			Points  json.Number `json:"rejectedDataPoints"`
			Records json.Number `json:"rejectedLogRecords"`
			Message string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	json.Unmarshal(said, &answer) // an empty answer: everything was taken
	if n, _ := cmp.Or(answer.Partial.Points, answer.Partial.Records, "0").Int64(); n > 0 {
		return &Rejected{min(int(n), rows), answer.Partial.Message}
	}
	return nil
}

// Close implements Sink.
func (o *otlp) Close() error {
	o.client.CloseIdleConnections()
	return nil
}
