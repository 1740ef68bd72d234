package coord

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// docs/operations.md names every field of every line of the run log, in the paragraph of its type.
func TestRunLogIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## The run log\n")
	if !ok {
		t.Fatal("docs/operations.md has no section on the run log")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	paragraphs := map[string]string{}
	kind := ""
	for line := range strings.Lines(section) {
		if name, _, ok := strings.Cut(line, "` — "); ok && strings.HasPrefix(name, "`") {
			kind = name[1:]
		}
		paragraphs[kind] += line
	}
	for kind, line := range map[string]any{
		"start": logStart{}, "train": logTrain{}, "record": logRecord{}, "fire": logFire{}, "noise": logNoise{}, "plan": logPlan{}, "unheeded": logUnheeded{}, "heard": logHeard{}, "admission": logAdmission{}, "move": ShardMove{}, "replica": ReplicaChange{}, "late": logLate{},
		"verdict": logVerdict{}, "gain": logGain{}, "predictor": logPredictor{}, "compression": logCodec{}, "poison": logPoison{}, "leave": logMember{}, "short": logSize{}, "eval": logEval{}, "checkpoint": logSave{}, "stop": logStop{}, "pace": logPace{}, "memory": logMemory{}, "shift": ShiftNote{}, "validation": logValidation{}, "judgement": logJudgement{},
		"term": logTerm{}, "recall": logRecall{},
	} {
		about := paragraphs[kind]
		for _, f := range reflect.VisibleFields(reflect.TypeOf(line)) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "type" && !strings.Contains(about, "`"+name+"`") {
				t.Errorf("docs/operations.md: the field %q of a line %q is not explained", name, kind)
			}
		}
		delete(paragraphs, kind)
	}
	for kind := range paragraphs {
		if !slices.Contains([]string{"", "join", "enough", "summary"}, kind) { // the same as leave and short; of Result
			t.Errorf("docs/operations.md explains lines of type %q, which nobody writes", kind)
		}
	}
}
