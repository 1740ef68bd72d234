package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"star/internal/exitcode"
	"star/runlog"
)

// trainJob reports the state of a job to Kubeflow Trainer 2.2 and newer, which shows it as trainerStatus of the
// TrainJob (kubeflow/trainer, proposal 2779). Its controller sets three variables in pods.
type trainJob struct {
	client   http.Client
	to       string
	token    string // file
	reported time.Time
}

// A controller limits requests; its own clients report at most every five seconds.
const trainJobEvery = 5 * time.Second

func newTrainJob(given string, env func(string) string) (Sink, error) {
	const name = "KUBEFLOW_TRAINER_SERVER_"
	if given != "" {
		return nil, errors.New("trainjob takes no value: Kubeflow Trainer sets its address in pods")
	}
	if env(name+"URL") == "" || env(name+"TOKEN") == "" {
		return nil, errors.New("trainjob needs " + name + "URL and " + name + "TOKEN, which Kubeflow Trainer sets in the pods of a TrainJob (feature gate TrainJobStatus)")
	}
	to, err := address(name+"URL", env(name+"URL"))
	if err != nil {
		return nil, err
	}
	t := &trainJob{to: to, token: env(name + "TOKEN")}
	if ca := env(name + "CA_CERT"); ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%sCA_CERT: %w", name, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%sCA_CERT: %s has no certificate in PEM", name, ca)
		}
		t.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	}
	return t, nil
}

type trainerStatus struct {
	Progress *int        `json:"progressPercentage,omitempty"`
	Left     *int        `json:"estimatedRemainingSeconds,omitempty"`
	Metrics  []namedText `json:"metrics,omitempty"`
	At       time.Time   `json:"lastUpdatedTime"`
}

type namedText struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Takes implements Sink. It is sent the state of the job only.
func (*trainJob) Takes(Row) bool { return false }

// Send implements Sink. A state that is not reported is replaced by the next one.
func (t *trainJob) Send(ctx context.Context, b Batch) error {
	if !b.Over && time.Since(t.reported) < trainJobEvery {
		return nil
	}
	token, err := os.ReadFile(t.token) // it is renewed in place
	if err != nil {
		return &Fatal{err, exitcode.Refused}
	}
	v := b.View
	s := trainerStatus{At: b.Start.Time.Add(time.Duration(v.Now * float64(time.Second))).UTC().Truncate(time.Second)}
	if v.Limit > 0 && !v.Watched {
		done := int(100 * v.Samples / v.Limit)
		s.Progress = &done
	}
	if left := float64(v.Left); left == left && left < math.MaxInt32 {
		n := int(left)
		s.Left = &n
	}
	slow := 0
	for _, w := range v.Workers {
		if x := float64(w.Slow); x == x {
			slow++
		}
	}
	add := func(name string, x runlog.Number) {
		if f := float64(x); f-f == 0 {
			s.Metrics = append(s.Metrics, namedText{name, strconv.FormatFloat(f, 'g', 6, 64)})
		}
	}
	add("loss", v.Loss)
	add("accuracy", v.Accuracy)
	add("samples_per_second", v.Rate)
	add("updates", runlog.Number(v.Updates))
	add("slow_workers", runlog.Number(slow))
	if v.Mode != "" {
		s.Metrics = append(s.Metrics, namedText{"mode", v.Mode})
	}
	header := http.Header{"Authorization": {"Bearer " + strings.TrimSpace(string(token))}}
	if _, err := post(ctx, &t.client, t.to, header, map[string]any{"trainerStatus": s}, len(b.Rows)); err != nil {
		return err
	}
	t.reported = time.Now()
	return nil
}

// Close implements Sink.
func (t *trainJob) Close() error {
	t.client.CloseIdleConnections()
	return nil
}
