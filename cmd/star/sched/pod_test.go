package sched

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeKubectl is a kubectl with a folder as its cluster: a pod exists as long as its file does, which holds its state.
func fakeKubectl(t *testing.T) (dir string) {
	dir = t.TempDir()
	script := `#!/bin/sh
cd ` + dir + `
echo "$*" >> asked
case "$*" in
*"apply -f -") cat > applied && cp first pod ;;
*"get pod "*) [ ! -e pod ] || { cat pod; [ ! -e next ] || mv next pod; } ;;
*"delete pod/"*) rm -f pod ;;
*"logs "*) echo what it said ;;
*) echo "not known: $*" >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const running = `{"status":{"phase":"Running","conditions":[{"type":"PodScheduled","status":"True"}],"containerStatuses":[{"state":{"running":{}}}]}}`

// The process of a pod ends as the pod does, and takes away what it has applied.
func TestPod(t *testing.T) {
	for name, x := range map[string]struct {
		next string // the pod's state then; empty: it is gone
		told bool
		want int
		says string
	}{
		"done":    {`{"status":{"phase":"Succeeded","containerStatuses":[{"state":{"terminated":{"exitCode":0}}}]}}`, false, 0, "what it said"},
		"failed":  {`{"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"exitCode":78}}}]}}`, false, 78, "what it said"},
		"evicted": {`{"status":{"phase":"Failed","reason":"Evicted","message":"the node is full"}}`, false, 137, "Evicted the node is full"},
		"gone":    {"", false, 137, ""},
		"told":    {running, true, 143, ""},
		"no node": {`{"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes are available"}]}}`, false, 69, "not begun for 0s: Unschedulable 0/3 nodes"},
		"image":   {`{"status":{"phase":"Pending","containerStatuses":[{"state":{"waiting":{"reason":"ErrImagePull","message":"not found"}}}]}}`, false, 69, "ErrImagePull not found"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fakeKubectl(t)
			defer func(begins, every time.Duration) { podBegins, podEvery = begins, every }(podBegins, podEvery)
			podBegins, podEvery = 0, 5*time.Millisecond
			write(t, dir, "first", running)
			write(t, dir, "next", x.next)
			told := make(chan os.Signal, 1)
			if x.told {
				told <- syscall.SIGTERM
			}
			var says strings.Builder
			if got := followPod("star-a-worker-1", "ns", []byte("{}"), told, &says); got != x.want || !strings.Contains(says.String(), x.says) {
				t.Errorf("exit code %d, want %d; it said %q", got, x.want, says.String())
			}
			asked, _ := os.ReadFile(filepath.Join(dir, "asked"))
			if lines := strings.Split(strings.TrimSpace(string(asked)), "\n"); !strings.Contains(lines[len(lines)-1], "--namespace=ns delete pod/star-a-worker-1 secret/star-a-worker-1") {
				t.Errorf("it asked %q", lines)
			}
		})
	}
	t.Setenv("PATH", t.TempDir())
	if got := followPod("a", "", nil, nil, new(strings.Builder)); got == 0 {
		t.Error("applied without kubectl")
	}
}

// A pod has the template's worker with the service's settings, and nothing of what only a job of Kubernetes has.
func TestPodManifest(t *testing.T) {
	e := schedEngine{cpus: 3, gpus: 1, image: "registry.example/star:1", workerImage: "registry.example/torch:2", namespace: "ns"}
	text, err := e.pod("star-a-worker-1", []string{"PATH=/bin", "STAR_COORDINATOR=10.0.0.1:7070", "STAR_TOKEN=secret", "STAR_HOST_ID=kubernetes", "STAR_OUT=/here"}, []string{"python3", "train.py"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Apply struct {
			Items []struct {
				Kind       string
				Metadata   struct{ Name string }
				StringData map[string]string
				Spec       struct {
					RestartPolicy string
					Volumes       []map[string]any
					Containers    []struct {
						Image     string
						Args      []string
						Env       []any
						EnvFrom   []struct{ SecretRef struct{ Name string } }
						Resources struct{ Requests, Limits map[string]any }
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Apply.Items) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	secret, pod := got.Apply.Items[0], got.Apply.Items[1]
	if s := secret.StringData; secret.Kind != "Secret" || s["STAR_COORDINATOR"] != "10.0.0.1:7070" || s["STAR_TOKEN"] != "secret" || s["STAR_OUT"] != "/out" || s["STAR_HOST_ID"] != "" || s["PATH"] != "" {
		t.Errorf("%+v", secret)
	}
	c := pod.Spec.Containers[0]
	if pod.Kind != "Pod" || pod.Metadata.Name != "star-a-worker-1" || pod.Spec.RestartPolicy != "Never" || c.Image != "registry.example/torch:2" || strings.Join(c.Args, " ") != "worker -- python3 train.py" ||
		len(c.Env) != 0 || len(c.EnvFrom) != 1 || c.EnvFrom[0].SecretRef.Name != "star-a-worker-1" || c.Resources.Requests["cpu"] != "3" || c.Resources.Limits["nvidia.com/gpu"] != 1. {
		t.Errorf("%+v", pod)
	}
	if strings.Contains(text, "persistentVolumeClaim") || strings.Contains(text, "controller-uid") {
		t.Errorf("what only a job has: %s", text)
	}
}
